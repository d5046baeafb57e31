// SPDX-License-Identifier: Apache-2.0
//! netvm's benchmarks. `netvm-bench NAME [--json] [--quick]`; see `docs/reference/benchmarks.md` for what each
//! measures.
//!
//! The engine runs in this process; NFs and peers are separate processes.

mod cases;
mod cli;
mod compare;
mod error;
mod machine;
mod measure;
mod nf;
mod peers;
mod setup;
mod studies;

use std::process::ExitCode;

use clap::Parser;

use cli::{Bench, BenchArgs, Cli};
use compare::CompareArgs;
use error::BenchError;
use machine::Machine;
use measure::report::{Report, Row};

fn main() -> ExitCode {
    let cli = Cli::parse();
    // Stores the path before this process enters a namespace. If this fails, the code that needs the path reports it.
    let _ = machine::own_program();
    if let Err(error) = netvm_cpu::check() {
        eprintln!("netvm-bench: {error}");
        return ExitCode::FAILURE;
    }
    let outcome = match cli.command {
        Bench::Bindings(args) => bench("bindings", &args, cases::nfs::bindings::measure),
        Bench::Capture(args) => bench("capture", &args, cases::load::capture::measure),
        Bench::Hop(args) => bench("hop", &args, cases::nfs::hop::measure),
        Bench::Chain(args) => bench("chain", &args, cases::nfs::chain::measure),
        Bench::Container(args) => {
            bench("container", &args.bench, |_| cases::forwarding::container::measure(&args))
        }
        Bench::Conn(args) => bench("conn", &args.bench, |_| cases::forwarding::conn::measure(&args)),
        Bench::Copy(args) => bench("copy", &args, cases::nfs::copy::measure),
        Bench::Overload(args) => bench("overload", &args, cases::load::overload::measure),
        Bench::Idle(args) => bench("idle", &args, cases::load::idle::measure),
        Bench::Workers(args) => bench("workers", &args, cases::load::workers::measure),
        Bench::Latency(args) => bench("latency", &args.bench, |_| cases::load::latency::measure(&args)),
        Bench::Watch(args) => bench("watch", &args, cases::load::watch::measure),
        Bench::Reclaim(args) => bench("reclaim", &args, cases::nfs::reclaim::measure),
        Bench::Policy(args) => bench("policy", &args.bench, |_| cases::forwarding::policy::measure(&args)),
        Bench::Route(args) => bench("route", &args.bench, |_| cases::forwarding::route::measure(&args)),
        Bench::Router(args) => bench("router", &args.bench, |_| cases::forwarding::router::measure(&args)),
        Bench::Vxlan(args) => bench("vxlan", &args.bench, |_| cases::forwarding::vxlan::measure(&args)),
        Bench::Vm(args) => bench("vm", &args.bench, |_| cases::nfs::vm::measure(&args)),
        Bench::E1000(args) => bench("e1000", &args.bench, |_| cases::guests::e1000::measure(&args)),
        Bench::Vhost(args) => bench("vhost", &args.bench, |_| cases::guests::vhost::measure(&args)),
        Bench::Compare(args) => compare(&args),
        Bench::Receive(args) => studies::receive::measure(&args),
        Bench::Chains(args) => studies::chains::measure(&args),
        Bench::Switching(args) => cases::guests::switching::measure(&args),
        Bench::Card(args) => cases::guests::e1000::measure_card(&args),
        Bench::Routers(args) => studies::routers::measure(&args),
        Bench::Nf(spec) => nf::run(&spec),
        Bench::RingPeer(spec) => peers::ring::run(&spec),
        Bench::FibPeer(spec) => peers::fib::run(&spec),
        Bench::KernelPeer(spec) => peers::kernel::run(&spec),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("netvm-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn bench(
    name: &str,
    args: &BenchArgs,
    measure: impl FnOnce(&BenchArgs) -> Result<Vec<Row>, BenchError>,
) -> Result<(), BenchError> {
    print(&Report { bench: name.to_owned(), host: Machine::inspect(), results: measure(args)? }, args.json)
}

fn compare(args: &CompareArgs) -> Result<(), BenchError> {
    let (host, results) = (Machine::inspect(), compare::measure(args)?);
    let outcome = compare::check(args, &results);
    print(&Report { bench: format!("compare-{}", args.name), host, results }, args.json)?;
    outcome
}

fn print(report: &Report, json: bool) -> Result<(), BenchError> {
    let text = if json { report.to_json().map_err(std::io::Error::other) } else { Ok(report.to_table()) };
    println!("{}", text.map_err(BenchError::system("printing"))?.trim_end());
    Ok(())
}
