//! netvm at work, on any Linux machine: two network namespaces, and between them netvmd with a chain of three NF processes.
//!
//! `stage` builds what is shown and takes it down again, `show` is the plot; `traffic` and `crash` are what happens,
//! `report` and `tables` what is made of it. Everything that is made has a guard that removes it, and signals only set a
//! flag (`interrupt`), so that there is one way out. See `docs/tutorials/demo.md`.
#![forbid(unsafe_code)]

mod cleanup;
mod crash;
mod daemon;
mod failure;
mod interrupt;
mod names;
mod namespaces;
mod process;
mod report;
mod show;
mod stage;
mod story;
mod tables;
mod traffic;

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::Parser;

use crate::failure::{Failure, io};
use crate::interrupt::Interrupt;

/// Shows HTTP and pings between two network namespaces pass through a chain of three NF processes, without being copied
/// between them. Removes at its end what it made.
#[derive(Clone, Copy, Debug, Parser)]
#[command(name = "netvm-demo", version)]
pub struct Options {
    /// Take the interfaces by AF_PACKET; without it, by AF_XDP where the kernel lets us
    #[arg(long)]
    af_packet: bool,
    /// At the end leave all of it running until Ctrl-C, and say what can be tried
    #[arg(long)]
    keep: bool,
    /// Print one JSON object on standard output; the story goes to standard error
    #[arg(long)]
    json: bool,
}

/// Exit status after Ctrl-C, as shells have it.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let options = Options::parse();
    let outcome = prepare().and_then(|interrupt| show::show(options, &interrupt));
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(Failure::Interrupted) => {
            eprintln!("netvm-demo: interrupted; what it had made is removed");
            ExitCode::from(INTERRUPTED)
        }
        Err(error) => {
            eprintln!("netvm-demo: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What has to hold before anything is made.
fn prepare() -> Result<Interrupt, Failure> {
    if !rustix::process::geteuid().is_root() {
        let own = std::env::current_exe().map_err(io("finding this program"))?;
        eprintln!("netvm-demo: making network namespaces takes root: asking sudo");
        // Returns only when there is no sudo.
        let _ = Command::new("sudo").arg(own).args(std::env::args_os().skip(1)).exec();
        return Err(Failure::NotRoot);
    }
    process::check_tools()?;
    daemon::programs()?;
    Interrupt::listen().map_err(io("listening to signals"))
}
