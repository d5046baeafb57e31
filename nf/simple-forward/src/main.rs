// SPDX-License-Identifier: Apache-2.0
//! The program; see the README.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use netvm_nf_simple_forward::{NAME, run};

fn main() -> ExitCode {
    netvm_nf_common::exit_code(NAME, run(&netvm_nf_common::arguments()))
}
