// SPDX-License-Identifier: Apache-2.0
//! Runs what users copy: the examples, and the projects that `netvm new-nf` makes, in every language.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod configurations;
mod new_nf;
mod readme;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

// Makes cargo build the libraries before these tests.
use netlib_c as _;

/// The folder of the programs and libraries that were built with these tests.
fn programs() -> PathBuf {
    std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned()
}

/// The checkout.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Whether all these programs are there; says which one is not.
fn have(needed: &[&str]) -> bool {
    for name in needed {
        let built = name.starts_with("netvm");
        let is_there = if built {
            programs().join(name).is_file()
        } else {
            Command::new("sh").args(["-c", &format!("command -v {name}")]).output().unwrap().status.success()
        };
        if !is_there {
            let hint = if built { "built: a test of the whole workspace builds it" } else { "installed" };
            println!("SKIP: {name} is not {hint}");
            return false;
        }
    }
    true
}

/// Everything that a program printed.
fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// What the command prints, if it succeeds.
fn good(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, text(&output));
    text(&output)
}
