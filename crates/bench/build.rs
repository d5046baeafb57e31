// SPDX-License-Identifier: Apache-2.0
//! Compiles the DPDK peers and the traffic generator, into this program and as a DPDK plug-in for other programs.
//! dpdk-sys finds and links libdpdk.

use std::env;
use std::error::Error;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

const TRAFFIC: &str = "peer/traffic/traffic.c";
const BULK: &str = "peer/traffic/bulk.c";
const TIMING: &str = "peer/traffic/timing.c";
const FIB: &str = "peer/fib.c";
const BPF: &str = "bpf/frames.c";

fn main() -> ExitCode {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=peer");
    println!("cargo:rerun-if-changed=bpf");
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("cargo::error={error}");
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), Box<dyn Error>> {
    let tool = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".to_owned());
    let output = Command::new(tool).args(["--cflags", "libdpdk"]).output()?;
    if !output.status.success() {
        return Err(
            "pkg-config does not find libdpdk (Debian and Ubuntu: apt install libdpdk-dev pkg-config)".into(),
        );
    }
    let flags = String::from_utf8(output.stdout)?;
    let mut peer = compiler(&flags);
    peer.file("peer/ring.c").file(TRAFFIC).file(FIB);
    peer.try_compile("netvm_bench_peer")?;
    // After the peer, which needs them.
    for library in ["rte_fib", "rte_ethdev", "rte_mbuf", "rte_mempool", "rte_ring", "rte_eal"] {
        println!("cargo:rustc-link-lib=dylib={library}");
    }
    plugin(&flags)?;
    bpf()
}

/// The program of `peers/kernel.rs`, embedded in this one.
fn bpf() -> Result<(), Box<dyn Error>> {
    let path = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets no OUT_DIR")?).join("frames.o");
    let mut command = Command::new("clang");
    command.args(["-target", "bpf", "-O2", "-g", "-ffreestanding", "-Wall", "-Wextra", "-Werror"]);
    let status = command.args(["-c", BPF, "-o"]).arg(path).status();
    let status = status.map_err(|error| {
        format!("clang, which compiles {BPF}, did not start ({error}): ./dev setup installs it")
    })?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("cannot compile {BPF}: see the messages above").into())
    }
}

fn compiler(flags: &str) -> cc::Build {
    let mut build = cc::Build::new();
    // Optimise the peers in debug builds, too.
    build.std("gnu11").opt_level(3).pic(true);
    build.define("_GNU_SOURCE", None).define("ALLOW_EXPERIMENTAL_API", None);
    for flag in flags.split_whitespace() {
        // As system headers, because DPDK's headers warn under -Wextra.
        match flag.strip_prefix("-I") {
            Some(path) => build.flag("-isystem").flag(path),
            None => build.flag(flag),
        };
    }
    build
}

/// `traffic.so`, embedded in the program. Programs that load it have DPDK's libraries already.
fn plugin(flags: &str) -> Result<(), Box<dyn Error>> {
    let path = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets no OUT_DIR")?).join("traffic.so");
    let mut command = compiler(flags).define("NETVM_BENCH_PLUGIN", None).try_get_compiler()?.to_command();
    command.args(["-shared", TRAFFIC, BULK, TIMING, "-o"]).arg(path);
    if !command.status()?.success() {
        return Err(format!("cannot build a shared object of {TRAFFIC}: see the messages above").into());
    }
    Ok(())
}
