// SPDX-License-Identifier: Apache-2.0
//! `vhost`: L2 switching with learning between two vhost-user guests on one core: netvm, Open vSwitch with DPDK, and as
//! the minimum `dpdk-testpmd`, which forwards between two `net_vhost` ports (`floor`). The guests (`peers/guests.rs`)
//! and the names of the sockets are the same for all.
//!
//! Cases are `netvm-normal-FLOWS`, `netvm-memif-FLOWS` (the same guests by memif), `ovs-normal-FLOWS` and
//! `floor-FLOWS`, with the suffix `-1500B` for frames longer than 64 bytes (FCS included). Rates are packets
//! sent to the second guest per second of CPU time of the switching thread, which polls.

use std::path::{Path, PathBuf};

use netvm_model::{Forward, Host, Idle, MemifConfig, PortKind, VhostDma, VhostMode};

use crate::cli::VhostArgs;
use crate::error::BenchError;
use crate::machine::Cores;
use crate::measure::harness::{Comparison, Figure, Measured, Plan, Subject, alternate};
use crate::measure::report::{Row, Unit};
use crate::peers::guests::{Cards, Guests, Load, floor, sockets};
use crate::peers::ovs::{self, NORMAL, PortKinds, Setup};
use crate::peers::testpmd;
use crate::setup::layout::Layout;
use crate::setup::rig::Rig;
use crate::setup::sandbox;
use crate::setup::traffic::Traffic;

/// Enough buffers for all packets in flight, but few, so that they stay in the caches.
const BUFFERS: u32 = 4096;
const FCS: u16 = 4;
/// The frame size without a suffix in the case's name.
const MIN_FRAME: u16 = 64;

/// Runs the benchmark.
///
/// # Errors
/// [`BenchError`] if any case has no figure.
pub fn measure(args: &VhostArgs) -> Result<Vec<Row>, BenchError> {
    let cores = args.bench.cores()?;
    testpmd::find()?;
    if !args.bench.skip_peers {
        ovs::find()?;
    }
    // The folder also holds the guests' sockets and files.
    let sandbox = sandbox::enter()?;
    let sandbox = sandbox.as_path();
    let mut subjects: Vec<Subject<'_>> = Vec::new();
    let mut comparisons = Vec::new();
    for (size, flows) in
        args.sizes.iter().flat_map(|size| args.flows.iter().map(move |flows| (*size, *flows)))
    {
        let load =
            Load { bytes: size - FCS, traffic: Traffic::of(flows), rings: args.rings, is_timed: false };
        let suffix = if size == MIN_FRAME { String::new() } else { format!("-{size}B") };
        let [ours, by_memif, peer, least] = ["netvm-normal", "netvm-memif", "ovs-normal", "floor"]
            .map(|name| format!("{name}-{flows}{suffix}"));
        for (case, cards) in [(&ours, Cards::VirtioUser), (&by_memif, Cards::Memif)] {
            let name = case.clone();
            subjects.push(Subject::new(case, move |plan| {
                netvm(GuestCase { name: &name, load, cards }, sandbox, cores, plan)
            }));
        }
        comparisons.push(Comparison::new(&by_memif, &ours));
        let name = least.clone();
        subjects.push(Subject::new(&least, move |plan| {
            let rate = floor(&folder(sandbox, "floor")?, load, cores, plan)?;
            Ok(vec![Figure::new(&name, Unit::Mpps, rate)])
        }));
        comparisons.push(Comparison::new(&ours, &least));
        if !args.bench.skip_peers {
            let name = peer.clone();
            subjects.push(Subject::new(&peer, move |plan| {
                let flows = [NORMAL.to_owned()];
                let setup = Setup {
                    flows: &flows,
                    signature_cache: false,
                    tracks: false,
                    ends: PortKinds::Guests(load),
                };
                let outcome = ovs::measure(sandbox, setup, cores, plan)?;
                Ok(vec![Figure::new(&name, Unit::Mpps, outcome.mpps)])
            }));
            comparisons.push(Comparison::new(&ours, &peer));
        }
    }
    alternate(&args.bench.plan(), &mut subjects, &comparisons)
}

/// A new folder in memory.
pub(crate) fn folder(sandbox: &Path, name: &str) -> Result<PathBuf, BenchError> {
    let folder = sandbox.join(name);
    // An earlier case may have left it.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir(&folder)
        .map_err(BenchError::system(format!("cannot create {}", folder.display())))?;
    Ok(folder)
}

/// Two ports for guests with such cards, with L2 switching.
pub(crate) fn host(cards: Cards, folder: &Path, core: u32) -> Host {
    let mut layout = Layout::new(core, Idle::Poll);
    let group = layout.group("guests", BUFFERS, 2048);
    for (name, path) in ["a", "b"].into_iter().zip(sockets(folder)) {
        let kind = match cards {
            Cards::VirtioUser => PortKind::VhostUser { path, mode: VhostMode::Server, dma: VhostDma::Off },
            Cards::Memif => PortKind::Memif(MemifConfig { path, ..MemifConfig::default() }),
        };
        layout.port(name, kind, 1500);
    }
    let mut host = layout.build();
    for port in &mut host.ports {
        port.group = Some(group);
        port.policy.forward = Forward::Normal;
    }
    host
}

/// A case with guests.
#[derive(Clone, Copy)]
pub(in crate::cases) struct GuestCase<'a> {
    pub(in crate::cases) name: &'a str,
    pub(in crate::cases) load: Load,
    pub(in crate::cases) cards: Cards,
}

fn netvm(case: GuestCase<'_>, sandbox: &Path, cores: Cores, plan: &Plan) -> Measured {
    let GuestCase { name, load, cards } = case;
    let folder = folder(sandbox, "netvm")?;
    let mut rig = Rig::start(&host(cards, &folder, cores.engine), &[])?;
    let guests = Guests::start_by(cards, &folder, load, cores.nf)?;
    let window = rig.watch(plan)?;
    drop(guests);
    window.warn_if_disturbed(name);
    window.check_forwarded(name)?;
    let mut figures = vec![Figure::new(name, Unit::Mpps, window.per_core(window.sent()))];
    figures.push(Figure::new(
        format!("{name} engine busy"),
        Unit::CyclesPerPacket,
        window.engine_cycles_per_packet(),
    ));
    figures.extend(window.stages(name));
    Ok(figures)
}
