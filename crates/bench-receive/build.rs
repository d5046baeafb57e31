// SPDX-License-Identifier: Apache-2.0
//! Compiles the XDP program with clang.

use std::path::PathBuf;
use std::process::Command;

const SOURCE: &str = "bpf/count.c";

fn main() -> Result<(), String> {
    println!("cargo:rerun-if-changed={SOURCE}");
    let out = std::env::var_os("OUT_DIR").map(PathBuf::from).ok_or("cargo sets OUT_DIR")?;
    let mut command = Command::new("clang");
    command.args(["-target", "bpf", "-O2", "-g", "-Wall", "-Werror", "-c", SOURCE, "-o"]);
    match command.arg(out.join("count.o")).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("clang {SOURCE}: {status}; its messages are above")),
        Err(error) => {
            Err(format!("clang, which compiles {SOURCE}, did not start ({error}): ./dev setup installs it"))
        }
    }
}
