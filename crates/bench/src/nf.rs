// SPDX-License-Identifier: Apache-2.0
//! The NFs of the benchmarks: this program in separate processes.

use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::process::Child;

use clap::{Args, ValueEnum};
use netlib::{BURST, Burst, Endpoint, Idle, NetworkFunction, Options, Packet, Verdict, Waiting, clock};

use netvm_engine::InstanceId;

use crate::error::BenchError;
use crate::machine::pin;

/// The counter of a timed NF's median, in hundredths of cycles per packet.
pub const BURST_CYCLES: &str = "burst-cycles";

/// How long a verdict holds without packets of its flow.
const RELEASED: Idle = Idle(60);

/// The behaviour of an NF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Forwards bursts without reading packets.
    Forward,
    /// As `Forward`, and measures its own cycles; see [`BURST_CYCLES`].
    Timed,
    /// Releases each flow at once, by a per-flow verdict.
    Release,
    /// Does a fixed amount of work on every packet before it forwards it.
    Slow,
}

/// An NF to start.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct NfSpec {
    /// Its behaviour.
    #[arg(long)]
    pub kind: Kind,
    /// Its role.
    #[arg(long)]
    pub role: String,
    /// Its core.
    #[arg(long)]
    pub core: u32,
    /// Busy-poll instead of sleeping.
    #[arg(long)]
    pub poll: bool,
    /// Work per packet of a slow NF, in dependent multiplications.
    #[arg(long, default_value_t = 0)]
    pub work: u32,
    /// Slow NFs in one process, one after the other for each packet.
    #[arg(long, default_value_t = 1)]
    pub stages: u32,
}

impl NfSpec {
    /// An adaptive NF.
    pub fn adaptive(kind: Kind, role: &str, core: u32) -> Self {
        Self { kind, role: role.to_owned(), core, poll: false, work: 0, stages: 1 }
    }

    /// The command-line arguments for this NF.
    pub fn arguments(&self) -> Vec<String> {
        let kind = match self.kind {
            Kind::Forward => "forward",
            Kind::Timed => "timed",
            Kind::Release => "release",
            Kind::Slow => "slow",
        };
        let mut list = vec!["nf".to_owned(), format!("--kind={kind}"), format!("--role={}", self.role)];
        list.extend([format!("--core={}", self.core), format!("--work={}", self.work)]);
        list.push(format!("--stages={}", self.stages));
        list.extend(self.poll.then(|| "--poll".to_owned()));
        list
    }
}

/// Runs as an NF until the engine ends or dismisses it.
///
/// # Errors
/// It cannot be pinned to its core, or cannot attach.
pub fn run(spec: &NfSpec) -> Result<(), BenchError> {
    pin(spec.core).map_err(BenchError::system(format!("cannot pin to core {}", spec.core)))?;
    let waiting = if spec.poll { Waiting::Poll } else { Waiting::Adaptive };
    let options = Options { role: spec.role.clone(), waiting, ..Options::new("netvm-bench").with_offloads() };
    let outcome = match spec.kind {
        Kind::Forward => netlib::run(&options, |_| Forward),
        Kind::Release => netlib::run(&options, |_| Release),
        Kind::Slow => netlib::run(&options, |_| Stages {
            stages: (0..spec.stages).map(|_| Box::new(Slow { work: spec.work }) as Box<dyn Stage>).collect(),
        }),
        Kind::Timed => netlib::attach(&options.with_counters(&[BURST_CYCLES])).map(|attachment| {
            attachment.into_endpoints().iter_mut().for_each(forward_timed);
        }),
    };
    let source = std::io::Error::other;
    outcome.map_err(|error| BenchError::System { what: format!("NF {}", spec.role), source: source(error) })
}

/// An NF process. Killed on drop.
pub struct NfProcess {
    pub(crate) child: Child,
    /// Its instance id.
    pub instance: InstanceId,
    /// Its role.
    pub role: String,
    /// The NF ends when this closes. A VM has no socket and is killed.
    pub(crate) _socket: Option<OwnedFd>,
}

impl NfProcess {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it and waits for its end.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn kill(&mut self) -> Result<(), BenchError> {
        self.child
            .kill()
            .and_then(|()| self.child.wait())
            .map_err(BenchError::system("cannot kill an NF"))
            .map(drop)
    }
}

impl Drop for NfProcess {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Forward;

impl NetworkFunction for Forward {
    fn packet(&mut self, _packet: &mut Packet<'_>) -> Verdict {
        Verdict::Next
    }

    /// Leaves the burst unchanged, which forwards it to the next hop.
    fn burst(&mut self, _burst: &mut Burst<'_>) {}
}

struct Release;

impl NetworkFunction for Release {
    fn packet(&mut self, _packet: &mut Packet<'_>) -> Verdict {
        Verdict::SkipFlow(RELEASED)
    }
}

struct Slow {
    work: u32,
}

/// An NF that is one of several in a process.
trait Stage: Send {
    fn packet(&mut self, packet: &mut Packet<'_>) -> Verdict;
}

/// NFs in one process.
struct Stages {
    stages: Vec<Box<dyn Stage>>,
}

impl NetworkFunction for Stages {
    fn packet(&mut self, packet: &mut Packet<'_>) -> Verdict {
        let verdicts = self.stages.iter_mut().map(|stage| stage.packet(packet));
        verdicts.last().unwrap_or(Verdict::Next)
    }
}

impl Stage for Slow {
    /// Counts operations instead of time, so that preemption does not count as work.
    fn packet(&mut self, packet: &mut Packet<'_>) -> Verdict {
        let mut product = packet.data().first().copied().map_or(1, u64::from) | 1;
        for _ in 0..self.work {
            product = black_box(product.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        }
        black_box(product);
        Verdict::Next
    }
}

/// Full bursts between two publications of the median.
const SHOWN_EVERY: u32 = 16_384;

/// Forwards bursts and measures the cycles from before the dequeue to after the enqueue: the cost of a hop, as a hop is
/// one ring between two NFs. The median over full bursts excludes preempted ones.
fn forward_timed(endpoint: &mut Endpoint) {
    let mut histogram = Histogram::default();
    loop {
        let before = clock::cycles();
        let taken = endpoint.try_receive().map_or(0, |burst| burst.len());
        let cycles = clock::cycles().wrapping_sub(before);
        if taken == BURST {
            histogram.add(cycles);
            if histogram.count == SHOWN_EVERY {
                endpoint.report(&[histogram.median() * 100 / BURST as u64]);
                histogram = Histogram::default();
            }
        }
        if taken == 0 && (endpoint.ended() || endpoint.receive().is_none()) {
            return;
        }
    }
}

/// Histogram of cycles per burst, in steps of eight.
struct Histogram {
    count: u32,
    steps: [u32; 2048],
}

impl Default for Histogram {
    fn default() -> Self {
        Self { count: 0, steps: [0; 2048] }
    }
}

impl Histogram {
    fn add(&mut self, cycles: u64) {
        let step = (cycles / 8).min(self.steps.len() as u64 - 1);
        self.steps[step as usize] += 1;
        self.count += 1;
    }

    fn median(&self) -> u64 {
        let mut below = 0;
        let middle = self.steps.iter().position(|count| {
            below += count;
            below * 2 >= self.count
        });
        middle.unwrap_or(0) as u64 * 8 + 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_ignores_outliers() {
        let mut histogram = Histogram::default();
        for cycles in [1000; 60].into_iter().chain([1600; 40]).chain([900_000; 10]) {
            histogram.add(cycles);
        }
        assert_eq!(histogram.median(), 1004);
    }

    #[test]
    fn arguments_round_trip() {
        use clap::Parser;
        let spec = NfSpec { poll: true, work: 7, stages: 5, ..NfSpec::adaptive(Kind::Slow, "a", 3) };
        let arguments = ["netvm-bench".to_owned()].into_iter().chain(spec.arguments());
        let parsed = crate::cli::Cli::parse_from(arguments);
        assert!(matches!(parsed.command, crate::cli::Bench::Nf(parsed) if parsed == spec));
    }
}
