// SPDX-License-Identifier: Apache-2.0
//! `workers`: the same traffic with one worker and with two, by two senders, as in figure 10 of the sNICh paper.
//!
//! | case | packets |
//! |---|---|
//! | `source-sink-N` | two built-in sources, each to a sink: what the engine alone gains |
//! | `rules-N` | the same, after 971 rules that no packet matches, for 1,024 flows of each source |
//! | `router-N` | two sources, one virtual router, one sink: the workers share the router's table |
//! | `chain-N` | two sources, each through a chain of one NF to a sink |
//! | `guests-N` | two simulated guests, each to another over vhost-user (`peers/guests.rs`) |
//!
//! N is the number of workers. Senders are the first ports, so the placement gives each a worker. Rates are packets
//! that arrive per second of wall-clock time, because the question is what a second core adds. NFs have a core each,
//! and so have the pairs of guests, after the workers' cores. On a machine with two cores, one worker leaves them the
//! second core, and two workers share both cores with them: then these ratios say whether that core does more as a
//! worker or as the NFs', not what free cores give. A guest here polls, so it and a worker take turns of milliseconds.
//! The source needs no device, so a worker is busy with nothing else.

use std::path::Path;

use netvm_model::{
    Action, Actions, EngineConfig, Forward, Host, Idle, Match, Output, PUNT_RATE, PortId, PortKind,
    RouterConfig, RouterId, RouterInterface, Rule, RuleId, RuleParts, SourceConfig, VhostDma, VhostMode,
};
use netvm_router::{Hop, NextHop, NextHopId, Update};
use netvm_wire::{IpNet, MacAddr};

use crate::cases::forwarding::filter_set::FilterSet;
use crate::cases::guests::vhost::folder;
use crate::cli::BenchArgs;
use crate::error::BenchError;
use crate::machine::allowed_cores;
use crate::measure::harness::{Comparison, Figure, Measured, Plan, Subject, alternate};
use crate::measure::report::{Row, Unit};
use crate::measure::window::Window;
use crate::nf::{Kind, NfSpec};
use crate::peers::guests::{Guests, Load, Rings, sockets};
use crate::peers::testpmd;
use crate::setup::layout::{Layout, lossless};
use crate::setup::rig::Rig;
use crate::setup::sandbox;
use crate::setup::traffic::Traffic;

/// Numbers of workers.
const WORKERS: [usize; 2] = [1, 2];
/// Senders, and receivers.
const PAIRS: usize = 2;
/// Without FCS.
const FRAME: u16 = 60;
const BUFFERS: u32 = 8192;
/// Rules of the sNICh paper.
const RULES: usize = 971;
/// Destination MAC address of the built-in source.
const ROUTER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

/// Runs the benchmark.
///
/// # Errors
/// [`BenchError`] if a case has no figure, or without two cores.
pub fn measure(args: &BenchArgs) -> Result<Vec<Row>, BenchError> {
    let first = args.cores()?;
    let mut cores = vec![first.engine, first.nf];
    cores.extend(allowed_cores().into_iter().filter(|core| ![first.engine, first.nf].contains(core)));
    let cores = cores.as_slice();
    if cores.len() < WORKERS[1] + PAIRS {
        eprintln!(
            "{} cores: NFs and guests share those of the workers. Only `source-sink`, `rules` and `router` say what a second worker \
             gains. In `chain` and `guests` it takes the core that NFs and guests had.",
            cores.len()
        );
    }
    let sandbox = (!args.skip_peers).then(|| testpmd::find().and_then(|()| sandbox::enter())).transpose();
    let sandbox = sandbox.unwrap_or_else(|error| {
        eprintln!("`guests` is left out: {error}");
        None
    });
    let set = FilterSet::load(None, RULES)?;
    let mut cases = Cases::default();
    cases.add("source-sink", move |name, workers, plan| source_to_sink(name, &cores[..workers], plan));
    cases.add("rules", |name, workers, plan| rules(name, &cores[..workers], &set, plan));
    cases.add("router", move |name, workers, plan| router(name, &cores[..workers], plan));
    cases.add("chain", move |name, workers, plan| chain(name, cores, workers, plan));
    if let Some(sandbox) = sandbox.as_deref() {
        cases.add("guests", move |name, workers, plan| {
            guests(name, Workers { cores, count: workers }, sandbox, plan)
        });
    }
    alternate(&args.plan(), &mut cases.subjects, &cases.comparisons)
}

/// The cases, each with every number of workers.
#[derive(Default)]
struct Cases<'a> {
    subjects: Vec<Subject<'a>>,
    comparisons: Vec<Comparison>,
}

impl<'a> Cases<'a> {
    /// Adds a case. `run` gets its name with the number of workers, and that number.
    fn add(&mut self, case: &str, run: impl Fn(&str, usize, &Plan) -> Measured + Copy + 'a) {
        for workers in WORKERS {
            let name = format!("{case}-{workers}");
            self.subjects.push(Subject::new(name.clone(), move |plan| run(&name, workers, plan)));
        }
        self.comparisons.push(Comparison::new(format!("{case}-2"), format!("{case}-1")));
    }
}

/// A host with these cores.
fn on(cores: &[u32], mut host: Host) -> Host {
    host.engine = EngineConfig { cores: cores.to_vec(), ..host.engine };
    host
}

/// The core of NF or guest `n`: after the workers' cores, or else one of those.
fn core_after(cores: &[u32], workers: usize, n: usize) -> u32 {
    let free = &cores[workers.min(cores.len())..];
    let of = if free.is_empty() { cores } else { free };
    of[n % of.len()]
}

fn rate(name: &str, window: &Window) -> Measured {
    window.check_forwarded(name)?;
    window.warn_if_disturbed(name);
    Ok(vec![
        Figure::new(name, Unit::Mpps, window.mpps()),
        Figure::new(format!("{name} engine busy"), Unit::CyclesPerPacket, window.engine_cycles_per_packet()),
    ])
}

/// Two sources, first, and as many sinks.
fn ends(layout: &mut Layout, source: &PortKind) -> [(PortId, PortId); PAIRS] {
    let sources = ["in0", "in1"].map(|name| layout.port(name, source.clone(), 1500));
    let sinks = ["out0", "out1"].map(|name| layout.port(name, PortKind::Sink, 1500));
    [(sources[0], sinks[0]), (sources[1], sinks[1])]
}

fn source_to_sink(name: &str, cores: &[u32], plan: &Plan) -> Measured {
    let mut layout = Layout::new(cores[0], Idle::Adaptive);
    for (from, to) in ends(&mut layout, &lossless(FRAME)) {
        layout.rule(from, Action::Port(to));
    }
    let mut rig = Rig::start(&on(cores, layout.build()), &[])?;
    rate(name, &rig.measure(name, plan.warm_up, plan.window)?)
}

fn rules(name: &str, cores: &[u32], set: &FilterSet, plan: &Plan) -> Measured {
    let mut layout = Layout::new(cores[0], Idle::Adaptive);
    let source = SourceConfig { size: FRAME, flows: 1024, lossless: true, ..SourceConfig::default() };
    let ends = ends(&mut layout, &PortKind::Source(source));
    let mut host = on(cores, layout.build());
    host.rules = set.rules();
    for (from, to) in ends {
        let id = RuleId(host.rules.len() as u32);
        let matches = Match { from: vec![from], ..Match::default() };
        let actions = Actions { terminal: Some(Action::Port(to)), ..Actions::default() };
        host.rules.push(Rule::from(RuleParts { id, name: String::new(), matches, actions }));
    }
    let mut rig = Rig::start(&host, &[])?;
    rate(name, &rig.measure(name, plan.warm_up, plan.window)?)
}

fn router(name: &str, cores: &[u32], plan: &Plan) -> Measured {
    let mut layout = Layout::new(cores[0], Idle::Adaptive);
    let source = SourceConfig { size: FRAME, flows: 1024, lossless: true, ..SourceConfig::default() };
    ends(&mut layout, &PortKind::Source(source));
    // The kernel's ends of the router's interfaces; nothing is punted.
    for name in ["kernel0", "kernel1", "kernel2"] {
        layout.port(name, PortKind::Sink, 1500);
    }
    let mut host = on(cores, layout.build());
    let interface = |n: u16, mac| RouterInterface {
        name: format!("i{n}"),
        port: PortId(n),
        vlan: None,
        mac,
        addresses: Vec::new(),
        punt_rate: PUNT_RATE,
        urpf: None,
        punt: PortId(n + 4),
        host_end: RouterInterface::host_end_of("bench", &format!("i{n}")),
        snat: None,
    };
    let out = MacAddr([2, 0, 0, 0, 1, 2]);
    host.routers = vec![RouterConfig {
        id: RouterId(0),
        name: "bench".to_owned(),
        interfaces: vec![interface(0, ROUTER_MAC), interface(1, ROUTER_MAC), interface(2, out)],
        routes: Vec::new(),
        track: false,
        weight: 1,
        reserve: 0,
        nat64: None,
    }];
    for port in &mut host.ports[..PAIRS] {
        port.policy.forward = Forward::Router(RouterId(0));
    }
    let mut rig = Rig::start(&host, &[])?;
    let mut update = Update::default();
    let default = IpNet::new(std::net::Ipv4Addr::UNSPECIFIED.into(), 0);
    update.routes.extend(default.map(|net| (net, Some(NextHopId(1)))));
    let neighbour = Hop { interface: 2, mac: MacAddr([2, 0, 0, 0, 2, 1]) };
    update.next_hops.push((NextHopId(1), NextHop::Via(neighbour)));
    rig.load_routes(&update)?;
    rate(name, &rig.measure(name, plan.warm_up, plan.window)?)
}

fn chain(name: &str, cores: &[u32], workers: usize, plan: &Plan) -> Measured {
    let mut layout = Layout::new(cores[0], Idle::Adaptive);
    let roles = ["nf0", "nf1"];
    let groups = ["first", "second"].map(|group| layout.group(group, BUFFERS, 2048));
    let ends = ends(&mut layout, &lossless(FRAME));
    for ((role, group), (from, to)) in roles.iter().zip(groups).zip(ends) {
        let hop = layout.nf(role, group);
        layout.chain(role, from, &[hop], Output::Port(to));
    }
    let specs: Vec<NfSpec> = (0..)
        .zip(roles)
        .map(|(n, role)| NfSpec::adaptive(Kind::Forward, role, core_after(cores, workers, n)))
        .collect();
    let mut rig = Rig::start(&on(&cores[..workers], layout.build()), &specs)?;
    rate(name, &rig.measure(name, plan.warm_up, plan.window)?)
}

/// The first of some cores are workers.
#[derive(Clone, Copy)]
struct Workers<'a> {
    cores: &'a [u32],
    count: usize,
}

fn guests(name: &str, workers: Workers<'_>, sandbox: &Path, plan: &Plan) -> Measured {
    let Workers { cores, count: workers } = workers;
    let folders = [folder(sandbox, "first")?, folder(sandbox, "second")?];
    let mut layout = Layout::new(cores[0], Idle::Adaptive);
    let group = layout.group("guests", 2 * BUFFERS, 2048);
    let [first, second] = folders.each_ref().map(|folder| sockets(folder));
    // The senders first.
    let paths = [("a0", &first[0]), ("b0", &second[0]), ("a1", &first[1]), ("b1", &second[1])];
    let [a0, b0, a1, b1] = paths.map(|(name, path)| {
        let kind = PortKind::VhostUser { path: path.clone(), mode: VhostMode::Server, dma: VhostDma::Off };
        layout.port(name, kind, 1500)
    });
    for (from, to) in [(a0, a1), (b0, b1), (a1, a0), (b1, b0)] {
        layout.rule(from, Action::Port(to));
    }
    let mut host = on(&cores[..workers], layout.build());
    for port in &mut host.ports {
        port.group = Some(group);
    }
    let mut rig = Rig::start(&host, &[])?;
    let load = Load { bytes: FRAME, traffic: Traffic::of(1), rings: Rings::Packed, is_timed: false };
    let pair = |n: usize| Guests::start(&folders[n], load, core_after(cores, workers, n));
    let running = [pair(0)?, pair(1)?];
    // Guests that share the engine's cores are slower than it: what it drops for them is no fault.
    let window = rig.watch(plan)?;
    drop(running);
    rate(name, &window)
}
