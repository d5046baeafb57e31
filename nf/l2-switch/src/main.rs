//! The program; see the README.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use netvm_nf_l2_switch::{Args, NAME, run};

fn main() -> ExitCode {
    netvm_nf_common::exit_code(NAME, run(&Args::parse()))
}
