//! `chain`: 1, 2, 4 and 8 NFs of one trust group, one after the other.
//!
//! The engine has core A, all NFs share core B and wait adaptively. The source waits for room, so that the engine has
//! nothing to drop. Each chain is measured twice:
//!
//! - `chain-N`: flat out. The engine is the bottleneck of one NF, and idles most of the time with eight on one core.
//! - `engine-cycles-chain-N`: at one pace for all, three quarters of what the longest chain passes flat out, in bursts of
//!   64. It is the sum of the engine's stages, each in cycles per packet: what it does for a packet from port to NF and from
//!   NF to port. The window is cut into slices, the middle one counts, so that a moment in which something else has the core
//!   does not.
//!
//! The pace is the same because a packet costs an engine that idles in between more than one that never rests, whatever the
//! chain: the same sum flat out is shown as `engine-flat-out-cycles-chain-N`. `engine-busy-cycles-chain-N` is all time of
//! turns with packets, flat out, per packet that left.
//!
//! What a further hop costs the two NFs at its ends is one ring: one NF puts a burst in, the next one takes it out. Every
//! NF of a chain takes out of one ring and puts into one, so the cost of an NF's burst is that of a hop. It is stated
//! twice, both for the longest chain:
//!
//! - `hop-cycles-per-nf-pair`: each NF takes the cycles from before a burst is taken until after it is handed on, and
//!   shows the median over full bursts of 32; the middle one of the NFs counts. As all of them share one core, means
//!   would include the time in which others had it; the median does not.
//! - `hop-cpu-per-nf-pair`: all CPU time of the NF processes (the scheduler's account) per packet and NF. An upper
//!   bound: it includes looking into empty rings, going to sleep, waking others, and switching between processes.

use std::cell::Cell;

use netvm_config::model::{Idle, Output, PortKind, SourceConfig};

use crate::cli::{BenchArgs, Cores};
use crate::error::BenchError;
use crate::harness::{Comparison, Figure, Plan, Subject, alternate};
use crate::layout::{Layout, lossless};
use crate::nf::{Kind, NfSpec};
use crate::report::{Row, Unit};
use crate::rig::Rig;
use crate::stats::median;
use crate::window::{Sample, Window};

const LENGTHS: [usize; 4] = [1, 2, 4, 8];
const LONGEST: usize = 8;
/// Of a window at one pace.
const SLICES: u32 = 10;
/// Bytes of a frame.
const FRAME: u16 = 60;
/// Enough for nine full rings and the engine's caches.
const BUFFERS: u32 = 8192;

/// Measures.
///
/// # Errors
/// [`BenchError`] when any case has no figure.
pub fn measure(args: &BenchArgs) -> Result<Vec<Row>, BenchError> {
    let cores = args.cores()?;
    // Packets per second, by the longest chain of the run.
    let pace = Cell::new(0);
    let mut subjects = Vec::new();
    for length in LENGTHS {
        let pace = &pace;
        subjects
            .push(Subject::new(format!("chain-{length}"), move |plan| flat_out(length, cores, pace, plan)));
    }
    // The shortest beside the longest: they are compared.
    for length in LENGTHS.into_iter().rev() {
        let pace = &pace;
        subjects
            .push(Subject::new(engine_case(length), move |plan| at_pace(length, cores, pace.get(), plan)));
    }
    let flat = |case: fn(usize) -> String| Comparison::new(case(LONGEST), case(1));
    alternate(&args.plan(), &mut subjects, &[flat(engine_case), flat(flat_out_case)])
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

fn flat_out(length: usize, cores: Cores, pace: &Cell<u64>, plan: &Plan) -> Result<Vec<Figure>, BenchError> {
    let what = format!("chain-{length}");
    let mut rig = start(length, cores, lossless(FRAME))?;
    let window = rig.measure(&what, plan.warm_up, plan.window)?;
    window.check_forwarded(&what)?;

    let cycles = |case: String, value| Figure::new(case, Unit::CyclesPerPacket, value);
    let mut figures = vec![Figure::new(what.as_str(), Unit::Mpps, window.mpps())];
    figures.push(cycles(flat_out_case(length), sum_of_stages(&window)));
    figures.push(cycles(format!("engine-busy-cycles-chain-{length}"), window.engine_cycles_per_packet()));
    if length == LONGEST {
        pace.set((window.mpps() * 0.75e6) as u64);
        let medians: Vec<f64> =
            window.own_counters(0).into_iter().map(|hundredths| hundredths as f64 / 100.0).collect();
        figures.push(cycles("hop-cycles-per-nf-pair".to_owned(), median(&medians)));
        let hops = window.sent() as f64 * length as f64;
        figures.push(cycles("hop-cpu-per-nf-pair".to_owned(), window.nf_cpu_cycles() / hops));
    }
    Ok(figures)
}

fn at_pace(length: usize, cores: Cores, pace: u64, plan: &Plan) -> Result<Vec<Figure>, BenchError> {
    let what = format!("chain-{length} at pace");
    let source =
        SourceConfig { size: FRAME, rate: Some(pace), burst: 64, lossless: true, ..SourceConfig::default() };
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
    if length == 1 || length == LONGEST {
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
