//! The program; see the README.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use netvm_nf_simple_forward::{Args, NAME, run};

fn main() -> ExitCode {
    netvm_nf_common::exit_code(NAME, run(&Args::parse()))
}
