//! `copy`: a chain of two NFs of one trust group against the same chain with the second NF in another group, so that the
//! engine copies every packet; frames of 64 to 9,000 bytes.
//!
//! The frames are counted without FCS: 60 bytes stand for the shortest frame of 64.

use netvm_config::model::{Idle, Output};

use crate::cli::{BenchArgs, Cores};
use crate::error::BenchError;
use crate::harness::{Comparison, Figure, Plan, Subject, alternate};
use crate::layout::{Layout, lossless};
use crate::nf::{Kind, NfSpec};
use crate::report::{Row, Unit};
use crate::rig::Rig;

/// Frames with FCS, in bytes.
const SIZES: [u16; 4] = [64, 512, 1500, 9000];
const FCS: u16 = 4;
const CELLS: u32 = 4096;

/// Measures.
///
/// # Errors
/// [`BenchError`] when any case has no figure.
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
    let cell = if size > 1518 { 16_384 } else { 2048 };
    let mut layout = Layout::new(cores.engine, Idle::Poll);
    let first_group = layout.group("first", CELLS, cell);
    let second_group = if crossing { layout.group("second", CELLS, cell) } else { first_group };
    let source = layout.port("source", lossless(size - FCS), size);
    let hops = [layout.nf("first", first_group), layout.nf("second", second_group)];
    layout.chain("two", source, &hops, Output::Port(source));
    let specs = ["first", "second"].map(|role| NfSpec::adaptive(Kind::Forward, role, cores.nf));
    let mut rig = Rig::start(&layout.build(), &specs)?;
    let window = rig.measure(&name, plan.warm_up, plan.window)?;
    window.check_forwarded(&name)?;
    check_copies(&name, crossing, window.copies(), window.sent())?;
    let gigabits = Figure::new(format!("{name} throughput"), Unit::GigabitsPerSecond, window.gigabits());
    Ok(vec![Figure::new(name, Unit::Mpps, window.mpps()), gigabits])
}

/// A case that is to copy must do so with every packet, the other with none; some may be on their way.
fn check_copies(what: &str, crossing: bool, copies: u64, sent: u64) -> Result<(), BenchError> {
    let wanted = if crossing { sent } else { 0 };
    let astray = copies.abs_diff(wanted);
    if astray <= u64::from(CELLS) {
        return Ok(());
    }
    let kind = format!("copied packets more or less than the {wanted} expected");
    Err(BenchError::Unsound { what: what.to_owned(), kind, count: astray })
}
