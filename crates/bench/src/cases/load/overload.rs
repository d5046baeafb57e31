// SPDX-License-Identifier: Apache-2.0
//! `overload`: a chain of two NFs on one core whose second is slow, at loads from half to ten times its capacity.
//!
//! Measures once: the chain's rate without a slow NF, and the work per packet that slows it to a tenth. Then, in each
//! run, the slow chain's capacity (with a source that waits for room), and every load in turns with it. Below the
//! capacity nothing may be lost. Above, the delivered rate must not fall as the load grows (no receive livelock), and
//! excess packets must be dropped at the chain's entry, before any NF works on them.

use std::time::Duration;

use netvm_engine::DropReason;
use netvm_model::{Host, Idle, Output, PortKind};
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
const SLOWDOWN: f64 = 10.0;
/// A window of one load, and the time before it for the rings to fill or empty.
const LOAD_WINDOW: Duration = Duration::from_millis(100);
const SETTLE_TIME: Duration = Duration::from_millis(30);
/// Work per packet used to calibrate the cost of a unit.
const PROBE_WORK: u32 = 400;

/// Runs the benchmark.
///
/// # Errors
/// [`BenchError`] if any case has no figure.
pub fn measure(args: &BenchArgs) -> Result<Vec<Row>, BenchError> {
    let cores = args.cores()?;
    let plan = args.plan();
    let rate = |what: &str, work| -> Result<f64, BenchError> {
        let window =
            Chain::start(work, lossless(FRAME), cores)?.rig.measure(what, plan.warm_up, plan.window)?;
        window.check_forwarded(what)?;
        Ok(window.mpps())
    };
    let fast = rate("overload, no slow NF", 0)?;
    let probe = rate("overload, calibration", PROBE_WORK)?;
    let work = work_for(fast, probe, fast / SLOWDOWN);
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
    let mut chain = Chain::start(work, lossless(FRAME), cores)?;
    let capacity = chain.rig.measure("capacity", plan.warm_up, plan.window)?;
    capacity.check_forwarded("capacity")?;
    let mut figures = vec![Figure::new("capacity", Unit::Mpps, capacity.mpps())];
    for load in LOADS {
        let mut figure =
            |case: &str, unit, value| figures.push(Figure::new(format!("{case}-{load}x"), unit, value));
        let Sums { offered, capacity } = chain.alternate(load, plan.window)?;
        let percent = |part: u64, whole: u64| part as f64 / whole.max(1) as f64 * 100.0;
        figure("delivered", Unit::Mpps, offered.mpps());
        if load < 1.0 {
            figure("lost", Unit::Percent, percent(offered.dropped, offered.received));
        } else if load > 1.0 {
            let lost = offered.worked.saturating_sub(offered.sent);
            figure("lost-after-work", Unit::Percent, percent(lost, offered.worked));
            figure("drops-at-entry", Unit::Percent, percent(offered.dropped_at_entry, offered.dropped));
            let ratio = offered.mpps() / capacity.mpps();
            figures.push(Figure::new(format!("{load}x/capacity"), Unit::Ratio, ratio));
        }
    }
    Ok(figures)
}

/// Sums over several windows.
#[derive(Default)]
struct Sum {
    seconds: f64,
    received: u64,
    sent: u64,
    dropped: u64,
    dropped_at_entry: u64,
    /// Packets that the first NF worked on.
    worked: u64,
}

impl Sum {
    fn add(&mut self, window: &Window) {
        self.seconds += window.seconds();
        self.received += window.received();
        self.sent += window.sent();
        self.dropped += window.dropped_in_all();
        self.dropped_at_entry += window.dropped(DropReason::ChainFull);
        self.worked += window.of_nf(0, NfCounter::Received);
    }

    fn mpps(&self) -> f64 {
        self.sent as f64 / self.seconds / 1e6
    }
}

/// The windows with a load, and those with the capacity.
#[derive(Default)]
struct Sums {
    offered: Sum,
    capacity: Sum,
}

/// The chain of two NFs.
struct Chain {
    rig: Rig,
    cores: Cores,
}

impl Chain {
    fn start(work: u32, port: PortKind, cores: Cores) -> Result<Self, BenchError> {
        let first = NfSpec::adaptive(Kind::Forward, "first", cores.nf);
        let second = NfSpec { work, ..NfSpec::adaptive(Kind::Slow, "second", cores.nf) };
        Ok(Self { rig: Rig::start(&host(port, cores), &[first, second])?, cores })
    }

    /// Measures the capacity and a multiple of it in turns, each for `time` in all. The multiple is one of the capacity
    /// a moment before, because the machine's speed may change within a second.
    fn alternate(&mut self, load: f64, time: Duration) -> Result<Sums, BenchError> {
        let mut sums = Sums::default();
        while sums.offered.seconds < time.as_secs_f64() {
            let capacity = self.slice("capacity", lossless(FRAME))?;
            sums.capacity.add(&capacity);
            let rate = (capacity.mpps() * load * 1e6) as u64;
            sums.offered.add(&self.slice(&format!("offered-{load}x"), paced(FRAME, rate))?);
        }
        Ok(sums)
    }

    /// A short window with another source.
    fn slice(&mut self, what: &str, port: PortKind) -> Result<Window, BenchError> {
        self.rig.engine().apply(&host(port, self.cores))?;
        self.rig.run(SETTLE_TIME)?;
        let start = self.rig.sample();
        self.rig.run(LOAD_WINDOW)?;
        let window = Window::between(start, self.rig.sample());
        window.check_sound(what)?;
        window.check_forwarded(what)?;
        Ok(window)
    }
}

fn host(port: PortKind, cores: Cores) -> Host {
    let mut layout = Layout::new(cores.engine, Idle::Poll);
    let group = layout.group("overload", BUFFERS, 2048);
    let source = layout.port("source", port, 1500);
    let hops = [layout.nf("first", group), layout.nf("second", group)];
    layout.chain("two", source, &hops, Output::Port(source));
    layout.build()
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
