//! The NFs of the benchmarks: this program again, as a process of its own.

use std::hint::black_box;

use clap::{Args, ValueEnum};
use netlib::{BURST, Burst, Endpoint, NetworkFunction, Options, Packet, Verdict, Waiting, clock};

use crate::error::BenchError;
use crate::machine::pin;

/// The counter in which a timed NF shows its median, in hundredths of cycles per packet.
pub const BURST_CYCLES: &str = "burst-cycles";

/// What an NF does with packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Hands every burst on and looks at nothing.
    Forward,
    /// The same, and times itself; see [`BURST_CYCLES`].
    Timed,
    /// Works on every packet for a while before it hands it on.
    Slow,
}

/// How an NF is started.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct NfSpec {
    /// What it does.
    #[arg(long)]
    pub kind: Kind,
    /// The role under which it answers.
    #[arg(long)]
    pub role: String,
    /// The core that it is bound to.
    #[arg(long)]
    pub core: u32,
    /// Spin in place of sleeping when there is nothing to do.
    #[arg(long)]
    pub poll: bool,
    /// Work per packet of a slow NF, in multiplications that wait for each other.
    #[arg(long, default_value_t = 0)]
    pub work: u32,
}

impl NfSpec {
    /// An adaptive NF.
    pub fn adaptive(kind: Kind, role: &str, core: u32) -> Self {
        Self { kind, role: role.to_owned(), core, poll: false, work: 0 }
    }

    /// The arguments that make this program such an NF.
    pub fn arguments(&self) -> Vec<String> {
        let kind = match self.kind {
            Kind::Forward => "forward",
            Kind::Timed => "timed",
            Kind::Slow => "slow",
        };
        let mut list = vec!["nf".to_owned(), format!("--kind={kind}"), format!("--role={}", self.role)];
        list.extend([format!("--core={}", self.core), format!("--work={}", self.work)]);
        list.extend(self.poll.then(|| "--poll".to_owned()));
        list
    }
}

/// Is an NF until the engine ends or says so.
///
/// # Errors
/// When it cannot be bound to its core, or cannot attach.
pub fn run(spec: &NfSpec) -> Result<(), BenchError> {
    pin(spec.core).map_err(BenchError::system(format!("binding to core {}", spec.core)))?;
    let waiting = if spec.poll { Waiting::Poll } else { Waiting::Adaptive };
    let options = Options { role: spec.role.clone(), waiting, ..Options::new("netvm-bench") };
    let outcome = match spec.kind {
        Kind::Forward => netlib::run(&options, |_| Forward),
        Kind::Slow => netlib::run(&options, |_| Slow { work: spec.work }),
        Kind::Timed => netlib::attach(&options.with_counters(&[BURST_CYCLES])).map(|attachment| {
            attachment.into_endpoints().iter_mut().for_each(forward_timed);
        }),
    };
    let source = std::io::Error::other;
    outcome.map_err(|error| BenchError::System { what: format!("NF {}", spec.role), source: source(error) })
}

struct Forward;

impl NetworkFunction for Forward {
    fn packet(&mut self, _packet: &mut Packet<'_>) -> Verdict {
        Verdict::Next
    }

    /// A burst that is left alone goes to the next hop.
    fn burst(&mut self, _burst: &mut Burst<'_>) {}
}

struct Slow {
    work: u32,
}

impl NetworkFunction for Slow {
    /// Work by count and not by the clock: time in which another process has the core is no work.
    fn packet(&mut self, packet: &mut Packet<'_>) -> Verdict {
        let mut product = packet.data().first().copied().map_or(1, u64::from) | 1;
        for _ in 0..self.work {
            product = black_box(product.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        }
        black_box(product);
        Verdict::Next
    }
}

/// Full bursts after which the median is shown and counting begins anew.
const SHOWN_EVERY: u32 = 16_384;

/// Hands bursts on, and takes the cycles from before a burst is taken out of its ring until after it is in the next one:
/// what a hop costs, since every hop is one ring that one NF takes from and another one puts into. Medians over full
/// bursts leave out those in which the core was taken away.
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

/// Cycles of bursts, in steps of eight.
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
    fn the_median_leaves_out_what_is_rare() {
        let mut histogram = Histogram::default();
        for cycles in [1000; 60].into_iter().chain([1600; 40]).chain([900_000; 10]) {
            histogram.add(cycles);
        }
        assert_eq!(histogram.median(), 1004);
    }

    #[test]
    fn arguments_make_the_same_nf() {
        use clap::Parser;
        let spec = NfSpec { poll: true, work: 7, ..NfSpec::adaptive(Kind::Slow, "a", 3) };
        let arguments = ["netvm-bench".to_owned()].into_iter().chain(spec.arguments());
        let parsed = crate::cli::Cli::parse_from(arguments);
        assert!(matches!(parsed.command, crate::cli::Command::Nf(parsed) if parsed == spec));
    }
}
