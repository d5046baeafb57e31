// SPDX-License-Identifier: Apache-2.0
//! Why a replay failed.

use std::path::PathBuf;

use super::limits::STALL_TIMEOUT;
use crate::engine_thread::EngineThreadError;
use crate::process::{FilterError, ProcessSpecError};

/// A replay failed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The capture cannot be opened.
    #[error(transparent)]
    Open(#[from] netvm_capture::OpenError),
    /// Input and output are the same file.
    #[error("{} is both input and output: name another output file", .0.display())]
    SameFile(PathBuf),
    /// The input cannot be stored for a second reading.
    #[error("cannot store {}: {source}", .path.display())]
    Input {
        /// The input.
        path: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The output cannot be written.
    #[error("cannot write {}: {source}", .path.display())]
    Output {
        /// The output.
        path: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The chain cannot be split into words.
    #[error("--chain: a quote is not closed, or a backslash is at the end")]
    Quote,
    /// The chain is empty.
    #[error("the chain is empty: name at least one NF, such as --chain simple-forward")]
    NoChain,
    /// The chain is too long.
    #[error("a chain of {count} NFs is too long; the limit is {}", netvm_model::MAX_HOPS)]
    TooMany {
        /// Its length.
        count: usize,
    },
    /// An NF cannot be started.
    #[error(transparent)]
    ProcessSpec(#[from] ProcessSpecError),
    /// The sandbox cannot be prepared.
    #[error(transparent)]
    Sandbox(#[from] FilterError),
    /// The engine did not start.
    #[error(transparent)]
    Engine(#[from] EngineThreadError),
    /// The engine has ended.
    #[error(transparent)]
    Gone(#[from] crate::engine_thread::EngineGone),
    /// The engine refused the configuration.
    #[error(transparent)]
    Apply(#[from] netvm_engine::ApplyError),
    /// The CPU affinity cannot be read.
    #[error("cannot read the CPU affinity: {0}")]
    Cores(std::io::Error),
    /// An NF ended during the replay.
    #[error("NF {role} ended ({how}) after {packets} packets: the output is incomplete")]
    NfEnded {
        /// Its role.
        role: String,
        /// Its exit reason.
        how: String,
        /// Packets written until then.
        packets: u64,
    },
    /// A capture cannot be read or written to its end.
    #[error("{0}")]
    Capture(String),
    /// No progress.
    #[error("no progress for {} s: {packets} packets read, {written} written, {out} in NFs", STALL_TIMEOUT.as_secs())]
    Stalled {
        /// Packets read.
        packets: u64,
        /// Packets written.
        written: u64,
        /// Packets that NFs hold.
        out: u32,
    },
}
