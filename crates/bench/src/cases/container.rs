//! `container`: TCP and UDP between two network namespaces, through netvm and through the kernel's bridge and routing.
//!
//! ```text
//!  iperf3 client ── namespace a ── netvm's switch, or a chain of NFs, or the kernel's bridge ── namespace b ── iperf3 server
//! ```
//!
//! Cases of TCP are `SUBJECT`, `SUBJECT-reverse` (the server sends), and `SUBJECT-8` (eight connections), in bits of
//! payload per second as the receiver counts them. `SUBJECT-udp-64B` and `-udp-1500B` are packets that the receiver
//! got per second, of frames of that length with FCS. Nothing is pinned but netvm's worker.

mod hosts;
mod iperf;

use netvm_config::model::{ContainerConfig, Forward, Host, Idle, Output, PortId, PortKind};

use crate::cli::BenchArgs;
use crate::error::BenchError;
use crate::harness::{Comparison, Measured, Plan, Subject, alternate};
use crate::layout::Layout;
use crate::machine::Cores;
use crate::nf::{Kind, NfSpec};
use crate::report::Row;
use crate::rig::Rig;
use hosts::{Hosts, Link};
use iperf::{Flow, figures};

/// The kernel's own, which all are compared with.
const BRIDGE: &str = "kernel-bridge";
const ROUTER: &str = "kernel-router";
/// What netvm does with the packets.
const SWITCHES: [(&str, Ends, usize); 5] = [
    ("switch", Ends::Container, 0),
    ("switch-af-packet", Ends::AfPacket, 0),
    ("switch-af-xdp", Ends::AfXdp, 0),
    ("chain-1", Ends::Container, 1),
    ("chain-3", Ends::Container, 3),
];

/// The kind of both ports.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    Container,
    AfPacket,
    AfXdp,
}

/// Runs the benchmark.
///
/// # Errors
/// [`BenchError`] if any case has no figure.
pub fn measure(args: &BenchArgs) -> Result<Vec<Row>, BenchError> {
    let cores = args.cores()?;
    iperf::find()?;
    hosts::enter_private_network()?;
    let mut subjects: Vec<Subject<'_>> = vec![Subject::new(BRIDGE, |plan| kernel(BRIDGE, plan))];
    for (name, ends, nfs) in SWITCHES {
        subjects.push(Subject::new(name, move |plan| netvm(name, ends, nfs, cores, plan)));
    }
    subjects.push(Subject::new(ROUTER, |plan| kernel(ROUTER, plan)));
    let mut comparisons = Vec::new();
    for (name, ..) in SWITCHES {
        for flow in Flow::ALL {
            comparisons.push(Comparison::new(flow.case(name), flow.case(BRIDGE)));
        }
    }
    alternate(&args.plan(), &mut subjects, &comparisons)
}

fn kernel(name: &str, plan: &Plan) -> Measured {
    let link = if name == BRIDGE { Link::Bridge } else { Link::Router };
    let hosts = Hosts::new(link)?;
    figures(name, &hosts, plan, |pause| {
        std::thread::sleep(pause);
        Ok(())
    })
}

fn netvm(name: &str, ends: Ends, nfs: usize, cores: Cores, plan: &Plan) -> Measured {
    let hosts = Hosts::new(if ends == Ends::Container { Link::None } else { Link::Veth })?;
    let roles: Vec<String> = (0..nfs).map(|n| format!("nf{n}")).collect();
    let specs: Vec<_> = roles.iter().map(|role| NfSpec::adaptive(Kind::Forward, role, cores.nf)).collect();
    let mut rig = Rig::start(&configuration(&hosts, ends, &roles, cores), &specs)?;
    figures(name, &hosts, plan, |pause| rig.run(pause))
}

fn configuration(hosts: &Hosts, ends: Ends, roles: &[String], cores: Cores) -> Host {
    let mut layout = Layout::new(cores.engine, Idle::Adaptive);
    let ports: Vec<PortId> = hosts
        .all()
        .iter()
        .map(|host| {
            let interface = || host.port.clone();
            let kind = match ends {
                Ends::AfPacket => PortKind::AfPacket { interface: interface() },
                Ends::AfXdp => PortKind::AfXdp { interface: interface(), generic: false },
                Ends::Container => PortKind::Container(ContainerConfig {
                    namespace: host.namespace.clone(),
                    addresses: vec![host.address],
                    ..ContainerConfig::default()
                }),
            };
            layout.port(&host.port, kind, 1500)
        })
        .collect();
    if roles.is_empty() {
        let mut host = layout.build();
        host.ports.iter_mut().for_each(|port| port.policy.forward = Forward::Normal);
        return host;
    }
    let group = layout.group("nfs", 16_384, 2048);
    let hops: Vec<_> = roles.iter().map(|role| layout.nf(role, group)).collect();
    layout.chain("there", ports[0], &hops, Output::Port(ports[1]));
    layout.chain("back", ports[1], &hops, Output::Port(ports[0]));
    layout.build()
}
