// SPDX-License-Identifier: Apache-2.0
//! The peers that netvm is compared with, in separate processes.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use rustix::process::{Signal, set_parent_process_death_signal};
use serde::de::DeserializeOwned;

use crate::error::BenchError;

pub mod bridge;
pub mod capture;
pub mod fib;
pub mod grout;
pub mod guests;
pub mod kernel;
pub mod ovs;
pub mod ring;
pub mod testpmd;
pub mod timing;
pub mod vpp;

/// Has the kernel kill a peer when this process ends.
fn kill_with_parent(command: &mut Command) {
    // SAFETY: between fork and exec it makes one system call, without allocation or locks.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
}

/// Runs this program as a peer in a child process, because DPDK starts only once per process and a namespace is for
/// ever; returns its result.
///
/// # Errors
/// [`BenchError::Peer`] with its message.
fn run_itself<T: DeserializeOwned>(peer: &'static str, arguments: Vec<String>) -> Result<T, BenchError> {
    let failed = |problem: String| BenchError::Peer { peer, problem };
    let program = crate::machine::own_program()?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().map_err(BenchError::system("cannot start the peer"))?;
    if !output.status.success() {
        return Err(failed(format!("ended with {}; see its message above", output.status)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| failed(format!("malformed result: {error}")))
}

/// Runs a program with this input, and returns what it prints on standard error, and its status.
fn converse(command: &mut Command, input: &str) -> io::Result<Output> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut pipe) = child.stdin.take() {
        match pipe.write_all(input.as_bytes()) {
            // The program prints why it stopped reading.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
            _ => {}
        }
    }
    child.wait_with_output()
}
