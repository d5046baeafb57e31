// SPDX-License-Identifier: Apache-2.0
//! `hop`: the cost of a round trip of packets to an NF process on another core, with all checks.
//!
//! ```text
//!  core A   null port -> engine -> ring          ring -> engine, checks -> null port
//!  core B                           NF, which forwards every burst
//! ```
//!
//! Peers, on the same two cores in the same run:
//!
//! - `rte-ring`: DPDK's ring of mbuf pointers between two threads, with an ordinary pool and no checks. The second
//!   thread writes its verdict into the mbuf and the first acts on it, as in openNetVM; both free packets that do not
//!   fit into the ring. `rte-ring-extbuf`: the same with a pool like netvm's.
//! - `rte-ring-64`: in bursts of up to 64 packets, as netvm's engine, instead of 32 as in openNetVM.
//! - `rte-ring-wait`: core A checks for room before it receives, which saves work on packets that would be dropped.
//! - `rte-ring-blind…`: the second thread does not read the mbufs. It is not an NF then, as it can neither find a
//!   packet nor give a verdict (which netvm's descriptors carry); it shows the cost of pointer rings alone.
//! - `memif`: the NF is a `dpdk-testpmd` with a `net_memif` client, which returns each burst; both sides copy.
//! - `memif-hop`: a hop of a chain with two memifs, between which `dpdk-testpmd` forwards.
//! - `testpmd-macswap`: `dpdk-testpmd` between the same null ports on one core, without a second thread.

use std::time::{Duration, Instant};

use netvm_engine::ProgramState;
use netvm_model::{
    Attach, Forward, Idle, MemifConfig, Output, PairConfig, PairEnd, PairSide, PortId, PortKind,
};
use netvm_region::NfCounter;

use crate::cli::BenchArgs;
use crate::error::BenchError;
use crate::machine::Cores;
use crate::measure::distance;
use crate::measure::harness::{Comparison, Figure, Measured, Plan, Subject, alternate_under};
use crate::measure::report::{Row, Unit};
use crate::measure::window::Window;
use crate::nf::{Kind, NfSpec};
use crate::peers::{guests, ring, testpmd};
use crate::setup::layout::Layout;
use crate::setup::rig::Rig;

/// Buffers, and mbufs of the peers: few, so that all pools stay in the caches.
const BUFFERS: u32 = 4096;
/// Packet size in bytes, as DPDK's null device counts.
const PACKET: u16 = 64;
/// Time limit for a program to forward.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(20);

/// Runs the benchmark.
///
/// # Errors
/// [`BenchError`] if any case has no figure.
pub fn measure(args: &BenchArgs) -> Result<Vec<Row>, BenchError> {
    let cores = args.cores()?;
    let mut subjects = vec![Subject::new("hop", move |plan| hop(cores, plan))];
    let mut comparisons = Vec::new();
    if args.skip_peers {
        eprintln!("skipping peers (--skip-peers)");
    } else {
        testpmd::find()?;
        subjects.push(Subject::new("memif", move |plan| memif(cores, plan)));
        comparisons.push(Comparison::new("memif", "hop"));
        subjects.push(Subject::new("memif-hop", move |plan| memif_hop(cores, plan)));
        comparisons.push(Comparison::new("memif-hop", "hop"));
        let (extbuf, wait, blind) = (true, true, true);
        let plain = ring::Variant::default();
        for (name, variant) in [
            ("rte-ring", plain),
            ("rte-ring-wait", ring::Variant { wait, ..plain }),
            ("rte-ring-64", ring::Variant { burst: 64, ..plain }),
            ("rte-ring-extbuf", ring::Variant { extbuf, ..plain }),
            ("rte-ring-blind", ring::Variant { blind, ..plain }),
            ("rte-ring-blind-wait", ring::Variant { blind, wait, ..plain }),
            ("rte-ring-blind-extbuf", ring::Variant { blind, extbuf, ..plain }),
        ] {
            subjects.push(Subject::new(name, move |plan| {
                let spec = ring::RingSpec::new(variant, cores, BUFFERS, plan);
                Ok(vec![Figure::new(name, Unit::Mpps, ring::measure(&spec)?)])
            }));
            comparisons.push(Comparison::new("hop", name));
        }
        subjects.push(Subject::new("testpmd-macswap", move |plan| {
            Ok(vec![Figure::new("testpmd-macswap", Unit::Mpps, testpmd::measure(cores, BUFFERS, plan)?)])
        }));
        comparisons.push(Comparison::new("hop", "testpmd-macswap"));
    }
    alternate_under(Some(distance::condition(cores)), &args.plan(), &mut subjects, &comparisons)
}

fn hop(cores: Cores, plan: &Plan) -> Result<Vec<Figure>, BenchError> {
    let mut layout = Layout::new(cores.engine, Idle::Poll);
    let group = layout.group("hop", BUFFERS, 2048);
    let null = layout.port("null", PortKind::Null { size: PACKET }, 1500);
    let nf = layout.nf("forward", group);
    layout.chain("hop", null, &[nf], Output::Port(null));
    let spec = NfSpec { poll: true, ..NfSpec::adaptive(Kind::Forward, "forward", cores.nf) };
    let mut rig = Rig::start(&layout.build(), &[spec])?;
    let window = rig.measure("hop", plan.warm_up, plan.window)?;
    window.check_forwarded("hop")?;

    let mut figures = vec![Figure::new("hop", Unit::Mpps, window.mpps())];
    figures.push(Figure::new("hop engine cycles", Unit::CyclesPerPacket, window.engine_cycles_per_packet()));
    figures.extend(window.stages("hop"));
    let packets = window.of_nf(0, NfCounter::Received).max(1) as f64;
    let cycles = window.of_nf(0, NfCounter::Cycles) as f64;
    figures.push(Figure::new("hop nf cycles", Unit::CyclesPerPacket, cycles / packets));
    let offered = window.received().max(1) as f64;
    let dropped = window.dropped_in_all() as f64 / offered * 100.0;
    figures.push(Figure::new("hop dropped at entry", Unit::Percent, dropped));
    Ok(figures)
}

/// From the null port to a memif, and back from there.
fn memif(cores: Cores, plan: &Plan) -> Measured {
    let folder = tempfile::tempdir().map_err(BenchError::system("cannot make a folder for a socket"))?;
    let path = folder.path().join("memif.sock");
    let mut layout = Layout::new(cores.engine, Idle::Poll);
    let group = layout.group("memif", BUFFERS, 2048);
    let null = layout.port("null", PortKind::Null { size: PACKET }, 1500);
    let config = MemifConfig { path: path.clone(), ..MemifConfig::default() };
    let memif = layout.port("memif", PortKind::Memif(config), 1500);
    let mut host = layout.build();
    for (port, to) in host.ports.iter_mut().zip([memif, null]) {
        (port.group, port.policy.forward) = (Some(group), Forward::Port(to));
    }
    let mut rig = Rig::start(&host, &[])?;
    let _program = guests::returner(folder.path(), &path, cores.nf)?;
    rig.run(plan.warm_up)?;
    let (before, start) = (sent_by(&mut rig, null), rig.sample());
    // The null port always has more packets than the ring has room for: they are dropped there, and not at a chain.
    rig.run(plan.window)?;
    let window = Window::between(start, rig.sample());
    window.warn_if_disturbed("memif");
    let returned = sent_by(&mut rig, null).saturating_sub(before);
    if returned == 0 {
        return Err(BenchError::Nothing { what: "memif".to_owned(), seconds: window.seconds() });
    }
    let mut figures = vec![Figure::new("memif", Unit::Mpps, returned as f64 / window.seconds() / 1e6)];
    let cycles = window.busy_cycles() as f64 / returned as f64;
    figures.push(Figure::new("memif engine cycles", Unit::CyclesPerPacket, cycles));
    figures.extend(window.stages("memif"));
    Ok(figures)
}

/// From the null port through a chain whose hop is a `dpdk-testpmd` between two memifs, and back.
fn memif_hop(cores: Cores, plan: &Plan) -> Measured {
    let folder = tempfile::tempdir().map_err(BenchError::system("cannot make a folder for sockets"))?;
    let mut layout = Layout::new(cores.engine, Idle::Poll);
    let group = layout.group("memif", BUFFERS, 2048);
    let null = layout.port("null", PortKind::Null { size: PACKET }, 1500);
    let pair = PairConfig { sockets: folder.path().to_owned(), ..PairConfig::new(Attach::Memif) };
    let role = layout.program("program", group, pair);
    layout.chain("hop", null, &[role], Output::Port(null));
    let mut host = layout.build();
    host.ports[null.index()].group = Some(group);
    let mut rig = Rig::start(&host, &[])?;
    let sockets =
        PairSide::BOTH.map(|side| PairEnd { role: "program", instance: 0, side }.socket(folder.path()));
    let _program = guests::forwarder(folder.path(), &sockets, cores.nf)?;
    let what = "memif-hop";
    let start = Instant::now();
    while rig.engine().programs().iter().any(|program| program.state != ProgramState::Up) {
        if start.elapsed() > PROGRAM_TIMEOUT {
            let seconds = PROGRAM_TIMEOUT.as_secs_f64();
            return Err(BenchError::Nothing { what: what.to_owned(), seconds });
        }
        rig.run(Duration::from_millis(5))?;
    }
    rig.run(plan.warm_up)?;
    let (before, start) = (sent_by(&mut rig, null), rig.sample());
    rig.run(plan.window)?;
    let window = Window::between(start, rig.sample());
    window.warn_if_disturbed(what);
    let returned = sent_by(&mut rig, null).saturating_sub(before);
    if returned == 0 {
        return Err(BenchError::Nothing { what: what.to_owned(), seconds: window.seconds() });
    }
    let mut figures = vec![Figure::new(what, Unit::Mpps, returned as f64 / window.seconds() / 1e6)];
    let cycles = window.busy_cycles() as f64 / returned as f64;
    figures.push(Figure::new("memif-hop engine cycles", Unit::CyclesPerPacket, cycles));
    figures.extend(window.stages(what));
    Ok(figures)
}

/// Packets that a port has sent.
fn sent_by(rig: &mut Rig, id: PortId) -> u64 {
    rig.engine().ports().iter().find(|port| port.id == id).map_or(0, |port| port.tx_packets)
}
