// SPDX-License-Identifier: Apache-2.0
//! The demo, for any Linux machine: two network namespaces joined by netvmd with a chain of three NF processes.
//!
//! `stage` sets everything up and removes it, `show` is the sequence of steps, `traffic` and `crash` the steps,
//! `report` and `tables` the results. Everything created has a guard that removes it, and signals only set a flag
//! (`interrupt`), so the demo has one exit path. See `docs/tutorials/demo.md`.
#![forbid(unsafe_code)]

mod crash;
mod daemon;
mod failure;
mod host;
mod log;
mod report;
mod show;
mod stage;
mod traffic;

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::Parser;

use crate::failure::{Failure, io};
use crate::host::interrupt::Interrupt;

/// Pass HTTP and pings between two network namespaces through a chain of three NF processes that share packets without
/// copies
///
/// Removes everything that it created at its end.
#[derive(Clone, Copy, Debug, Parser)]
#[command(name = "netvm-demo", version)]
pub struct Options {
    /// Use AF_XDP ports, with packets of at most the MTU [default: AF_PACKET, with segments]
    #[arg(long)]
    af_xdp: bool,
    /// Keep everything running until Ctrl-C, and print commands to try
    #[arg(long)]
    keep: bool,
    /// Print one JSON object on standard output, and progress on standard error
    #[arg(long)]
    json: bool,
}

/// Exit status after Ctrl-C, as in shells.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let options = Options::parse();
    let outcome = prepare().and_then(|interrupt| show::show(options, &interrupt));
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(Failure::Interrupted) => {
            eprintln!("netvm-demo: interrupted; removed everything it created");
            ExitCode::from(INTERRUPTED)
        }
        Err(error) => {
            eprintln!("netvm-demo: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Checks the requirements.
fn prepare() -> Result<Interrupt, Failure> {
    if !rustix::process::geteuid().is_root() {
        let own = std::env::current_exe().map_err(io("cannot find this program"))?;
        eprintln!("netvm-demo: creating network namespaces needs root: running sudo");
        // Returns only without sudo.
        let _ = Command::new("sudo").arg(own).args(std::env::args_os().skip(1)).exec();
        return Err(Failure::NotRoot);
    }
    host::process::check_tools()?;
    daemon::programs()?;
    Interrupt::listen().map_err(io("cannot handle signals"))
}
