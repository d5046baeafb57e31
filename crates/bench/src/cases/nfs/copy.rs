// SPDX-License-Identifier: Apache-2.0
//! `copy`: a chain of two NFs in one trust group, against the same chain with the second NF in another group, for which
//! the engine copies every packet; frames of 64 to 9,000 bytes.
//!
//! `cross-group-S wasted copies`: packets that were copied and then dropped because the second NF's ring was full.
//!
//! Sizes in the code are without FCS: 60 bytes is the shortest frame, of 64.

use netvm_engine::DropReason;
use netvm_model::{Idle, Output};

use crate::cli::BenchArgs;
use crate::error::BenchError;
use crate::machine::Cores;
use crate::measure::harness::{Comparison, Figure, Plan, Subject, alternate};
use crate::measure::report::{Row, Unit};
use crate::measure::window::Window;
use crate::nf::{Kind, NfSpec};
use crate::setup::layout::{Layout, lossless};
use crate::setup::rig::Rig;

/// Frame sizes with FCS, in bytes.
const SIZES: [u16; 4] = [64, 512, 1500, 9000];
const FCS: u16 = 4;
const BUFFERS: u32 = 4096;

/// Runs the benchmark.
///
/// # Errors
/// [`BenchError`] if any case has no figure.
pub fn measure(args: &BenchArgs) -> Result<Vec<Row>, BenchError> {
    let cores = args.cores()?;
    let mut subjects = Vec::new();
    let mut comparisons = Vec::new();
    for size in SIZES {
        for crossing in [false, true] {
            let name = case(size, crossing);
            subjects.push(Subject::new(name, move |plan| two(size, crossing, cores, plan)));
        }
        comparisons.push(Comparison::new(case(size, false), case(size, true)));
    }
    alternate(&args.plan(), &mut subjects, &comparisons)
}

fn case(size: u16, crossing: bool) -> String {
    format!("{}-{size}", if crossing { "cross-group" } else { "zero-copy" })
}

fn two(size: u16, crossing: bool, cores: Cores, plan: &Plan) -> Result<Vec<Figure>, BenchError> {
    let name = case(size, crossing);
    let buffer = if size > 1518 { 16_384 } else { 2048 };
    let mut layout = Layout::new(cores.engine, Idle::Poll);
    let first_group = layout.group("first", BUFFERS, buffer);
    let second_group = if crossing { layout.group("second", BUFFERS, buffer) } else { first_group };
    let source = layout.port("source", lossless(size - FCS), size);
    let hops = [layout.nf("first", first_group), layout.nf("second", second_group)];
    layout.chain("two", source, &hops, Output::Port(source));
    let specs = ["first", "second"].map(|role| NfSpec::adaptive(Kind::Forward, role, cores.nf));
    let mut rig = Rig::start(&layout.build(), &specs)?;
    let window = rig.measure(&name, plan.warm_up, plan.window)?;
    window.check_forwarded(&name)?;
    check_copies(&name, crossing, &window)?;
    let gigabits = Figure::new(format!("{name} throughput"), Unit::GigabitsPerSecond, window.gigabits());
    let mut figures = vec![Figure::new(name.as_str(), Unit::Mpps, window.mpps()), gigabits];
    if crossing {
        let lost = window.dropped(DropReason::DownstreamFull) as f64 / window.copies().max(1) as f64 * 100.0;
        figures.push(Figure::new(format!("{name} wasted copies"), Unit::Percent, lost));
    }
    Ok(figures)
}

/// Checks that one case copies every packet and the other none, apart from packets in flight.
fn check_copies(what: &str, crossing: bool, window: &Window) -> Result<(), BenchError> {
    let (copies, sent) = (window.copies(), window.sent());
    let (kind, count) = match crossing {
        true => ("packet that crossed groups without a copy", sent.saturating_sub(copies)),
        false => ("packet copied within a group", copies),
    };
    if count <= u64::from(BUFFERS) {
        return Ok(());
    }
    Err(BenchError::Unsound { what: what.to_owned(), kind: kind.to_owned(), count })
}
