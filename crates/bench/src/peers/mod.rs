//! What netvm is compared with, each a process of its own.

use std::process::{Command, Stdio};

use serde::de::DeserializeOwned;

use crate::error::BenchError;

pub mod fib;
pub mod guests;
pub mod ovs;
pub mod ring;
pub mod testpmd;

/// Runs this program as a comparison that links DPDK by itself, which starts once per process; what it measured.
///
/// # Errors
/// [`BenchError::Peer`] with what it said.
fn run_itself<T: DeserializeOwned>(peer: &'static str, arguments: Vec<String>) -> Result<T, BenchError> {
    let failed = |problem: String| BenchError::Peer { peer, problem };
    let program = std::env::current_exe().map_err(BenchError::system("finding this program"))?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().map_err(BenchError::system("starting the comparison"))?;
    if !output.status.success() {
        return Err(failed(format!("ended with {}; its message is above", output.status)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| failed(format!("said no figures: {error}")))
}
