// SPDX-License-Identifier: Apache-2.0
//! `vxlan`: what a tunnel costs. TCP between two network namespaces, and packets of 64 bytes, through VXLAN and
//! without.
//!
//! ```text
//!  switch                    namespace a ── L2 switching ── namespace b
//!  patch                     a ── L2 switching ── patch ── L2 switching ── b
//!  vxlan                     a ── L2 switching ── VTEP ── router ── patch ── router ── VTEP ── L2 switching ── b
//!  wire-KIND                 a ── L2 switching ── port of this kind ── veth ── b
//!  wire-KIND-vxlan           a ── L2 switching ── VTEP ── router ── port of this kind ── veth ── b: kernel's vxlan
//!  kernel-wire, kernel-vxlan the kernel's bridge in place of netvm
//!  ovs-wire, ovs-vxlan…      Open vSwitch in place of netvm
//! ```
//!
//! Packets of the namespaces are up to 1500 bytes long in all cases, and those between VTEPs 1550. TCP has the cases of
//! `container` (`-reverse`, `-8`). `switch`, `patch` and `vxlan` have no wire: segments pass whole, so they show the
//! cost of headers, routes and look-ups. Between netvm and a `wire`, segments are cut for tunnels, because packet
//! sockets cannot tell the kernel of inner ones. `ovs-vxlan` is the installed Open vSwitch without
//! `userspace-tso-enable`, with which it drops segments that are for a tunnel; `ovs-vxlan-tso` is that of Debian 13
//! with it.
//!
//! - `normal-64B`: packets of 64 bytes (FCS included) that one worker switches by MAC address.
//! - `vxlan-encap-64B`: the same to a VTEP, encapsulated and routed to a port.
//! - `vxlan-64B`: as `vxlan`: encapsulated, and decapsulated by the same worker.

mod kernel;
mod small;
mod topology;

use std::path::Path;

use netvm_model::Idle;

use super::container::CUBIC;
use super::container::hosts::{self, Hosts, Link, PORTS, run};
use super::container::iperf::{self, Case, Chosen, Flow, Measure, figures};
use crate::cli::ContainerArgs;
use crate::error::BenchError;
use crate::machine::Cores;
use crate::measure::harness::{Comparison, Measured, Plan, Subject, alternate};
use crate::measure::report::Row;
use crate::peers::ovs::{Release, Switch, Tunnel, UNDERLAY};
use crate::setup::layout::Layout;
use crate::setup::rig::Rig;
use kernel::Bridge;
use topology::{FAR_VTEP, NEAR_VTEP_NET, Path as Way, UNDERLAY_MTU, VNI};

/// Kinds of TCP traffic.
const FLOWS: [Flow; 3] = [Flow::Tcp, Flow::Reverse, Flow::Eight];

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
    let mut measures: Vec<(&'static str, Measure<'_>)> = Vec::new();
    for way in Way::ALL {
        measures.push((way.name(), Box::new(move |case, plan| netvm(case, way, cores, plan))));
    }
    for (name, has_tunnel) in [("kernel-wire", false), ("kernel-vxlan", true)] {
        measures.push((name, Box::new(move |case, plan| kernel(case, has_tunnel, plan))));
    }
    if let Some(sandbox) = &sandbox {
        for (name, release) in [
            ("ovs-wire", None),
            ("ovs-vxlan", Some(Release::Installed)),
            ("ovs-vxlan-tso", Some(Release::Later)),
        ] {
            if release.is_some_and(|release| !release.is_there()) {
                eprintln!("skipping {name}: tools/setup/peer.sh openvswitch-dpdk unpacks it");
                continue;
            }
            let switch = OvsCase { release, sandbox, cores };
            measures.push((name, Box::new(move |case, plan| open_vswitch(case, &switch, plan))));
        }
    }
    let chosen = Chosen { flows: &FLOWS, only, congestion };
    let mut subjects = chosen.subjects(measures);
    for case in small::CASES.into_iter().filter(|case| chosen.has(case.name())) {
        subjects.push(Subject::new(case.name(), move |plan| small::measure(case, cores, plan)));
    }
    alternate(&args.plan(), &mut subjects, &comparisons())
}

/// Those with a case that was not measured are left out.
fn comparisons() -> Vec<Comparison> {
    let of_tcp = [
        ("vxlan", "switch"),
        ("vxlan", "patch"),
        ("wire-af-packet-vxlan", "wire-af-packet"),
        ("wire-af-xdp-vxlan", "wire-af-xdp"),
        ("kernel-vxlan", "kernel-wire"),
        ("ovs-vxlan", "ovs-wire"),
        ("wire-af-packet-vxlan", "kernel-vxlan"),
        ("wire-af-packet-vxlan", "ovs-vxlan"),
        ("wire-af-packet-vxlan", "ovs-vxlan-tso"),
        ("wire-af-xdp-vxlan", "ovs-vxlan"),
        ("wire-af-xdp-vxlan", "ovs-vxlan-tso"),
        ("vxlan", "ovs-vxlan-tso"),
    ];
    let each = FLOWS
        .into_iter()
        .flat_map(|flow| of_tcp.map(|(ours, other)| Comparison::new(flow.case(ours), flow.case(other))));
    let of_packets = ["vxlan-encap-64B", "vxlan-64B"].map(|ours| Comparison::new(ours, "normal-64B"));
    each.chain(of_packets).collect()
}

fn netvm(case: &Case<'_>, way: Way, cores: Cores, plan: &Plan) -> Measured {
    let hosts = Hosts::new(if way.wire().is_some() { Link::Far } else { Link::None }, case.congestion)?;
    if way.wire().is_some_and(|wire| wire.has_tunnel) {
        topology::add_tunnel(&hosts)?;
        topology::add_static_neighbours(&hosts)?;
    }
    let (host, routes) = topology::host(Layout::new(cores.engine, Idle::Adaptive), &hosts, way);
    let mut rig = Rig::start(&host, &[])?;
    for (router, update) in &routes {
        rig.load_routes_of(*router, update)?;
    }
    figures(case, &hosts, plan, |pause| rig.run(pause))
}

fn kernel(case: &Case<'_>, has_tunnel: bool, plan: &Plan) -> Measured {
    let hosts = Hosts::new(Link::Veth, case.congestion)?;
    if has_tunnel {
        topology::add_tunnel(&hosts)?;
    }
    let bridge = Bridge::new(has_tunnel)?;
    let measured = figures(case, &hosts, plan, |pause| {
        std::thread::sleep(pause);
        Ok(())
    });
    drop(bridge);
    measured
}

/// What Open vSwitch does.
#[derive(Clone, Copy)]
struct OvsCase<'a> {
    /// The release whose tunnel it is; `None`: no tunnel.
    release: Option<Release>,
    sandbox: &'a Path,
    cores: Cores,
}

fn open_vswitch(case: &Case<'_>, switch: &OvsCase<'_>, plan: &Plan) -> Measured {
    let OvsCase { release, sandbox, cores } = *switch;
    let hosts = Hosts::new(Link::Veth, case.congestion)?;
    let switch = match release {
        None => Switch::between(sandbox, PORTS, cores)?,
        Some(release) => {
            topology::add_tunnel(&hosts)?;
            let first = if release == Release::Installed { 0 } else { 1 };
            topology::finish_checksums(&hosts.all()[first..])?;
            let vteps = [NEAR_VTEP_NET, FAR_VTEP];
            let tunnel = Tunnel { interfaces: PORTS, vteps, vni: VNI, mtu: UNDERLAY_MTU, release };
            Switch::with_tunnel(sandbox, tunnel, cores)?
        }
    };
    let measured = figures(case, &hosts, plan, |pause| {
        std::thread::sleep(pause);
        Ok(())
    });
    drop(switch);
    if release.is_some() {
        // Open vSwitch makes devices that outlive it, and this one has the VTEP's address.
        run(&format!("link delete {UNDERLAY}"))?;
    }
    measured
}
