//! `overload`: a chain of two NFs on one core whose second is slow, at loads from half to ten times its capacity.
//!
//! Measures once: the chain's rate without a slow NF, and the work per packet that slows it to a tenth. Then, in each run,
//! the slow chain's capacity (with a source that waits for room), and every load in turn. Below the capacity nothing may be
//! lost. Above, the delivered rate must not fall as the load grows (no receive livelock), and excess packets must be
//! dropped at the chain's entry, before any NF works on them.

use netvm_config::model::{Idle, Output, PortKind};
use netvm_engine::DropReason;
use netvm_region::NfCounter;

use crate::cli::BenchArgs;
use crate::error::BenchError;
use crate::machine::Cores;
use crate::measure::harness::{Figure, Plan, Subject, alternate};
use crate::measure::report::{Row, Unit};
use crate::measure::stats::Summary;
use crate::measure::window::Window;
use crate::nf::{Kind, NfSpec};
use crate::setup::layout::{Layout, lossless, paced};
use crate::setup::rig::Rig;

const BUFFERS: u32 = 8192;
const FRAME: u16 = 60;
/// Offered loads in multiples of the slow chain's capacity.
const LOADS: [f64; 7] = [0.5, 0.8, 1.0, 1.5, 2.0, 5.0, 10.0];
/// Factor by which the slow NF slows the chain.
const SLOWED: f64 = 10.0;
/// Work per packet used to calibrate the cost of a unit.
const PROBE_WORK: u32 = 400;

/// Runs the benchmark.
///
/// # Errors
/// [`BenchError`] if any case has no figure.
pub fn measure(args: &BenchArgs) -> Result<Vec<Row>, BenchError> {
    let cores = args.cores()?;
    let plan = args.plan();
    let fast = window("overload, no slow NF", 0, lossless(FRAME), cores, &plan)?.mpps();
    let probe = window("overload, calibration", PROBE_WORK, lossless(FRAME), cores, &plan)?.mpps();
    let work = work_for(fast, probe, fast / SLOWED);
    eprintln!("without slow NF {fast:.3} Mpps; slow NF: {work} multiplications per packet");
    let mut subjects = [Subject::new("loads", move |plan| loads(work, cores, plan))];
    let mut rows = alternate(&plan, &mut subjects, &[])?;
    let once = Summary { median: fast, min: fast, max: fast, runs: 1 };
    rows.insert(0, Row { case: "fast".to_owned(), unit: Unit::Mpps, summary: once });
    Ok(rows)
}

/// The work per packet that slows the chain to `target`, from the rates without work and with [`PROBE_WORK`]. Times per
/// packet add up, because both NFs share a core.
fn work_for(fast: f64, probe: f64, target: f64) -> u32 {
    let per_unit = (1.0 / probe - 1.0 / fast).max(1e-9) / f64::from(PROBE_WORK);
    ((1.0 / target - 1.0 / fast) / per_unit) as u32
}

fn loads(work: u32, cores: Cores, plan: &Plan) -> Result<Vec<Figure>, BenchError> {
    let capacity = window("capacity", work, lossless(FRAME), cores, plan)?.mpps();
    let mut figures = vec![Figure::new("capacity", Unit::Mpps, capacity)];
    for load in LOADS {
        let mut figure =
            |case: &str, unit, value| figures.push(Figure::new(format!("{case}-{load}x"), unit, value));
        let rate = (capacity * load * 1e6) as u64;
        let window = window(&format!("offered-{load}x"), work, paced(FRAME, rate), cores, plan)?;
        let percent = |part: u64, whole: u64| part as f64 / whole.max(1) as f64 * 100.0;
        figure("delivered", Unit::Mpps, window.mpps());
        if load < 1.0 {
            figure("lost", Unit::Percent, percent(window.dropped_in_all(), window.received()));
        } else if load > 1.0 {
            // Packets that the first NF worked on and that were dropped later.
            let worked = window.of_nf(0, NfCounter::Received);
            figure("lost-after-work", Unit::Percent, percent(worked.saturating_sub(window.sent()), worked));
            let at_entry = percent(window.dropped(DropReason::ChainFull), window.dropped_in_all());
            figure("drops-at-entry", Unit::Percent, at_entry);
            figures.push(Figure::new(format!("{load}x/capacity"), Unit::Ratio, window.mpps() / capacity));
        }
    }
    Ok(figures)
}

fn window(what: &str, work: u32, port: PortKind, cores: Cores, plan: &Plan) -> Result<Window, BenchError> {
    let mut layout = Layout::new(cores.engine, Idle::Poll);
    let group = layout.group("overload", BUFFERS, 2048);
    let source = layout.port("source", port, 1500);
    let hops = [layout.nf("first", group), layout.nf("second", group)];
    layout.chain("two", source, &hops, Output::Port(source));
    let first = NfSpec::adaptive(Kind::Forward, "first", cores.nf);
    let second = NfSpec { work, ..NfSpec::adaptive(Kind::Slow, "second", cores.nf) };
    let mut rig = Rig::start(&layout.build(), &[first, second])?;
    let window = rig.measure(what, plan.warm_up, plan.window)?;
    window.check_forwarded(what)?;
    Ok(window)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_in_proportion_to_time() {
        // 0.1 us a packet without work, 0.5 us with the probe work: 0.001 us a unit; a tenth of the rate is 1 us a
        // packet.
        assert_eq!(work_for(10.0, 2.0, 1.0), 900);
    }
}
