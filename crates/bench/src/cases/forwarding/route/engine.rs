// SPDX-License-Identifier: Apache-2.0
//! Packets through an engine's router, and through a rule that names a port.
//!
//! ```text
//!   net_null + traffic -> worker: router with a full table, or a rule -> a null port
//! ```
//!
//! - `router-N`: N destinations in turn, as in `netvm-v4-full`; 64 neighbours on one interface.
//! - `forward-N`: the same packets, forwarded by a rule.
//!
//! Frames of 64 bytes, FCS included. Rates are per second of the worker's CPU time.

use netvm_model::{
    Action, Forward, Host, Idle, PUNT_RATE, PortId, PortKind, RouterConfig, RouterId, RouterInterface,
};
use netvm_router::{Hop, NextHop, Update};
use netvm_wire::MacAddr;

use crate::cli::RouteArgs;
use crate::error::BenchError;
use crate::measure::harness::{Comparison, Figure, Measured, Plan, Subject, alternate};
use crate::measure::report::{Row, Unit};
use crate::setup::layout::Layout;
use crate::setup::rig::Rig;
use crate::setup::routes::{IpFamily, RouteTable, Size, destinations};
use crate::setup::traffic::Traffic;

/// Few buffers, so that they stay in the caches.
pub(super) const BUFFERS: u32 = 4096;
/// Without FCS.
pub(super) const FRAME: u16 = 60;
/// Destination MAC address of the traffic (`peer/traffic/traffic.c`).
pub(super) const ROUTER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
/// The egress interface of all routes, and its MAC address.
const OUT: u16 = 1;
const OUT_MAC: MacAddr = MacAddr([2, 0, 0, 0, 1, 1]);

/// Runs the benchmark.
///
/// # Errors
/// [`BenchError`] if any case has no figure.
pub(super) fn measure(args: &RouteArgs) -> Result<Vec<Row>, BenchError> {
    let core = args.bench.cores()?.engine;
    let table = RouteTable::load(IpFamily::V4, Size::Full, args.routes.as_deref())?;
    let update = &with_neighbours(table.update());
    let mut subjects = Vec::new();
    let mut comparisons = Vec::new();
    for count in &args.destinations {
        // The traffic's destinations must have a static lifetime.
        let destinations: &'static [u32] = destinations(&table, *count as usize).leak();
        for (name, update) in [("router", Some(update)), ("forward", None)] {
            let name = format!("{name}-{count}");
            subjects.push(Subject::new(name.clone(), move |plan| {
                run(&name, core, RoutedTraffic { update, destinations, connections: 0 }, plan)
            }));
        }
        comparisons.push(Comparison::new(format!("router-{count}"), format!("forward-{count}")));
    }
    alternate(&super::plan_of(args), &mut subjects, &comparisons)
}

/// The routes, with a neighbour for each next hop.
pub fn with_neighbours(mut update: Update) -> Update {
    let mut ids: Vec<_> = update.routes.iter().filter_map(|(_, id)| *id).collect();
    ids.sort_unstable();
    ids.dedup();
    let neighbour = |id: u16| MacAddr([2, 0, 0, 0, 2, id as u8]);
    let via = ids.into_iter().map(|id| (id, NextHop::Via(Hop { interface: OUT, mac: neighbour(id.0) })));
    update.next_hops = via.collect();
    update
}

/// A host that forwards by a router or by a rule.
pub fn host(core: u32, is_routed: bool) -> Host {
    let mut layout = Layout::new(core, Idle::Poll);
    let group = layout.group("route", BUFFERS, 2048);
    let input = layout.port("in", PortKind::Null { size: FRAME }, 1500);
    let [output, ..] = ["out", "in-kernel", "out-kernel"].map(|name| layout.port(name, PortKind::Sink, 1500));
    if !is_routed {
        layout.rule(input, Action::Port(output));
    }
    let mut host = layout.build();
    for port in &mut host.ports {
        port.group = Some(group);
    }
    if is_routed {
        host.ports[0].policy.forward = Forward::Router(RouterId(0));
        let interface = |name: &str, port: u16, mac| RouterInterface {
            name: name.to_owned(),
            port: PortId(port),
            vlan: None,
            mac,
            addresses: Vec::new(),
            punt_rate: PUNT_RATE,
            urpf: None,
            punt: PortId(port + 2),
            host_end: RouterInterface::host_end_of("bench", name),
            snat: None,
        };
        let interfaces = vec![interface("in", 0, ROUTER_MAC), interface("out", OUT, OUT_MAC)];
        host.routers = vec![RouterConfig {
            id: RouterId(0),
            name: "bench".to_owned(),
            interfaces,
            routes: Vec::new(),
            track: false,
            weight: 1,
            reserve: 0,
            nat64: None,
        }];
    }
    host
}

/// Packets, and the routes for them.
#[derive(Clone, Copy)]
pub struct RoutedTraffic<'a> {
    /// The routes; none: a rule forwards them.
    pub update: Option<&'a Update>,
    /// In network order.
    pub destinations: &'static [u32],
    /// Connections that must be there before it is measured; 0 if none are tracked.
    pub connections: u32,
}

impl<'a> RoutedTraffic<'a> {
    /// For a router with these routes, which does not track.
    pub const fn new(update: &'a Update, destinations: &'static [u32]) -> Self {
        Self { update: Some(update), destinations, connections: 0 }
    }
}

/// Measures the packets of a router, or of a rule.
///
/// # Errors
/// [`BenchError`] if packets were punted or dropped.
pub fn run(name: &str, core: u32, traffic: RoutedTraffic<'_>, plan: &Plan) -> Measured {
    measure_host(name, &host(core, traffic.update.is_some()), traffic, plan)
}

/// The same for any host with a null port.
///
/// # Errors
/// [`BenchError`] if packets were punted or dropped.
pub fn measure_host(name: &str, host: &Host, traffic: RoutedTraffic<'_>, plan: &Plan) -> Measured {
    let RoutedTraffic { update, destinations, connections } = traffic;
    let mut rig = Rig::start(host, &[])?;
    let traffic = Traffic::attach_to(destinations)?;
    if let Some(update) = update {
        rig.load_routes(update)?;
    }
    rig.await_connections(connections.into(), false)?;
    rig.run(plan.warm_up)?;
    let punted = |rig: &mut Rig| rig.engine().routers().iter().map(|router| router.punted).sum::<u64>();
    let before = punted(&mut rig);
    let window = rig.watch(plan)?;
    let punted = punted(&mut rig) - before;
    drop(traffic);
    window.check_sound(name)?;
    window.warn_if_disturbed(name);
    window.check_forwarded(name)?;
    let dropped = window.dropped_in_all();
    if punted > 0 || dropped > 0 {
        return Err(BenchError::Astray { what: name.to_owned(), punted, dropped });
    }
    let mut figures = vec![Figure::new(name, Unit::Mpps, window.per_core(window.sent()))];
    let cycles = window.engine_cycles_per_packet();
    figures.push(Figure::new(format!("{name} engine cycles"), Unit::CyclesPerPacket, cycles));
    figures.extend(window.stages(name));
    Ok(figures)
}
