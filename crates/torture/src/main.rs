// SPDX-License-Identifier: Apache-2.0
//! `netvm-torture`: a real netvmd with real NFs, disturbed at random for a given time. Each second it must answer, and
//! a chain that nothing touches must lose no packet. In the end every buffer must be free, no process left, and
//! netvmd's memory and descriptors as before.
#![forbid(unsafe_code)]

mod abuse;
mod checks;
mod config;
mod daemon;
mod disturb;
mod failure;
mod hostile;
mod huge_pages;
mod interfaces;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};

use checks::{Footprint, SteadyChain};
use daemon::Daemon;
use disturb::{Disturber, starve};
use failure::Failure;
use hostile::Mode;
use huge_pages::HugePages;

/// Interval of checks.
const CHECK: Duration = Duration::from_secs(1);
/// Interval of progress lines.
const PROGRESS: Duration = Duration::from_secs(10);
/// Footprints are compared from then on.
const WARM_UP: Duration = Duration::from_secs(8);

/// Disturb a netvmd at random, and check that nothing is lost
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Arguments {
    /// How long
    #[arg(default_value_t = 600)]
    seconds: u64,
    /// Repeats the disturbances of a run
    #[arg(long)]
    seed: Option<u64>,
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// A part of a run: an NF that misbehaves
    #[command(hide = true)]
    Hostile { mode: Mode },
    /// A part of a run: threads that take a core from a process
    #[command(hide = true)]
    Hogs { pid: u32, core: usize },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.part {
        Some(Part::Hostile { mode }) => return hostile::run(mode),
        Some(Part::Hogs { pid, core }) => return starve::take_core(pid, core),
        None => {}
    }
    let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..));
    println!("{} s, seed {seed}", arguments.seconds);
    match run(Duration::from_secs(arguments.seconds), seed) {
        Ok(()) => {
            println!("nothing was lost");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("netvm-torture: {error} (seed {seed})");
            ExitCode::FAILURE
        }
    }
}

fn run(length: Duration, seed: u64) -> Result<(), Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::NotRoot);
    }
    let _pages = HugePages::reserve();
    let mut daemon = Daemon::start()?;
    let outcome = torture(&mut daemon, length, seed);
    if outcome.is_err() {
        eprintln!("{}\n{}{}", daemon.end_of_log(), daemon.threads(), daemon.stacks());
    }
    outcome
}

fn torture(daemon: &mut Daemon, length: Duration, seed: u64) -> Result<(), Failure> {
    let mut disturber = Disturber::new(seed);
    let mut steady = SteadyChain::default();
    let (start, mut checked, mut said) = (Instant::now(), Instant::now(), Instant::now());
    let mut before = None;
    while start.elapsed() < length {
        disturber.disturb(daemon)?;
        if checked.elapsed() >= CHECK {
            steady.check(daemon)?;
            disturber.check(daemon)?;
            checked = Instant::now();
        }
        if before.is_none() && start.elapsed() >= WARM_UP.min(length / 2) {
            before = Some(Footprint::of(daemon.pid())?);
        }
        if said.elapsed() >= PROGRESS {
            println!("{:4} s: {}", start.elapsed().as_secs(), disturber.summary());
            said = Instant::now();
        }
    }
    println!("{:4} s: {}", start.elapsed().as_secs(), disturber.summary());
    disturber.end(daemon)?;
    checks::at_rest(daemon)?;
    if let Some(before) = before {
        before.compare(daemon)?;
    }
    checks::ended(daemon)
}
