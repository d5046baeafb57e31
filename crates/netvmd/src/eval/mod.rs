//! `netvmd policy-eval`: a filter set and headers, without a daemon.

mod headers;
mod run;

use std::fs::File;
use std::io::{self, BufReader, BufWriter};
use std::path::{Path, PathBuf};

pub use headers::HeaderError;
use netvm_classifier::Limits;
pub use run::{EvalError, Summary, eval};

/// MiB of the EAL's memory: for classifiers of filter sets of tens of thousands of rules.
const MEMORY: u32 = 1536;

/// Why headers were not evaluated.
#[derive(Debug, thiserror::Error)]
pub enum PolicyEvalError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// DPDK does not start.
    #[error(transparent)]
    Eal(#[from] dpdk::EalError),
    /// What the files say.
    #[error("{}, {}: {source}", rules.display(), headers.display())]
    Eval {
        /// The filter set.
        rules: PathBuf,
        /// The headers.
        headers: PathBuf,
        /// What is wrong.
        source: Box<EvalError>,
    },
}

/// Writes the number of the first rule of a ClassBench filter set that matches, from 0, or `-`, a line for each header.
///
/// # Errors
/// [`PolicyEvalError`] names file and line.
pub fn policy_eval(rules: &Path, headers: &Path) -> Result<Summary, PolicyEvalError> {
    let open = |path: &Path| {
        let file = File::open(path).map(BufReader::new);
        file.map_err(|source| PolicyEvalError::Open { path: path.to_owned(), source })
    };
    let (rules_file, headers_file) = (open(rules)?, open(headers)?);
    let options = dpdk::EalOptions {
        huge_pages: dpdk::HugePages::Off,
        memory_mib: MEMORY,
        pci: false,
        ..Default::default()
    };
    let eal = dpdk::Eal::init(&options)?;
    let limits = Limits { memory: (MEMORY as usize - 256) << 20, ..Limits::default() };
    let out = BufWriter::new(io::stdout().lock());
    eval(eal, &limits, rules_file, headers_file, out).map_err(|source| PolicyEvalError::Eval {
        rules: rules.to_owned(),
        headers: headers.to_owned(),
        source: Box::new(source),
    })
}
