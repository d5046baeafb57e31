//! A flow monitor: packets and bytes by flow in a bounded table, totals by protocol, and a report of the largest flows.
#![forbid(unsafe_code)]

mod flows;
mod monitor;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use netvm_nf_common::{CommonArgs, Failure, MalformedPolicy, run as run_nf};

pub use flows::{Flow, Flows, Snapshot, Totals};
pub use monitor::{COUNTERS, Monitor};
pub use report::{Reporter, Sink};

/// The program's name.
pub const NAME: &str = "netvm-monitor";

/// Count packets and bytes by flow and by protocol; packets pass unchanged
#[derive(Clone, Debug, Parser)]
#[command(name = NAME, version)]
pub struct Args {
    /// Common options.
    #[command(flatten)]
    pub common: CommonArgs,
    /// Write a report to this file, as JSON, every interval and at the end; - is standard output
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Interval between reports in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub interval: u64,
    /// Number of the largest flows in a report
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub top: u16,
    /// Rank flows by this amount
    #[arg(long, value_enum, default_value_t = Rank::Bytes)]
    pub by: Rank,
    /// Size of each thread's flow table; when it is full, the longest silent flow is evicted
    #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub flows: u32,
    /// Action for packets with truncated or inconsistent headers
    #[arg(long, value_enum, default_value_t = MalformedPolicy::Pass)]
    pub malformed: MalformedPolicy,
}

/// The amount by which flows are ranked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Rank {
    /// By bytes
    Bytes,
    /// By packets
    Packets,
}

/// Runs the NF until it is stopped.
///
/// # Errors
/// [`Failure`] if it cannot attach or cannot write its last report.
pub fn run(args: &Args) -> Result<(), Failure> {
    let options = args.common.options(NAME, &COUNTERS);
    let Some(path) = &args.report else {
        return run_nf(&options, None, |context| Monitor::new(args.clone(), None, context));
    };
    let reporter = Reporter::new(path.clone(), usize::from(args.top), args.by);
    let interval = Duration::from_secs(args.interval);
    let writer = reporter.start(options.threads)?;
    let ran = run_nf(&options, None, |context| {
        let sink = Sink::new(writer.sender(), context.thread(), interval);
        Monitor::new(args.clone(), Some(sink), context)
    });
    let written = writer.finish();
    ran.and(written)
}
