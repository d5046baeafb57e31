// SPDX-License-Identifier: Apache-2.0
//! `latency`: how long packets take, against load (NetVM, figure 13). Two parts:
//!
//! - `nfs-N`: within the engine and its NFs, from reception until the device has the packet again, as
//!   `netvm stats --latency` measures it. A built-in source sends single packets at even intervals to a port, without
//!   NFs and through chains of one and three, at 10, 50 and 90 % of the highest lossless rate. The engine polls on core
//!   A. One NF polls on core B; three share core B and wait adaptively, so their times include the scheduler's.
//! - `netvm-vhost`, `ovs-vhost`, `testpmd-vhost`: from one vhost-user guest to another through L2 switching, beside
//!   Open vSwitch with DPDK and `dpdk-testpmd` (which forwards without a lookup). The guests measure, in the same way
//!   for all (`peer/traffic/timing.c`): from the time at which a packet was due to be sent until the other guest has
//!   received it. Both guests share a thread on core B, so every figure includes a turn of its loop.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use netvm_engine::{LatencyView, Span};
use netvm_model::{Action, Idle, Output, PortKind, SourceConfig};

use crate::cases::guests::vhost::{self, GuestCase};
use crate::cli::LatencyArgs;
use crate::error::BenchError;
use crate::machine::Cores;
use crate::measure::harness::{Comparison, Figure, Measured, Plan, Subject, alternate};
use crate::measure::report::{Row, Unit};
use crate::nf::{Kind, NfSpec};
use crate::peers::guests::{Cards, Guests, Load, Rings, over_floor};
use crate::peers::timing::Times;
use crate::peers::{ovs, testpmd};
use crate::setup::layout::{Layout, lossless};
use crate::setup::rig::Rig;
use crate::setup::sandbox;
use crate::setup::traffic::Traffic;

const BUFFERS: u32 = 8192;
const FRAME: u16 = 60;
/// NFs of the chain.
const LENGTHS: [usize; 3] = [0, 1, 3];
/// Shares of the highest lossless rate, in percent.
const LOADS: [u64; 3] = [10, 50, 90];
/// Rates offered to every switch between guests, in million packets per second. Half of a switch's highest rate is
/// added.
const RATES: [f64; 4] = [0.1, 0.5, 1.0, 2.0];
/// Quantiles of the delays that are reported.
const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];

/// Runs the benchmark.
///
/// # Errors
/// [`BenchError`] if any case has no figure.
pub fn measure(args: &LatencyArgs) -> Result<Vec<Row>, BenchError> {
    let cores = args.bench.cores()?;
    testpmd::find()?;
    if !args.bench.skip_peers {
        ovs::find()?;
    }
    // The folder holds the guests' sockets and files.
    let sandbox = sandbox::enter()?;
    let sandbox = sandbox.as_path();
    let case = |length| Subject::new(format!("nfs-{length}"), move |plan: &Plan| within(length, cores, plan));
    let mut subjects: Vec<_> = LENGTHS.into_iter().map(case).collect();
    let [ours, peer, least] = ["netvm-vhost", "ovs-vhost", "testpmd-vhost"];
    let load = Load { bytes: FRAME, traffic: Traffic::of(1), rings: Rings::Packed, is_timed: true };
    subjects.push(Subject::new(ours, move |plan: &Plan| {
        netvm(GuestCase { name: ours, load, cards: Cards::VirtioUser }, sandbox, cores, plan)
    }));
    let mut peers = Vec::new();
    if !args.bench.skip_peers {
        subjects.push(Subject::new(least, move |plan: &Plan| {
            over_floor(&vhost::folder(sandbox, "floor")?, load, cores, |guests| {
                at_rates(least, guests, plan, idle)
            })
        }));
        subjects.push(Subject::new(peer, move |plan: &Plan| {
            ovs::over(sandbox, load, cores, |guests| at_rates(peer, guests, plan, idle))
        }));
        peers = vec![least, peer];
    }
    subjects.retain(|subject| subject.is_chosen(&args.only));
    let comparisons: Vec<_> = peers.iter().flat_map(|other| ratios(ours, other)).collect();
    alternate(&args.bench.plan(), &mut subjects, &comparisons)
}

fn ratios(ours: &str, other: &str) -> impl Iterator<Item = Comparison> {
    let of = |name: &str, load: &str, quantile: &str| format!("{name} {load} {quantile}");
    let cases = ["0.5 Mpps", "half load"].into_iter().flat_map(|load| ["p50", "p99"].map(|q| (load, q)));
    cases.map(move |(load, quantile)| Comparison::new(of(ours, load, quantile), of(other, load, quantile)))
}

fn start(length: usize, cores: Cores, source: PortKind) -> Result<Rig, BenchError> {
    let mut layout = Layout::new(cores.engine, Idle::Poll);
    let group = layout.group("latency", BUFFERS, 2048);
    let source = layout.port("source", source, 1500);
    let roles: Vec<String> = (1..=length).map(|n| format!("nf{n}")).collect();
    let hops: Vec<_> = roles.iter().map(|role| layout.nf(role, group)).collect();
    if hops.is_empty() {
        layout.rule(source, Action::Port(source));
    } else {
        layout.chain("latency", source, &hops, Output::Port(source));
    }
    let spec =
        |role: &String| NfSpec { poll: length == 1, ..NfSpec::adaptive(Kind::Forward, role, cores.nf) };
    Rig::start(&layout.build(), &roles.iter().map(spec).collect::<Vec<_>>())
}

/// Latency within the engine and `length` NFs.
fn within(length: usize, cores: Cores, plan: &Plan) -> Measured {
    let what = format!("nfs-{length}");
    let highest = {
        let mut rig = start(length, cores, lossless(FRAME))?;
        rig.measure(&what, plan.warm_up, plan.window)?.mpps()
    };
    let mut figures = vec![Figure::new(format!("{what} highest rate"), Unit::Mpps, highest)];
    for load in LOADS {
        let rate = (highest * 1e4 * load as f64) as u64;
        let source = SourceConfig { size: FRAME, rate: Some(rate), burst: 1, ..SourceConfig::default() };
        let mut rig = start(length, cores, PortKind::Source(source))?;
        rig.engine().reset_latencies();
        rig.run(plan.warm_up)?;
        rig.engine().reset_latencies();
        let view = port_latency(&mut rig, &format!("{what} at {load} %"), plan)?;
        for (name, share) in QUANTILES {
            let micros = view.quantile(share).as_secs_f64() * 1e6;
            figures.push(Figure::new(format!("{what} {load}% {name}"), Unit::Micros, micros));
        }
        let samples = view.histogram.len() as f64;
        figures.push(Figure::new(format!("{what} {load}% samples"), Unit::Count, samples));
    }
    Ok(figures)
}

/// The latency from port to port in a window, which is extended if the engine did not have its core.
fn port_latency(rig: &mut Rig, what: &str, plan: &Plan) -> Result<LatencyView, BenchError> {
    for _ in 0..10 {
        rig.run(plan.window)?;
        let views = rig.engine().latencies();
        if let Some(view) = views.into_iter().find(|view| matches!(view.span, Span::Ports(..))) {
            return Ok(view);
        }
    }
    Err(BenchError::Nothing { what: what.to_owned(), seconds: 10.0 * plan.window.as_secs_f64() })
}

/// Waits; there is no engine to run.
#[expect(clippy::unnecessary_wraps, reason = "same signature as running an engine, which may fail")]
fn idle(time: Duration) -> Result<(), BenchError> {
    sleep(time);
    Ok(())
}

fn netvm(case: GuestCase<'_>, sandbox: &Path, cores: Cores, plan: &Plan) -> Measured {
    let GuestCase { name, load, cards } = case;
    let folder = vhost::folder(sandbox, "netvm")?;
    let mut rig = Rig::start(&vhost::host(cards, &folder, cores.engine), &[])?;
    let guests = Guests::start(&folder, load, cores.nf)?;
    at_rates(name, &guests, plan, |time| rig.run(time))
}

/// Latency from guest to guest at each rate.
fn at_rates(
    name: &str,
    guests: &Guests,
    plan: &Plan,
    mut pause: impl FnMut(Duration) -> Result<(), BenchError>,
) -> Measured {
    let mut at = |rate: Option<f64>| -> Result<Times, BenchError> {
        let nothing = || BenchError::Nothing { what: name.to_owned(), seconds: plan.window.as_secs_f64() };
        let timing = guests.timing().ok_or_else(nothing)?;
        timing.offer(rate)?;
        pause(plan.warm_up)?;
        let before = timing.read()?;
        pause(plan.window)?;
        timing.read()?.since(&before).ok_or_else(nothing)
    };
    let highest = at(None)?.received;
    let mut figures = vec![Figure::new(format!("{name} highest rate"), Unit::Mpps, highest / 1e6)];
    let rates = RATES.map(|rate| (format!("{rate} Mpps"), rate * 1e6));
    for (load, rate) in rates.into_iter().chain([("half load".to_owned(), highest / 2.0)]) {
        let times = at(Some(rate))?;
        for (quantile, share) in QUANTILES {
            figures.push(Figure::new(format!("{name} {load} {quantile}"), Unit::Micros, times.micros(share)));
        }
        let received = times.received / times.offered.max(1.0) * 100.0;
        figures.push(Figure::new(format!("{name} {load} received"), Unit::Percent, received));
    }
    Ok(figures)
}
