//! `chain`: 1, 2, 4 and 8 NFs of one trust group, one after the other.
//!
//! The engine has core A, all NFs share core B and wait adaptively. The source waits for room, so that the engine has
//! nothing to drop.
//!
//! `engine-cycles-chain-N` is the sum of the engine's stages, each in cycles per packet: what it does for a packet from
//! port to NF and from NF to port. `engine-busy-cycles-chain-N` is all time of turns with packets, per packet that left. It
//! depends on how many packets a turn finds: NFs that share a core fill the engine's rings more slowly the more there are
//! of them, so that a polling engine makes more turns, each with fewer packets, in time that it would otherwise idle away.
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

use netvm_config::model::{Idle, Output};

use crate::cli::{BenchArgs, Cores};
use crate::error::BenchError;
use crate::harness::{Comparison, Figure, Plan, Subject, alternate};
use crate::layout::{Layout, lossless};
use crate::nf::{Kind, NfSpec};
use crate::report::{Row, Unit};
use crate::rig::Rig;
use crate::stats::median;

const LENGTHS: [usize; 4] = [1, 2, 4, 8];
const LONGEST: usize = 8;
/// Enough for nine full rings and the engine's caches.
const CELLS: u32 = 8192;

/// Measures.
///
/// # Errors
/// [`BenchError`] when any case has no figure.
pub fn measure(args: &BenchArgs) -> Result<Vec<Row>, BenchError> {
    let cores = args.cores()?;
    let subject = |length: usize| {
        Subject::new(format!("chain-{length}"), move |plan: &Plan| chain(length, cores, plan))
    };
    let mut subjects: Vec<Subject<'_>> = LENGTHS.into_iter().map(subject).collect();
    let flat = Comparison::new(engine_case(LONGEST), engine_case(1));
    alternate(&args.plan(), &mut subjects, &[flat])
}

fn engine_case(length: usize) -> String {
    format!("engine-cycles-chain-{length}")
}

fn chain(length: usize, cores: Cores, plan: &Plan) -> Result<Vec<Figure>, BenchError> {
    let what = format!("chain-{length}");
    let mut layout = Layout::new(cores.engine, Idle::Poll);
    let group = layout.group("chain", CELLS, 2048);
    let source = layout.port("source", lossless(60), 1500);
    let roles: Vec<String> = (1..=length).map(|n| format!("nf{n}")).collect();
    let hops: Vec<_> = roles.iter().map(|role| layout.nf(role, group)).collect();
    layout.chain("chain", source, &hops, Output::Port(source));
    let specs: Vec<_> = roles.iter().map(|role| NfSpec::adaptive(Kind::Timed, role, cores.nf)).collect();
    let mut rig = Rig::start(&layout.build(), &specs)?;
    let window = rig.measure(&what, plan.warm_up, plan.window)?;
    window.check_forwarded(&what)?;

    let cycles = |case: String, value| Figure::new(case, Unit::CyclesPerPacket, value);
    let mut figures = vec![Figure::new(what.as_str(), Unit::Mpps, window.mpps())];
    let stages = window.stages(&what);
    figures.push(cycles(engine_case(length), stages.iter().map(|stage| stage.value).sum()));
    figures.push(cycles(format!("engine-busy-cycles-chain-{length}"), window.engine_cycles_per_packet()));
    if length == 1 || length == LONGEST {
        figures.extend(stages);
    }
    if length == LONGEST {
        let medians: Vec<f64> =
            window.own_counters(0).into_iter().map(|hundredths| hundredths as f64 / 100.0).collect();
        figures.push(cycles("hop-cycles-per-nf-pair".to_owned(), median(&medians)));
        let hops = window.sent() as f64 * length as f64;
        figures.push(cycles("hop-cpu-per-nf-pair".to_owned(), window.nf_cpu_cycles() / hops));
    }
    Ok(figures)
}
