// SPDX-License-Identifier: Apache-2.0
//! `chain`: chains of 1, 2, 4 and 8 NFs of one trust group.
//!
//! The engine runs on core A; all NFs share core B and wait adaptively. The source waits for room, so the engine drops
//! nothing. Each chain is measured twice:
//!
//! - `chain-N`: at full rate. With one NF the engine is the bottleneck; with eight on one core it idles most of the
//!   time.
//! - `engine-cycles-chain-N`: at the same rate for all chains, three quarters of the longest chain's full rate, in
//!   bursts of 64. The sum of the engine's stages in cycles per packet: its work from port to NF and from NF to port.
//!   The median of the window's slices excludes slices in which another process had the core.
//!
//! The rate is the same because a packet costs more in an engine that idles in between, whatever the chain; the sum at
//! full rate is `engine-flat-out-cycles-chain-N`. `engine-busy-cycles-chain-N` is the time of all turns with packets,
//! at full rate, per packet sent.
//!
//! A hop costs its two NFs one ring: one NF enqueues a burst, the next dequeues it. Every NF of a chain dequeues from
//! one ring and enqueues to one, so an NF's cost per burst is the cost of a hop. It is measured twice for the longest
//! chain:
//!
//! - `hop-cycles-per-nf-pair`: each NF measures the cycles from before the dequeue to after the enqueue and reports the
//!   median over full bursts of 32; the figure is the median of the NFs. As all share a core, means would include other
//!   processes' time.
//! - `hop-cpu-per-nf-pair`: CPU time of the NF processes (from the scheduler) per packet and NF. An upper bound: it
//!   includes polling empty rings, sleeping, signalling and context switches.
//!
//! `five-processes` and `one-process` are five NFs that work on each packet: as a chain of five processes, and as one
//! process that calls all five. Both have the NFs' core.

use std::cell::Cell;

use netvm_model::{Idle, Output, PortKind, SourceConfig};

use crate::cli::BenchArgs;
use crate::error::BenchError;
use crate::machine::Cores;
use crate::measure::harness::{Comparison, Figure, Plan, Subject, alternate};
use crate::measure::report::{Row, Unit};
use crate::measure::stats::median;
use crate::measure::window::{Sample, Window};
use crate::nf::{Kind, NfSpec};
use crate::setup::layout::{Layout, lossless};
use crate::setup::rig::Rig;

const LENGTHS: [usize; 4] = [1, 2, 4, 8];
const MAX_LENGTH: usize = 8;
/// Slices of a window at fixed rate.
const SLICES: u32 = 10;
/// Frame size in bytes, without FCS.
const FRAME: u16 = 60;
/// Enough for nine full rings and the engine's caches.
const BUFFERS: u32 = 8192;
/// Multiplications that each of five NFs does for a packet.
const WORK: u32 = 100;
/// Five NFs, each in a process of its own, and all in one process.
const FIVE: &str = "five-processes";
const ONE: &str = "one-process";

/// Runs the benchmark.
///
/// # Errors
/// [`BenchError`] if any case has no figure.
pub fn measure(args: &BenchArgs) -> Result<Vec<Row>, BenchError> {
    let cores = args.cores()?;
    // Packets per second; set by the longest chain of the run.
    let rate = Cell::new(0);
    let mut subjects = Vec::new();
    for length in LENGTHS {
        let rate = &rate;
        subjects
            .push(Subject::new(format!("chain-{length}"), move |plan| flat_out(length, cores, rate, plan)));
    }
    // Longest first, as it sets the rate.
    for length in LENGTHS.into_iter().rev() {
        let rate = &rate;
        subjects
            .push(Subject::new(engine_case(length), move |plan| at_rate(length, cores, rate.get(), plan)));
    }
    for (case, processes) in [(FIVE, 5), (ONE, 1)] {
        subjects.push(Subject::new(case, move |plan| five_nfs(case, processes, cores, plan)));
    }
    let flat = |case: fn(usize) -> String| Comparison::new(case(MAX_LENGTH), case(1));
    alternate(
        &args.plan(),
        &mut subjects,
        &[flat(engine_case), flat(flat_out_case), Comparison::new(FIVE, ONE)],
    )
}

/// Five NFs that each do some work on every packet, in so many processes, which share the NFs' core.
fn five_nfs(case: &str, processes: u32, cores: Cores, plan: &Plan) -> Result<Vec<Figure>, BenchError> {
    let mut layout = Layout::new(cores.engine, Idle::Poll);
    let group = layout.group("chain", BUFFERS, 2048);
    let source = layout.port("source", lossless(FRAME), 1500);
    let roles: Vec<String> = (1..=processes).map(|n| format!("nf{n}")).collect();
    let hops: Vec<_> = roles.iter().map(|role| layout.nf(role, group)).collect();
    layout.chain("chain", source, &hops, Output::Port(source));
    let spec = |role: &String| NfSpec {
        work: WORK,
        stages: 5 / processes,
        ..NfSpec::adaptive(Kind::Slow, role, cores.nf)
    };
    let specs: Vec<_> = roles.iter().map(spec).collect();
    let mut rig = Rig::start(&layout.build(), &specs)?;
    let window = rig.measure(case, plan.warm_up, plan.window)?;
    window.check_forwarded(case)?;
    Ok(vec![Figure::new(case, Unit::Mpps, window.mpps())])
}

fn engine_case(length: usize) -> String {
    format!("engine-cycles-chain-{length}")
}

fn flat_out_case(length: usize) -> String {
    format!("engine-flat-out-cycles-chain-{length}")
}

fn start(length: usize, cores: Cores, source: PortKind) -> Result<Rig, BenchError> {
    let mut layout = Layout::new(cores.engine, Idle::Poll);
    let group = layout.group("chain", BUFFERS, 2048);
    let source = layout.port("source", source, 1500);
    let roles: Vec<String> = (1..=length).map(|n| format!("nf{n}")).collect();
    let hops: Vec<_> = roles.iter().map(|role| layout.nf(role, group)).collect();
    layout.chain("chain", source, &hops, Output::Port(source));
    let specs: Vec<_> = roles.iter().map(|role| NfSpec::adaptive(Kind::Timed, role, cores.nf)).collect();
    Rig::start(&layout.build(), &specs)
}

fn flat_out(length: usize, cores: Cores, rate: &Cell<u64>, plan: &Plan) -> Result<Vec<Figure>, BenchError> {
    let what = format!("chain-{length}");
    let mut rig = start(length, cores, lossless(FRAME))?;
    let window = rig.measure(&what, plan.warm_up, plan.window)?;
    window.check_forwarded(&what)?;

    let cycles = |case: String, value| Figure::new(case, Unit::CyclesPerPacket, value);
    let mut figures = vec![Figure::new(what.as_str(), Unit::Mpps, window.mpps())];
    figures.push(cycles(flat_out_case(length), sum_of_stages(&window)));
    figures.push(cycles(format!("engine-busy-cycles-chain-{length}"), window.engine_cycles_per_packet()));
    if length == MAX_LENGTH {
        rate.set((window.mpps() * 0.75e6) as u64);
        let medians: Vec<f64> =
            window.own_counters(0).into_iter().map(|hundredths| hundredths as f64 / 100.0).collect();
        figures.push(cycles("hop-cycles-per-nf-pair".to_owned(), median(&medians)));
        let hops = window.sent() as f64 * length as f64;
        figures.push(cycles("hop-cpu-per-nf-pair".to_owned(), window.nf_cpu_cycles() / hops));
    }
    Ok(figures)
}

fn at_rate(length: usize, cores: Cores, rate: u64, plan: &Plan) -> Result<Vec<Figure>, BenchError> {
    let what = format!("chain-{length} at fixed rate");
    let source =
        SourceConfig { size: FRAME, rate: Some(rate), burst: 64, lossless: true, ..SourceConfig::default() };
    let mut rig = start(length, cores, PortKind::Source(source))?;
    rig.run(plan.warm_up)?;
    let mut samples = vec![rig.sample()];
    for _ in 0..SLICES {
        rig.run(plan.window / SLICES)?;
        samples.push(rig.sample());
    }
    let between = |pair: &[Sample]| Window::between(pair[0].clone(), pair[1].clone());
    let slices: Vec<Window> = samples.windows(2).map(between).collect();
    for slice in &slices {
        slice.check_sound(&what)?;
        slice.check_forwarded(&what)?;
    }
    let middle = |of: &dyn Fn(&Window) -> f64| median(&slices.iter().map(of).collect::<Vec<_>>());

    let mut figures = vec![Figure::new(engine_case(length), Unit::CyclesPerPacket, middle(&sum_of_stages))];
    figures.push(Figure::new(what.as_str(), Unit::Mpps, middle(&Window::mpps)));
    if length == 1 || length == MAX_LENGTH {
        for (n, stage) in slices[0].stages(&what).into_iter().enumerate() {
            let value = middle(&|slice| slice.stages(&what).get(n).map_or(0.0, |stage| stage.value));
            figures.push(Figure { value, ..stage });
        }
    }
    Ok(figures)
}

fn sum_of_stages(window: &Window) -> f64 {
    window.stages("").iter().map(|stage| stage.value).sum()
}
