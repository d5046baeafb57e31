// SPDX-License-Identifier: Apache-2.0
//! Commands that need no daemon: `netvmd replay` and `netvmd policy-eval`.

mod chain;
mod error;
mod eval;
mod files;
mod headers;
mod limits;
mod replay;
mod report;

use std::fs::File;
use std::io::{self, BufReader, BufWriter};
use std::path::{Path, PathBuf};

pub use error::ReplayError;
pub use eval::{EvalError, EvalInput, Summary, eval};
pub use files::CutFrames;
pub use headers::HeaderError;
use netvm_classifier::Limits;
pub use replay::{Replay, replay};
pub use report::{ReplayNf, ReplayReport};

/// EAL memory in MiB; enough for filter sets of tens of thousands of rules.
const MEMORY: u32 = 1536;

/// Headers cannot be evaluated.
#[derive(Debug, thiserror::Error)]
pub enum PolicyEvalError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// DPDK does not start.
    #[error(transparent)]
    Eal(#[from] dpdk::EalError),
    /// A file is malformed.
    #[error("{}, {}: {source}", rules.display(), headers.display())]
    Eval {
        /// The filter set.
        rules: PathBuf,
        /// The headers.
        headers: PathBuf,
        /// The error.
        source: Box<EvalError>,
    },
}

/// Prints for each header, on a line, the number of the first matching rule of a ClassBench filter set, from 0, or `-`.
///
/// # Errors
/// [`PolicyEvalError`] names file and line.
pub fn policy_eval(rules: &Path, headers: &Path) -> Result<Summary, PolicyEvalError> {
    let open = |path: &Path| {
        let file = File::open(path).map(BufReader::new);
        file.map_err(|source| PolicyEvalError::Open { path: path.to_owned(), source })
    };
    let input = EvalInput { rules: open(rules)?, headers: open(headers)? };
    let options = dpdk::EalOptions {
        huge_pages: dpdk::HugePages::Off,
        memory_mib: MEMORY,
        pci: false,
        ..Default::default()
    };
    let eal = dpdk::Eal::init(&options)?;
    let limits = Limits { memory: (MEMORY as usize - 256) << 20, ..Limits::default() };
    let out = BufWriter::new(io::stdout().lock());
    eval(eal, &limits, input, out).map_err(|source| PolicyEvalError::Eval {
        rules: rules.to_owned(),
        headers: headers.to_owned(),
        source: Box::new(source),
    })
}
