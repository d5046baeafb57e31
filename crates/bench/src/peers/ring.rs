// SPDX-License-Identifier: Apache-2.0
//! DPDK's `rte_ring` between two threads: C code (`peer/ring.c`) in a child process, because DPDK starts only once per
//! process.

use clap::Args;
use serde::{Deserialize, Serialize};

use super::run_itself;
use crate::error::BenchError;
use crate::machine::Cores;
use crate::machine::huge_pages_are_worthwhile;
use crate::measure::harness::Plan;

const NAME: &str = "rte_ring";

/// The measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Args)]
pub struct RingSpec {
    /// The core that receives and sends.
    #[arg(long)]
    core_a: u32,
    /// The core of the second thread.
    #[arg(long)]
    core_b: u32,
    /// Packet size in bytes.
    #[arg(long)]
    packet_bytes: u32,
    /// Mbufs of the pool.
    #[arg(long)]
    buffers: u32,
    /// Packet data separate from the mbuf headers, as in netvm's pools.
    #[arg(long)]
    extbuf: bool,
    /// Check for room in the ring before receiving, instead of freeing packets that do not fit.
    #[arg(long)]
    wait: bool,
    /// The second thread neither reads packets nor gives verdicts: rings alone.
    #[arg(long)]
    blind: bool,
    /// Burst size, at most 64.
    #[arg(long)]
    burst: u32,
    /// Use huge pages.
    #[arg(long)]
    huge_pages: bool,
    #[arg(long)]
    warm_up_millis: u32,
    #[arg(long)]
    window_millis: u32,
}

/// Kind of pool, handling of a full ring, verdicts and burst size; see [`RingSpec`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as the options")]
pub struct Variant {
    pub extbuf: bool,
    pub wait: bool,
    pub blind: bool,
    pub burst: u32,
}

impl Default for Variant {
    /// As in openNetVM.
    fn default() -> Self {
        Self { extbuf: false, wait: false, blind: false, burst: 32 }
    }
}

/// The result.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Outcome {
    packets: u64,
    seconds: f64,
}

impl RingSpec {
    /// A measurement with 64-byte packets.
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

/// Runs the peer in a child process; returns million packets per second.
///
/// # Errors
/// [`BenchError::Peer`] with its message.
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

/// Runs as the peer and prints the result.
///
/// # Errors
/// DPDK's error.
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
    // SAFETY: both structures match the header and outlive the call; this subcommand makes the call once, before
    // anything else of DPDK.
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
    fn arguments_round_trip() {
        let plan = Plan {
            runs: 1,
            warm_up: Duration::from_millis(100),
            window: Duration::from_millis(300),
            limit: None,
        };
        for variant in [
            Variant { extbuf: true, ..Variant::default() },
            Variant { wait: true, blind: true, burst: 64, ..Variant::default() },
        ] {
            let spec = RingSpec::new(variant, Cores { engine: 2, nf: 5 }, 4096, &plan);
            let arguments = ["netvm-bench".to_owned()].into_iter().chain(spec.arguments());
            let parsed = crate::cli::Cli::parse_from(arguments);
            assert!(matches!(parsed.command, crate::cli::Bench::RingPeer(parsed) if parsed == spec));
        }
    }
}
