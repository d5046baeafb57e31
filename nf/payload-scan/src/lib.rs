//! Steers packets by their content: deep packet inspection as in NetVM (section 5.5 of its paper).
//!
//! All patterns of a file are searched for at once (Aho and Corasick, 1975). Each says what becomes of a packet that has it; of
//! several, the first in the file decides. Each packet is looked at by itself; what becomes of the rest of its flow can be left to
//! the engine (`--drop-flow`, `--skip-after`).
#![forbid(unsafe_code)]

mod action;
mod flows;
mod pattern;
mod patterns;
mod scan;

use std::num::NonZero;
use std::path::PathBuf;

use clap::Parser;
use netlib::MAX_COUNTERS;
use netvm_nf_common::{CommonArgs, Failure, Live, MalformedPolicy, run as run_nf};

pub use action::{Action, Way};
pub use pattern::Pattern;
pub use patterns::Patterns;
pub use scan::{COUNTERS, PayloadScan};

/// The program's name.
pub const NAME: &str = "netvm-payload-scan";

/// Patterns that can have a counter of their own.
pub const MAX_SHOWN: usize = MAX_COUNTERS - COUNTERS.len();

/// Drops, steers and counts packets by what is in them.
#[derive(Clone, Debug, Parser)]
#[command(name = NAME, version)]
pub struct Args {
    /// Attaching and waiting.
    #[command(flatten)]
    pub common: CommonArgs,
    /// File of patterns, one a line: [drop|next|port:NAME|role:NAME|count] "text"|hex:BYTES; read again on SIGHUP
    #[arg(long, value_name = "FILE")]
    pub patterns: PathBuf,
    /// What becomes of packets in which no pattern is that decides: drop, next, port:NAME or role:NAME
    #[arg(long, value_name = "WAY", default_value_t)]
    pub default: Way,
    /// Take ASCII letters of all text patterns in either case; for one pattern, write "text"i
    #[arg(long)]
    pub ignore_case: bool,
    /// Search whole frames, headers and padding too, instead of what is behind the transport header
    #[arg(long)]
    pub whole_frame: bool,
    /// Drop the rest of a flow, too, when a pattern drops one of its packets; needs `flow_verdicts` of the NF in netvmd's
    /// configuration, and otherwise drops the packet alone
    #[arg(long)]
    pub drop_flow: bool,
    /// Let a flow pass by this NF after so many packets in which no pattern was that decides; with --default next, and
    /// with `flow_verdicts`
    #[arg(long, value_name = "PACKETS")]
    pub skip_after: Option<NonZero<u16>>,
    /// Seconds for which a flow is idle until it is looked at again; `flow_verdicts` bounds it
    #[arg(long, value_name = "SECONDS", default_value_t = u16::MAX, hide_default_value = true)]
    pub flow_idle: u16,
    /// What becomes of packets whose headers are cut or contradict themselves; not looked at with --whole-frame
    #[arg(long, value_enum, default_value_t)]
    pub malformed: MalformedPolicy,
}

/// Names of the counters, for so many patterns: [`COUNTERS`], and one for each of the first [`MAX_SHOWN`].
#[must_use]
pub fn counters(patterns: usize) -> Vec<String> {
    let shown = (1..=patterns.min(MAX_SHOWN)).map(|number| format!("pattern-{number}"));
    COUNTERS.iter().map(|name| (*name).to_owned()).chain(shown).collect()
}

/// Runs the NF until it is told to end.
///
/// # Errors
/// [`Failure`] when the patterns cannot be used, or it cannot attach.
pub fn run(args: &Args) -> Result<(), Failure> {
    let (path, ignore_case) = (args.patterns.clone(), args.ignore_case);
    let patterns = Live::new(move || Patterns::read(&path, ignore_case))?;
    let at_first = patterns.view().get().list().len();
    let counters = counters(at_first);
    let names: Vec<_> = counters.iter().map(String::as_str).collect();
    run_nf(&args.common.options(NAME, &names), Some(patterns.request()), |context| {
        PayloadScan::new(args.clone(), patterns.view(), at_first, context)
    })
}
