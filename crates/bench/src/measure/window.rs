// SPDX-License-Identifier: Apache-2.0
//! Counters of an engine and its NFs at two moments, and their differences.

use std::fs;
use std::time::{Duration, Instant};

use netvm_clock as clock;
use netvm_engine::{DropReason, Engine, Stage};
use netvm_model::PortId;
use netvm_region::NfCounter;

use crate::error::BenchError;
use crate::measure::harness::Figure;
use crate::measure::report::Unit;
use crate::nf::NfProcess;

/// Reasons for drops in a benchmark whose NFs behave correctly.
const EXPECTED_DROPS: [DropReason; 4] =
    [DropReason::ChainFull, DropReason::DownstreamFull, DropReason::NoBuffer, DropReason::NfDown];

/// A thread that waits for its core for less than this percentage waits for kernel housekeeping only.
const DISTURBED_PERCENT: f64 = 2.0;

/// All counters at a moment.
#[derive(Clone, Debug)]
pub struct Sample {
    at: Instant,
    cycles: u64,
    rx: u64,
    tx: u64,
    tx_bytes: u64,
    /// Packets sent by each port.
    sent: Vec<u64>,
    busy_cycles: u64,
    copies: u64,
    /// Cycles and packets of each stage.
    stages: [(u64, u64); Stage::ALL.len()],
    /// By [`DropReason`]: sums over ports, chains and NFs. A drop by an NF's verdict counts twice.
    drops: [u64; DropReason::COUNT],
    violations: u64,
    nfs: Vec<NfSample>,
    own: CpuTime,
    /// CPU time of the workers.
    workers: CpuTime,
}

/// An NF's counters.
#[derive(Clone, Debug, Default)]
struct NfSample {
    standard: [u64; NfCounter::COUNT],
    own: Vec<u64>,
    cpu: CpuTime,
}

/// Scheduler statistics of a process, over all threads, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// Running.
    pub running: u64,
    /// Runnable, but waiting for a core.
    pub waiting: u64,
}

impl Sample {
    /// Reads all counters without stalling any thread.
    pub fn take(engine: &Engine, nfs: &[NfProcess]) -> Self {
        let mut sample = Self {
            at: Instant::now(),
            cycles: clock::cycles(),
            rx: 0,
            tx: 0,
            tx_bytes: 0,
            sent: Vec::new(),
            busy_cycles: 0,
            copies: 0,
            stages: Default::default(),
            drops: [0; DropReason::COUNT],
            violations: 0,
            nfs: Vec::new(),
            own: CpuTime::of(std::process::id()),
            workers: CpuTime::of_threads(std::process::id(), "netvm-worker"),
        };
        for worker in engine.workers() {
            let c = &worker.counters;
            sample.busy_cycles += c.busy_cycles.get();
            sample.copies += c.copies.get();
            for (sum, stage) in sample.stages.iter_mut().zip(&c.stages) {
                *sum = (sum.0 + stage.cycles.get(), sum.1 + stage.packets.get());
            }
            sample.sent.resize(sample.sent.len().max(c.ports.len()), 0);
            for (sent, port) in sample.sent.iter_mut().zip(&c.ports) {
                *sent += port.tx_packets.get();
                sample.rx += port.rx_packets.get();
                sample.tx += port.tx_packets.get();
                sample.tx_bytes += port.tx_bytes.get();
            }
            let drops =
                c.ports.iter().map(|port| &port.drops).chain(c.chains.iter().map(|chain| &chain.drops));
            for drops in drops.chain(c.links.iter().map(|link| &link.drops)) {
                for reason in DropReason::ALL {
                    sample.drops[reason as usize] += drops.get(reason);
                }
            }
            let violations = c.links.iter().flat_map(|link| &link.violations);
            sample.violations += violations.map(netvm_engine::Counter::get).sum::<u64>();
        }
        let views = engine.instances();
        for nf in nfs {
            let mut of_nf = NfSample { cpu: CpuTime::of(nf.pid()), ..NfSample::default() };
            if let Some(view) = views.iter().find(|view| view.id == nf.instance) {
                of_nf.standard = view
                    .threads
                    .iter()
                    .fold(of_nf.standard, |sum, thread| std::array::from_fn(|n| sum[n] + thread.standard[n]));
                of_nf.own = view.own.iter().map(|(_, value)| *value).collect();
            }
            sample.nfs.push(of_nf);
        }
        sample
    }
}

impl Sample {
    /// Drops for a reason so far.
    pub const fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }
}

/// The difference of two samples.
#[derive(Clone, Debug)]
pub struct Window {
    start: Sample,
    end: Sample,
}

impl Window {
    /// From the earlier to the later.
    pub const fn between(start: Sample, end: Sample) -> Self {
        Self { start, end }
    }

    fn diff(&self, of: impl Fn(&Sample) -> u64) -> u64 {
        of(&self.end).saturating_sub(of(&self.start))
    }

    /// Its length in seconds.
    pub fn seconds(&self) -> f64 {
        self.end.at.duration_since(self.start.at).as_secs_f64()
    }

    /// Packets sent on all ports.
    pub fn sent(&self) -> u64 {
        self.diff(|sample| sample.tx)
    }

    /// Packets sent by a port.
    pub fn sent_by(&self, port: PortId) -> u64 {
        self.diff(|sample| sample.sent.get(port.index()).copied().unwrap_or(0))
    }

    /// Packets received on all ports.
    pub fn received(&self) -> u64 {
        self.diff(|sample| sample.rx)
    }

    /// Million packets sent per second.
    pub fn mpps(&self) -> f64 {
        self.sent() as f64 / self.seconds() / 1e6
    }

    /// The worker's CPU time.
    pub fn worker_cpu_time(&self) -> Duration {
        match self.diff(|sample| sample.workers.running) {
            // The kernel has no scheduler statistics.
            0 => self.end.at.duration_since(self.start.at),
            nanos => Duration::from_nanos(nanos),
        }
    }

    /// Millions of `packets` per second of the worker's CPU time: for a polling worker, the rate of an undisturbed
    /// core.
    pub fn per_core(&self, packets: u64) -> f64 {
        packets as f64 / self.worker_cpu_time().as_secs_f64() / 1e6
    }

    /// Billion bits sent per second.
    pub fn gigabits(&self) -> f64 {
        self.diff(|sample| sample.tx_bytes) as f64 * 8.0 / self.seconds() / 1e9
    }

    /// Packets copied between regions.
    pub fn copies(&self) -> u64 {
        self.diff(|sample| sample.copies)
    }

    /// Drops for a reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.diff(|sample| sample.drops[reason as usize])
    }

    /// Drops for any reason.
    pub fn dropped_in_all(&self) -> u64 {
        DropReason::ALL.into_iter().map(|reason| self.dropped(reason)).sum()
    }

    /// Cycles of the workers' turns with packets.
    pub fn busy_cycles(&self) -> u64 {
        self.diff(|sample| sample.busy_cycles)
    }

    /// Cycles of the workers' turns with packets, per packet sent.
    pub fn engine_cycles_per_packet(&self) -> f64 {
        ratio(self.busy_cycles(), self.sent())
    }

    /// Cycles per packet of each stage that had any.
    pub fn stages(&self, bench: &str) -> Vec<Figure> {
        let figure = |stage: Stage| {
            let packets = self.diff(|sample| sample.stages[stage as usize].1);
            let cycles = self.diff(|sample| sample.stages[stage as usize].0);
            let case = format!("{bench} engine {}", stage.name());
            (packets > 0).then(|| Figure::new(case, Unit::CyclesPerPacket, ratio(cycles, packets)))
        };
        Stage::ALL.into_iter().filter_map(figure).collect()
    }

    /// A standard counter of the `nf`th NF.
    pub fn of_nf(&self, nf: usize, counter: NfCounter) -> u64 {
        self.diff(|sample| sample.nfs.get(nf).map_or(0, |of_nf| of_nf.standard[counter as usize]))
    }

    /// Current values of the NFs' counter `index`.
    pub fn own_counters(&self, index: usize) -> Vec<u64> {
        self.end.nfs.iter().filter_map(|nf| nf.own.get(index).copied()).collect()
    }

    /// CPU time of all NFs together, in cycles of the time-stamp counter.
    pub fn nf_cpu_cycles(&self) -> f64 {
        let nanos = self.diff(|sample| sample.nfs.iter().map(|nf| nf.cpu.running).sum());
        let rate = self.diff(|sample| sample.cycles) as f64 / self.seconds();
        nanos as f64 * 1e-9 * rate
    }

    /// CPU time of this process, engine included, and all NFs, in percent of a core.
    pub fn cpu_percent(&self) -> f64 {
        let of_nfs = |sample: &Sample| sample.nfs.iter().map(|nf| nf.cpu.running).sum::<u64>();
        let nanos = self.diff(|sample| sample.own.running + of_nfs(sample));
        nanos as f64 * 1e-9 / self.seconds() * 100.0
    }

    /// Warns on standard error if the engine waited for its core because other processes used it.
    pub fn warn_if_disturbed(&self, what: &str) {
        let percent = self.diff(|sample| sample.own.waiting) as f64 * 1e-9 / self.seconds() * 100.0;
        if percent > DISTURBED_PERCENT {
            eprintln!(
                "{what}: other processes used the engine's core {percent:.0} % of the time: the figures are too low"
            );
        }
    }

    /// Checks the counters for events that no correct NF causes.
    ///
    /// # Errors
    /// [`BenchError::Unsound`] names the counter.
    pub fn check_sound(&self, what: &str) -> Result<(), BenchError> {
        let unsound =
            |kind: &str, count| BenchError::Unsound { what: what.to_owned(), kind: kind.to_owned(), count };
        match self.diff(|sample| sample.violations) {
            0 => {}
            count => return Err(unsound("violation of the ring protocol", count)),
        }
        for reason in DropReason::ALL.into_iter().filter(|reason| !EXPECTED_DROPS.contains(reason)) {
            match self.dropped(reason) {
                0 => {}
                count => return Err(unsound(reason.name(), count)),
            }
        }
        Ok(())
    }

    /// Checks that packets were sent.
    ///
    /// # Errors
    /// [`BenchError::Nothing`] if none were.
    pub fn check_forwarded(&self, what: &str) -> Result<(), BenchError> {
        match self.sent() {
            0 => Err(BenchError::Nothing { what: what.to_owned(), seconds: self.seconds() }),
            _ => Ok(()),
        }
    }
}

fn ratio(a: u64, b: u64) -> f64 {
    a as f64 / b.max(1) as f64
}

impl CpuTime {
    /// The CPU time of a process; zero if it has ended or the kernel has no scheduler statistics.
    fn of(pid: u32) -> Self {
        Self::of_threads(pid, "")
    }

    /// The CPU time of each thread of a process, by thread id.
    pub fn of_each_thread(pid: u32) -> Vec<(String, Self)> {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let time = |task: fs::DirEntry| Some((task.file_name().into_string().ok()?, Self::of_task(&task)?));
        tasks.filter_map(time).collect()
    }

    /// The CPU time of all threads of a process whose names begin with `prefix`.
    pub fn of_threads(pid: u32, prefix: &str) -> Self {
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Self::default() };
        let named = |task: &fs::DirEntry| {
            let name = fs::read_to_string(task.path().join("comm"));
            name.is_ok_and(|name| name.starts_with(prefix))
        };
        let tasks = tasks.flatten().filter(named).filter_map(|task| Self::of_task(&task));
        tasks.fold(Self::default(), |sum, task| Self {
            running: sum.running + task.running,
            waiting: sum.waiting + task.waiting,
        })
    }

    /// The difference to `earlier`.
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            running: self.running.saturating_sub(earlier.running),
            waiting: self.waiting.saturating_sub(earlier.waiting),
        }
    }

    fn of_task(task: &fs::DirEntry) -> Option<Self> {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        let mut numbers = text.split_whitespace().map_while(|number| number.parse().ok());
        Some(Self { running: numbers.next()?, waiting: numbers.next()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_that_of_all_threads() {
        let spin = || {
            let start = Instant::now();
            while start.elapsed().as_millis() < 50 {
                std::hint::spin_loop();
            }
            // While the thread lives, as its statistics end with it.
            let own = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
            let own: u64 = own.split_whitespace().next().unwrap().parse().unwrap();
            (own, CpuTime::of(std::process::id()))
        };
        let (own, all) = std::thread::spawn(spin).join().unwrap();
        // Other tests may use the core half of the time, and start and end threads.
        assert!(own > 5_000_000 && all.running >= own, "{own} {all:?}");
    }
}
