// SPDX-License-Identifier: Apache-2.0
//! `netvm-workload FOLDER`: writes the generated rule sets, routes and captures for other programs.
#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use netvm_workload::{captures, routes, rules};

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(folder), None) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: netvm-workload FOLDER: writes acl/*.rules, routes/prefixes.txt and pcap/* into it");
        return ExitCode::from(2);
    };
    match write(Path::new(&folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("netvm-workload: {}: {error}", Path::new(&folder).display());
            ExitCode::FAILURE
        }
    }
}

fn write(folder: &Path) -> io::Result<()> {
    let acl = folder.join("acl");
    fs::create_dir_all(&acl)?;
    for (name, text) in rules::standard_sets() {
        fs::write(acl.join(format!("{name}.rules")), text)?;
    }
    let mut text = String::new();
    for net in routes::full_table() {
        // Writing to a String does not fail.
        let _ = writeln!(text, "{net}");
    }
    fs::create_dir_all(folder.join("routes"))?;
    fs::write(folder.join("routes/prefixes.txt"), text)?;
    captures::write(&folder.join("pcap"))?;
    Ok(())
}
