// SPDX-License-Identifier: Apache-2.0
//! Receives packets by one of the methods that Linux and netvm offer, gives each to a monitor, and drops it.
//!
//! `netvm-bench receive` starts it, in a network namespace or in a guest. Ten times a second it prints its counters as
//! a JSON object on one line ([`report::Report`]). It runs until it is killed, or until the engine ends.
//!
//! No DPDK: the program also runs in a guest without huge pages.

mod counters;
mod error;
mod methods;
mod monitor;
mod options;
mod report;

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;

use counters::Counters;
use error::MethodError;
use methods::Consumer;
use monitor::{Flow, Null};
use options::{Method, MonitorKind};

/// Receive packets by one method, and count them
#[derive(Debug, Parser)]
#[command(version, about)]
struct Args {
    /// How packets get into this program
    #[arg(long)]
    method: Method,
    /// What is done with each packet
    #[arg(long, default_value = "null")]
    monitor: MonitorKind,
    /// The interface; a netvm NF has none
    #[arg(long, default_value = "eth0")]
    interface: String,
    /// The core of the receiving thread
    #[arg(long)]
    core: Option<usize>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("netvm-bench-receive: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), MethodError> {
    let counters = Arc::new(Counters::default());
    // Started before this thread is pinned: a new thread inherits the affinity.
    report::start(Arc::clone(&counters)).map_err(MethodError::system("cannot start a thread"))?;
    if let Some(core) = args.core {
        pin(core).map_err(MethodError::system(format!("cannot pin to core {core}")))?;
    }
    let is_flow = args.monitor == MonitorKind::Flow;
    if args.method == Method::Xdp {
        return methods::xdp::run(&args.interface, is_flow, &counters);
    }
    if is_flow {
        methods::run(args.method, &args.interface, Consumer::new(&counters, Flow::default()))
    } else {
        methods::run(args.method, &args.interface, Consumer::new(&counters, Null))
    }
}

fn pin(core: usize) -> std::io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    if core < rustix::thread::CpuSet::MAX_CPU {
        set.set(core);
    }
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}
