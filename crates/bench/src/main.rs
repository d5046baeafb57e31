//! netvm's benchmarks. `netvm-bench NAME [--json] [--quick]`; see `docs/reference/benchmarks.md` for what each measures.
//!
//! The engine runs in this process; NFs and the programs that netvm is compared with are processes of their own.

mod cases;
mod cli;
mod compare;
mod distance;
mod error;
mod guest;
mod harness;
mod layout;
mod machine;
mod nf;
mod peers;
mod probe;
mod report;
mod rig;
mod routes;
mod sandbox;
mod stats;
mod traffic;
mod window;

use std::process::ExitCode;

use clap::Parser;

use cli::{BenchArgs, Cli, Command};
use compare::CompareArgs;
use error::BenchError;
use machine::Machine;
use report::{Report, Row};

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Hop(args) => bench("hop", &args, cases::hop::measure),
        Command::Chain(args) => bench("chain", &args, cases::chain::measure),
        Command::Copy(args) => bench("copy", &args, cases::copy::measure),
        Command::Overload(args) => bench("overload", &args, cases::overload::measure),
        Command::Idle(args) => bench("idle", &args, cases::idle::measure),
        Command::Reclaim(args) => bench("reclaim", &args, cases::reclaim::measure),
        Command::Policy(args) => bench("policy", &args.bench, |_| cases::policy::measure(&args)),
        Command::Route(args) => bench("route", &args.bench, |_| cases::route::measure(&args)),
        Command::Vm(args) => bench("vm", &args.bench, |_| cases::vm::measure(&args)),
        Command::Vhost(args) => bench("vhost", &args.bench, |_| cases::vhost::measure(&args)),
        Command::Compare(args) => compare(&args),
        Command::Nf(spec) => nf::run(&spec),
        Command::RingPeer(spec) => peers::ring::run(&spec),
        Command::FibPeer(spec) => peers::fib::run(&spec),
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
