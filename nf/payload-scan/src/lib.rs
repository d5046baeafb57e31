// SPDX-License-Identifier: Apache-2.0
//! Steers packets by their content: deep packet inspection as in NetVM (section 5.5 of its paper).
//!
//! Searches for all patterns of a file at once (Aho and Corasick, 1975). The first pattern of the file that is in a
//! packet decides the packet's destination. Each packet is scanned by itself; the engine can apply the verdict to the
//! rest of its flow (`--drop-flow`, `--skip-after`).
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

pub use action::{Action, Destination};
pub use pattern::Pattern;
pub use patterns::Patterns;
pub use scan::{COUNTERS, PayloadScan};

/// The program's name.
pub const NAME: &str = "netvm-payload-scan";

/// Most patterns with a counter.
pub const MAX_SHOWN: usize = MAX_COUNTERS - COUNTERS.len();

/// Drop, steer and count packets by their content
#[derive(Clone, Debug, Parser)]
#[command(name = NAME, version)]
pub struct Args {
    /// Common options.
    #[command(flatten)]
    pub common: CommonArgs,
    /// File of patterns, one on each line: [drop|next|port:NAME|role:NAME|count] "text"|hex:BYTES; reloaded on SIGHUP
    #[arg(long, value_name = "FILE")]
    pub patterns: PathBuf,
    /// Destination of packets without a deciding pattern: drop, next, port:NAME or role:NAME
    #[arg(long, value_name = "DESTINATION", default_value_t)]
    pub default: Destination,
    /// Ignore the case of ASCII letters in all text patterns; for one pattern, write "text"i
    #[arg(long)]
    pub ignore_case: bool,
    /// Search whole frames, headers and padding included, instead of the transport payload
    #[arg(long)]
    pub whole_frame: bool,
    /// After a pattern drops a packet, also drop the rest of its flow; without `flow_verdicts` in the NF's
    /// configuration, drops only the packet
    #[arg(long)]
    pub drop_flow: bool,
    /// Let a flow bypass this NF after this many packets without a deciding pattern; needs --default next and
    /// `flow_verdicts`
    #[arg(long, value_name = "PACKETS")]
    pub skip_after: Option<NonZero<u16>>,
    /// Idle time in seconds after which a flow is scanned again; `flow_verdicts` limits it
    #[arg(long, value_name = "SECONDS", default_value_t = u16::MAX, hide_default_value = true)]
    pub flow_idle: u16,
    /// Action for packets with truncated or inconsistent headers; not used with --whole-frame
    #[arg(long, value_enum, default_value_t)]
    pub malformed: MalformedPolicy,
}

/// Names of the counters for `patterns` patterns: [`COUNTERS`], and one for each of the first [`MAX_SHOWN`].
#[must_use]
pub fn counters(patterns: usize) -> Vec<String> {
    let shown = (1..=patterns.min(MAX_SHOWN)).map(|number| format!("pattern-{number}"));
    COUNTERS.iter().map(|name| (*name).to_owned()).chain(shown).collect()
}

/// Runs the NF until it is stopped.
///
/// # Errors
/// [`Failure`] if the patterns are wrong or it cannot attach.
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
