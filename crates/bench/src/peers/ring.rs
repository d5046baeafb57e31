//! DPDK's `rte_ring` between two threads: a program in C (`peer/ring.c`) that runs as a child process, since DPDK starts
//! once per process.

use clap::Args;
use serde::{Deserialize, Serialize};

use super::run_itself;
use crate::cli::Cores;
use crate::error::BenchError;
use crate::harness::Plan;
use crate::machine::huge_pages_are_worthwhile;

const NAME: &str = "rte_ring";

/// What the comparison does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Args)]
pub struct RingSpec {
    /// The core that receives and sends.
    #[arg(long)]
    core_a: u32,
    /// The core that packets are carried to.
    #[arg(long)]
    core_b: u32,
    /// Bytes of a packet.
    #[arg(long)]
    packet_bytes: u32,
    /// Mbufs of the pool.
    #[arg(long)]
    buffers: u32,
    /// Packet data apart from the mbuf headers, as in netvm's own pools.
    #[arg(long)]
    extbuf: bool,
    /// Look for room in the ring before receiving, in place of freeing what does not fit.
    #[arg(long)]
    wait: bool,
    /// The second thread looks at no packet and says nothing of it: rings alone.
    #[arg(long)]
    blind: bool,
    /// Packets of a burst, at most 64.
    #[arg(long)]
    burst: u32,
    /// DPDK's memory in huge pages.
    #[arg(long)]
    huge_pages: bool,
    #[arg(long)]
    warm_up_millis: u32,
    #[arg(long)]
    window_millis: u32,
}

/// Which kind of pool, what is done when the ring is full, whether there are verdicts, and how long bursts are; see
/// [`RingSpec`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as the options")]
pub struct Variant {
    pub extbuf: bool,
    pub wait: bool,
    pub blind: bool,
    pub burst: u32,
}

impl Default for Variant {
    /// As openNetVM does it.
    fn default() -> Self {
        Self { extbuf: false, wait: false, blind: false, burst: 32 }
    }
}

/// What it measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Outcome {
    packets: u64,
    seconds: f64,
}

impl RingSpec {
    /// For these cores and times, 64-byte packets.
    pub fn new(variant: Variant, cores: Cores, buffers: u32, plan: &Plan) -> Self {
        Self {
            core_a: cores.engine,
            core_b: cores.nf,
            packet_bytes: 64,
            buffers,
            extbuf: variant.extbuf,
            wait: variant.wait,
            blind: variant.blind,
            burst: variant.burst,
            huge_pages: huge_pages_are_worthwhile(),
            warm_up_millis: plan.warm_up.as_millis() as u32,
            window_millis: plan.window.as_millis() as u32,
        }
    }

    fn arguments(&self) -> Vec<String> {
        let mut list = vec!["ring-peer".to_owned()];
        let numbers = [
            ("core-a", self.core_a),
            ("core-b", self.core_b),
            ("packet-bytes", self.packet_bytes),
            ("buffers", self.buffers),
            ("burst", self.burst),
            ("warm-up-millis", self.warm_up_millis),
            ("window-millis", self.window_millis),
        ];
        list.extend(numbers.map(|(name, value)| format!("--{name}={value}")));
        let flags = [
            ("extbuf", self.extbuf),
            ("wait", self.wait),
            ("blind", self.blind),
            ("huge-pages", self.huge_pages),
        ];
        list.extend(flags.into_iter().filter(|(_, on)| *on).map(|(name, _)| format!("--{name}")));
        list
    }
}

/// Runs the comparison in a child process; million packets per second.
///
/// # Errors
/// [`BenchError::Peer`] with what it said.
pub fn measure(spec: &RingSpec) -> Result<f64, BenchError> {
    let outcome: Outcome = run_itself(NAME, spec.arguments())?;
    if outcome.packets == 0 {
        return Err(BenchError::Nothing { what: NAME.to_owned(), seconds: outcome.seconds });
    }
    Ok(outcome.packets as f64 / outcome.seconds / 1e6)
}

/// As in `peer/ring.h`.
#[repr(C)]
struct Options {
    core_a: u32,
    core_b: u32,
    packet_bytes: u32,
    buffers: u32,
    extbuf: u32,
    wait: u32,
    blind: u32,
    burst: u32,
    huge_pages: u32,
    warm_up_millis: u32,
    window_millis: u32,
}

/// As in `peer/ring.h`.
#[repr(C)]
struct Counts {
    packets: u64,
    seconds: f64,
}

unsafe extern "C" {
    fn netvm_bench_ring(options: *const Options, counts: *mut Counts) -> i32;
}

/// Is the comparison; prints what it measured.
///
/// # Errors
/// DPDK's.
pub fn run(spec: &RingSpec) -> Result<(), BenchError> {
    let options = Options {
        core_a: spec.core_a,
        core_b: spec.core_b,
        packet_bytes: spec.packet_bytes,
        buffers: spec.buffers,
        extbuf: spec.extbuf.into(),
        wait: spec.wait.into(),
        blind: spec.blind.into(),
        burst: spec.burst,
        huge_pages: spec.huge_pages.into(),
        warm_up_millis: spec.warm_up_millis,
        window_millis: spec.window_millis,
    };
    let mut counts = Counts { packets: 0, seconds: 0.0 };
    // SAFETY: both structures are those of the header and live until the call returns; the process calls it once, before
    // anything else of DPDK, as this sub-command does nothing else.
    let error = unsafe { netvm_bench_ring(&raw const options, &raw mut counts) };
    if error != 0 {
        let problem = std::io::Error::from_raw_os_error(-error).to_string();
        return Err(BenchError::Peer { peer: NAME, problem });
    }
    let outcome = Outcome { packets: counts.packets, seconds: counts.seconds };
    println!("{}", serde_json::json!(outcome));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::time::Duration;

    #[test]
    fn arguments_make_the_same_comparison() {
        let plan = Plan { runs: 1, warm_up: Duration::from_millis(100), window: Duration::from_millis(300) };
        for variant in [
            Variant { extbuf: true, ..Variant::default() },
            Variant { wait: true, blind: true, burst: 64, ..Variant::default() },
        ] {
            let spec = RingSpec::new(variant, Cores { engine: 2, nf: 5 }, 4096, &plan);
            let arguments = ["netvm-bench".to_owned()].into_iter().chain(spec.arguments());
            let parsed = crate::cli::Cli::parse_from(arguments);
            assert!(matches!(parsed.command, crate::cli::Command::RingPeer(parsed) if parsed == spec));
        }
    }
}
