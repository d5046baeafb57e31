// SPDX-License-Identifier: Apache-2.0
//! The result of a replay.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

/// The result of a replay.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct ReplayReport {
    /// The capture that was read.
    pub input: PathBuf,
    /// The capture that was written.
    pub output: PathBuf,
    /// Packets read.
    pub packets_in: u64,
    /// Packets written.
    pub packets_out: u64,
    /// Frames of the input that were not replayed; a truncated or damaged end counts as one. `warnings` say why.
    pub skipped: u64,
    /// Packets dropped, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// The counters of each NF.
    pub chain: Vec<ReplayNf>,
    /// What is missing in the result.
    pub warnings: Vec<String>,
}

/// An NF of the chain.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct ReplayNf {
    /// Its role.
    pub role: String,
    /// Packets received.
    pub received: u64,
    /// Its own counters.
    pub counters: BTreeMap<String, u64>,
}

impl fmt::Display for ReplayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs = |counts: &BTreeMap<String, u64>| {
            counts.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
        };
        let dropped = if self.dropped.is_empty() { "none".to_owned() } else { pairs(&self.dropped) };
        write!(f, "{} packets in, {} out, dropped: {dropped}", self.packets_in, self.packets_out)?;
        if self.skipped > 0 {
            write!(f, ", skipped: {}", self.skipped)?;
        }
        for nf in &self.chain {
            let own =
                if nf.counters.is_empty() { String::new() } else { format!("; {}", pairs(&nf.counters)) };
            write!(f, "\n  {}: {} received{own}", nf.role, nf.received)?;
        }
        for warning in &self.warnings {
            write!(f, "\nwarning: {warning}")?;
        }
        Ok(())
    }
}
