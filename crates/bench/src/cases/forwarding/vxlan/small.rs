// SPDX-License-Identifier: Apache-2.0
//! Packets of 64 bytes through a tunnel, and by L2 switching alone.
//!
//! ```text
//!   normal-64B        net_null + traffic ── L2 switching ── a null port
//!   vxlan-64B         net_null + traffic ── L2 switching ── VTEP ── patch ── VTEP ── L2 switching ── a null port
//!   vxlan-encap-64B   the same, and then a null port in place of the patch
//! ```
//!
//! The last port sends one packet, from which all bridges learn the traffic's destination. Rates are per second of the
//! worker's CPU time.

use netvm_model::{Forward, Host, Idle, PortId, PortKind, SourceConfig};

use super::topology::{Routes, switch, tunnel_between};
use crate::error::BenchError;
use crate::machine::Cores;
use crate::measure::harness::{Figure, Measured, Plan};
use crate::measure::report::Unit;
use crate::setup::layout::Layout;
use crate::setup::rig::Rig;
use crate::setup::traffic::Traffic;

/// Few buffers, so that they stay in the caches.
const BUFFERS: u32 = 4096;
/// Without FCS.
const FRAME: u16 = 60;
/// Flows of the traffic.
const FLOWS: u64 = 1000;
/// The ports of the traffic, and the first one of the patch.
const IN: PortId = PortId(0);
const OUT: PortId = PortId(1);
const PATCH: PortId = PortId(2);

/// A case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmallCase {
    /// L2 switching.
    Normal,
    /// Encapsulation.
    Encap,
    /// Encapsulation, and decapsulation.
    Both,
}

/// All cases.
pub const CASES: [SmallCase; 3] = [SmallCase::Normal, SmallCase::Encap, SmallCase::Both];

impl SmallCase {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal-64B",
            Self::Encap => "vxlan-encap-64B",
            Self::Both => "vxlan-64B",
        }
    }
}

/// Measures a case.
///
/// # Errors
/// [`BenchError`] if no packet passed.
pub fn measure(case: SmallCase, cores: Cores, plan: &Plan) -> Measured {
    let what = case.name();
    let (host, routes) = configuration(case, cores);
    // First without the last port's packet, which must not come before the traffic and the routes.
    let mut silent = host.clone();
    silent.ports[OUT.index()].kind = PortKind::Sink;
    // Until there is traffic, the null device receives what is in its buffers.
    silent.ports[IN.index()].policy.forward = Forward::None;
    let mut rig = Rig::start(&silent, &[])?;
    load(&mut rig, &routes)?;
    let traffic = Traffic::of(FLOWS).attach()?;
    rig.engine().apply(&host)?;
    rig.run(plan.warm_up)?;
    let mut last = OUT;
    if case == SmallCase::Encap {
        let mut cut = host;
        cut.ports[PATCH.index()].kind = PortKind::Sink;
        // Nothing leads to the other VTEP any more.
        cut.ports[PATCH.index() + 1].kind = PortKind::Sink;
        rig.engine().apply(&cut)?;
        load(&mut rig, &routes)?;
        last = PATCH;
    }
    let window = rig.watch(plan)?;
    drop(traffic);
    window.check_sound(what)?;
    window.warn_if_disturbed(what);
    let sent = window.sent_by(last);
    if sent == 0 {
        return Err(BenchError::Nothing { what: what.to_owned(), seconds: window.seconds() });
    }
    let cycles = window.busy_cycles() as f64 / sent as f64;
    let mut figures = vec![
        Figure::new(what, Unit::Mpps, window.per_core(sent)),
        Figure::new(format!("{what} engine cycles"), Unit::CyclesPerPacket, cycles),
    ];
    figures.extend(window.stages(what));
    Ok(figures)
}

fn load(rig: &mut Rig, routes: &Routes) -> Result<(), BenchError> {
    routes.iter().try_for_each(|(router, update)| rig.load_routes_of(*router, update))
}

fn configuration(case: SmallCase, cores: Cores) -> (Host, Routes) {
    let mut layout = Layout::new(cores.engine, Idle::Poll);
    let group = layout.group("small", BUFFERS, 2048);
    let input = layout.port("in", PortKind::Null { size: FRAME }, 1500);
    let once = SourceConfig { size: FRAME, count: Some(1), ..SourceConfig::default() };
    let output = layout.port("out", PortKind::Source(once), 1500);
    let (mut host, routes) = if case == SmallCase::Normal {
        let mut host = layout.build();
        [input, output].iter().for_each(|port| switch(&mut host, *port, None));
        (host, Routes::new())
    } else {
        tunnel_between(layout, [input, output])
    };
    for port in &mut host.ports {
        port.group = Some(group);
    }
    debug_assert_eq!((input, output), (IN, OUT));
    (host, routes)
}
