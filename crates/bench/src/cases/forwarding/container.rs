// SPDX-License-Identifier: Apache-2.0
//! `container`: TCP and UDP between two network namespaces, through netvm and through the kernel's bridge and routing.
//!
//! ```text
//!  iperf3 client ── namespace a ──┬─ netvm's switch ─────┬── namespace b ── iperf3 server
//!                                 ├─ a chain of NFs ─────┤
//!                                 └─ the kernel's bridge ┘
//! ```
//!
//! Cases of TCP are `SUBJECT`, `SUBJECT-reverse` (the server sends), and `SUBJECT-8` (eight connections), in bits of
//! payload per second as the receiver counts them, and with `-cpu` the CPU time of the machine for each megabyte.
//! `SUBJECT-udp-64B` and `-udp-1500B` are packets that the receiver got per second, of frames of that length with FCS,
//! and with `-cpu` the CPU time of the machine for each. `SUBJECT-frames`, `-flows` and `-rtt`: see [`frames`].
//!
//! netvm's worker
//! and the NFs are pinned to one core, nothing else is: NFs that only pass packets on take less time than it takes to
//! bring them to another core. `router`, `router-fast` and `kernel-router` route between two networks. `veth-hop` is a
//! chain whose hop is the kernel's bridge in a namespace. `ovs-tso` is Open vSwitch with its DPDK datapath on veth
//! pairs, with `userspace-tso-enable`.

mod frames;
mod hop;
pub mod hosts;
pub mod iperf;

use std::path::Path;

use netvm_model::{
    ContainerConfig, FastPath, Forward, Host, Idle, Output, PUNT_RATE, PortId, PortKind, RouterConfig,
    RouterId, RouterInterface,
};
use netvm_policy::{Action, Actions, Match, Rule, RuleId, RuleParts};
use netvm_router::{Hop, NextHop, NextHopId, Update};
use netvm_wire::{MacAddr, PortRange};

use crate::cli::ContainerArgs;
use crate::error::BenchError;
use crate::machine::Cores;
use crate::measure::harness::{Comparison, Measured, Plan, alternate};
use crate::measure::report::Row;
use crate::nf::{Kind, NfSpec};
use crate::peers::ovs::Switch;
use crate::setup::layout::Layout;
use crate::setup::rig::Rig;
use hop::BridgeHop;
use hosts::{Hosts, Link, PORTS};
use iperf::{Case, Chosen, Flow, Measure, figures};

/// Linux's default congestion control, whatever this machine's is.
pub const CUBIC: &str = "cubic";
/// The kernel's bridge and router, with which the other cases are compared.
const BRIDGE: &str = "kernel-bridge";
const ROUTER: &str = "kernel-router";
/// What connects containers without a switch: a veth pair, and macvlan in bridge mode.
const DIRECT: [(&str, Link); 2] = [("kernel-veth", Link::Pair), ("kernel-macvlan", Link::Macvlan)];
/// Open vSwitch, with which netvm's switch is compared.
const OVS: &str = "ovs-tso";
/// What netvm does with the packets.
const SWITCHES: [(&str, PortKinds, Between); 9] = [
    ("switch", PortKinds::Container, Between::Nothing),
    (FAST, PortKinds::FastPath, Between::Nothing),
    (MISS, PortKinds::FastToPlain, Between::Nothing),
    ("switch-af-packet", PortKinds::AfPacket, Between::Nothing),
    ("switch-af-xdp", PortKinds::AfXdp, Between::Nothing),
    ("chain-1", PortKinds::Container, Between::Nfs(1)),
    ("chain-3", PortKinds::Container, Between::Nfs(3)),
    (RELEASED, PortKinds::FastPath, Between::Releasing),
    (VETH_HOP, PortKinds::Container, Between::Program),
];
/// The kernel forwards what netvm has decided, which is compared with the way without it.
const FAST: &str = "switch-fast";
const ROUTER_FAST: &str = "router-fast";
/// No packet is one that the kernel may forward, as only one of the ports has a fast path: what the attempt costs.
const MISS: &str = "switch-miss";
/// A chain of an NF that releases each flow, so that the kernel forwards it as if there were no chain.
const RELEASED: &str = "chain-released";
/// A chain through the kernel's bridge as a hop, which is compared with the way without it.
const VETH_HOP: &str = "veth-hop";

/// Seconds without packets after which a verdict ends.
const FLOW_VERDICTS: u16 = 300;
/// A port of UDP and TCP that nothing uses here.
const UNUSED: u16 = 65_535;
/// The MAC address of both interfaces of netvm's router, and those of the namespaces' interfaces.
const ROUTER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
const HOST_MACS: [MacAddr; 2] = [MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2])];

/// The kind of both ports.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PortKinds {
    Container,
    FastPath,
    /// The first one with a fast path, the other one without.
    FastToPlain,
    AfPacket,
    AfXdp,
}

impl PortKinds {
    const fn is_container(self) -> bool {
        matches!(self, Self::Container | Self::FastPath | Self::FastToPlain)
    }

    /// Of the port with this number.
    fn fast_path(self, port: usize) -> FastPath {
        match self {
            Self::FastPath => FastPath::On,
            Self::FastToPlain if port == 0 => FastPath::On,
            _ => FastPath::Off,
        }
    }
}

/// What packets pass between both ports.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Between {
    Nothing,
    Nfs(usize),
    /// An NF that releases each flow.
    Releasing,
    Program,
}

/// Runs the benchmark.
///
/// # Errors
/// [`BenchError`] if any case has no figure.
pub fn measure(args: &ContainerArgs) -> Result<Vec<Row>, BenchError> {
    let ContainerArgs { bench: args, only, congestion } = args;
    let congestion = congestion.as_deref().unwrap_or(CUBIC);
    let cores = args.cores()?;
    iperf::find()?;
    let sandbox = hosts::enter(args.skip_peers)?;
    hosts::forward()?;
    let mut measures: Vec<(&'static str, Measure<'_>)> =
        vec![(BRIDGE, Box::new(|case, plan| kernel(case, Link::Bridge, plan)))];
    for (name, link) in DIRECT {
        measures.push((name, Box::new(move |case, plan| kernel(case, link, plan))));
    }
    for (name, ends, between) in SWITCHES {
        measures.push((name, Box::new(move |case, plan| netvm(case, Passed { ends, between }, cores, plan))));
    }
    for (name, ends) in [("router", PortKinds::Container), (ROUTER_FAST, PortKinds::FastPath)] {
        measures.push((name, Box::new(move |case, plan| router(case, ends, cores, plan))));
    }
    measures.push((ROUTER, Box::new(|case, plan| kernel(case, Link::Router, plan))));
    let mut comparisons = Vec::new();
    if let Some(sandbox) = &sandbox {
        measures.push((OVS, Box::new(|case, plan| open_vswitch(case, sandbox, cores, plan))));
        comparisons.extend(all_kinds("switch", OVS));
    }
    let by_bridge = SWITCHES.iter().map(|(name, ..)| *name).chain(DIRECT.map(|(name, _)| name));
    comparisons.extend(by_bridge.flat_map(|name| all_kinds(name, BRIDGE)));
    let pairs = [
        (FAST, "switch"),
        (MISS, "switch"),
        (RELEASED, FAST),
        (ROUTER_FAST, "router"),
        (ROUTER_FAST, ROUTER),
        (VETH_HOP, "switch"),
        ("router", ROUTER),
    ];
    comparisons.extend(pairs.into_iter().flat_map(|(ours, other)| all_kinds(ours, other)));
    let is_first_impression = args.quick && only.is_empty();
    let flows = if is_first_impression { Flow::QUICK } else { Flow::ALL };
    let mut subjects = Chosen { flows, only, congestion }.subjects(measures);
    alternate(&args.plan(), &mut subjects, &comparisons)
}

/// Of two subjects, for each kind of traffic, and for what TCP and UDP cost.
fn all_kinds(ours: &str, other: &str) -> Vec<Comparison> {
    let both = |flow: &Flow| {
        let costs = Comparison::new(flow.case_of_cost(ours), flow.case_of_cost(other));
        [Comparison::new(flow.case(ours), flow.case(other)), costs]
    };
    Flow::ALL.iter().flat_map(both).collect()
}

fn kernel(case: &Case<'_>, link: Link, plan: &Plan) -> Measured {
    let hosts = Hosts::new(link, case.congestion)?;
    figures(case, &hosts, plan, |pause| {
        std::thread::sleep(pause);
        Ok(())
    })
}

fn open_vswitch(case: &Case<'_>, sandbox: &Path, cores: Cores, plan: &Plan) -> Measured {
    let hosts = Hosts::new(Link::Veth, case.congestion)?;
    let switch = Switch::between(sandbox, PORTS, cores)?;
    let measured = figures(case, &hosts, plan, |pause| {
        std::thread::sleep(pause);
        Ok(())
    });
    drop(switch);
    measured
}

/// What packets pass: two ports, and NFs between them.
#[derive(Clone, Copy)]
struct Passed {
    ends: PortKinds,
    between: Between,
}

/// Measures what all flows of a host may share first, and then, with a rule that asks for ports, so that none do, many
/// flows.
fn measure_apart(
    case: &Case<'_>,
    ends: PortKinds,
    measure: impl Fn(&Case<'_>, &[Rule]) -> Measured,
) -> Measured {
    let (many, others): (Vec<Flow>, Vec<Flow>) = case.flows.iter().partition(|flow| **flow == Flow::Flows);
    let mut figures = Vec::new();
    for (flows, rules) in [(others, &[][..]), (many, &[asking_for_ports()][..])] {
        let learns = ends == PortKinds::FastPath && !rules.is_empty();
        if !flows.is_empty() {
            figures.extend(measure(&Case { flows, learns, ..case.clone() }, rules)?);
        }
    }
    Ok(figures)
}

/// A rule for packets that nobody sends.
fn asking_for_ports() -> Rule {
    let matches = Match { source_ports: vec![PortRange::from(UNUSED)], ..Match::default() };
    let actions = Actions { terminal: Some(Action::Drop), ..Actions::default() };
    Rule::from(RuleParts { id: RuleId(1000), name: String::new(), matches, actions })
}

fn netvm(case: &Case<'_>, passed: Passed, cores: Cores, plan: &Plan) -> Measured {
    measure_apart(case, passed.ends, |case, rules| through(case, &Through { passed, cores, rules }, plan))
}

/// What packets pass, and the rules on the way.
struct Through<'a> {
    passed: Passed,
    cores: Cores,
    rules: &'a [Rule],
}

fn through(case: &Case<'_>, through: &Through<'_>, plan: &Plan) -> Measured {
    let Through { passed: Passed { ends, between }, cores, rules } = *through;
    let hosts = Hosts::new(if ends.is_container() { Link::None } else { Link::Veth }, case.congestion)?;
    let (nfs, is_program) = match between {
        Between::Nothing => (0, false),
        Between::Nfs(nfs) => (nfs, false),
        Between::Releasing => (1, false),
        Between::Program => (0, true),
    };
    let program = if is_program { Some(BridgeHop::new()?) } else { None };
    let roles: Vec<String> = (0..nfs).map(|n| format!("nf{n}")).collect();
    let kind = if between == Between::Releasing { Kind::Release } else { Kind::Forward };
    let specs: Vec<_> = roles.iter().map(|role| NfSpec::adaptive(kind, role, cores.engine)).collect();
    let mut layout = Layout::new(cores.engine, Idle::Adaptive);
    let ports = ports(&mut layout, &hosts, ends);
    let mut host = configuration(layout, &ports, &roles, is_program);
    if between == Between::Releasing {
        host.nfs.iter_mut().for_each(|nf| nf.flow_verdicts = FLOW_VERDICTS);
    }
    host.rules.splice(..0, rules.to_vec());
    let mut rig = Rig::start(&host, &specs)?;
    if is_program {
        BridgeHop::until_up(&mut rig)?;
    }
    let measured = figures(case, &hosts, plan, |pause| rig.run(pause));
    // Its interfaces are there as long as the engine's ports.
    drop(rig);
    drop(program);
    measured
}

/// A router with an interface on each of two container ports. Both sides have static neighbour entries, because this
/// router has no kernel that would resolve addresses.
fn router(case: &Case<'_>, ends: PortKinds, cores: Cores, plan: &Plan) -> Measured {
    let passed = Passed { ends, between: Between::Nothing };
    measure_apart(case, ends, |case, rules| routed(case, &Through { passed, cores, rules }, plan))
}

fn routed(case: &Case<'_>, through: &Through<'_>, plan: &Plan) -> Measured {
    let Through { passed: Passed { ends, .. }, cores, rules } = *through;
    let hosts = Hosts::new(Link::Apart, case.congestion)?;
    let mut layout = Layout::new(cores.engine, Idle::Adaptive);
    for (n, (end, mac)) in hosts.all().iter().zip(HOST_MACS).enumerate() {
        let container = ContainerConfig {
            fast_path: ends.fast_path(n),
            namespace: end.namespace.clone(),
            mac: Some(mac),
            addresses: vec![end.address],
            gateways: vec![end.gateway()],
            ..ContainerConfig::default()
        };
        layout.port(&end.port, PortKind::Container(container), 1500);
    }
    for end in hosts.all() {
        layout.port(&format!("{}-kernel", end.port), PortKind::Sink, 1500);
    }
    let mut host = layout.build();
    host.rules = rules.to_vec();
    let interface = |(n, end): (u16, &hosts::End)| RouterInterface {
        name: end.port.clone(),
        port: PortId(n),
        vlan: None,
        mac: ROUTER_MAC,
        addresses: Vec::new(),
        punt_rate: PUNT_RATE,
        urpf: None,
        punt: PortId(n + 2),
        host_end: RouterInterface::host_end_of("bench", &end.port),
        snat: None,
    };
    let interfaces = (0..).zip(hosts.all()).map(interface).collect();
    let (id, name) = (RouterId(0), "bench".to_owned());
    host.routers = vec![RouterConfig {
        id,
        name,
        interfaces,
        routes: Vec::new(),
        track: false,
        weight: 1,
        reserve: 0,
        nat64: None,
    }];
    host.ports[..2].iter_mut().for_each(|port| port.policy.forward = Forward::Router(id));
    let mut rig = Rig::start(&host, &[])?;
    let mut update = Update::default();
    for (n, (end, mac)) in (0u16..).zip(hosts.all().iter().zip(HOST_MACS)) {
        end.add_neighbour(end.gateway(), ROUTER_MAC)?;
        let id = NextHopId(n + 1);
        update.next_hops.push((id, NextHop::Via(Hop { interface: n, mac })));
        update.routes.push((end.prefix(), Some(id)));
    }
    rig.load_routes(&update)?;
    figures(case, &hosts, plan, |pause| rig.run(pause))
}

fn ports(layout: &mut Layout, hosts: &Hosts, ends: PortKinds) -> Vec<PortId> {
    hosts
        .all()
        .iter()
        .enumerate()
        .map(|(n, host)| {
            let interface = || host.port.clone();
            let kind = match ends {
                PortKinds::AfPacket => PortKind::AfPacket { interface: interface() },
                PortKinds::AfXdp => PortKind::AfXdp { interface: interface(), generic: false },
                _ => PortKind::Container(ContainerConfig {
                    namespace: host.namespace.clone(),
                    addresses: vec![host.address],
                    fast_path: ends.fast_path(n),
                    ..ContainerConfig::default()
                }),
            };
            layout.port(&host.port, kind, 1500)
        })
        .collect()
}

fn configuration(mut layout: Layout, ports: &[PortId], roles: &[String], is_program: bool) -> Host {
    if roles.is_empty() && !is_program {
        let mut host = layout.build();
        host.ports.iter_mut().for_each(|port| port.policy.forward = Forward::Normal);
        return host;
    }
    let group = layout.group("nfs", 16_384, 2048);
    let mut hops: Vec<_> = roles.iter().map(|role| layout.nf(role, group)).collect();
    if is_program {
        hops.push(layout.program(hop::ROLE, group, BridgeHop::config()));
    }
    let forward = layout.chain("forward", ports[0], &hops, Output::Port(ports[1]));
    let back = layout.chain("back", ports[1], &hops, Output::Port(ports[0]));
    if is_program {
        layout.reverse(back, forward);
    }
    layout.build()
}
