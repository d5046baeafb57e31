//! Compiles the DPDK program that netvm is compared with. libdpdk itself is found, and linked, by dpdk-sys.

use std::env;
use std::error::Error;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    for input in ["build.rs", "peer/ring.c", "peer/ring.h"] {
        println!("cargo:rerun-if-changed={input}");
    }
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
            "pkg-config knows no libdpdk (Debian and Ubuntu: apt install libdpdk-dev pkg-config)".into()
        );
    }
    let mut peer = cc::Build::new();
    // What it is compared with is optimised in debug builds too.
    peer.file("peer/ring.c").std("gnu11").opt_level(3);
    peer.define("_GNU_SOURCE", None).define("ALLOW_EXPERIMENTAL_API", None);
    for flag in String::from_utf8(output.stdout)?.split_whitespace() {
        // As system headers: DPDK's own warn under -Wextra.
        match flag.strip_prefix("-I") {
            Some(path) => peer.flag("-isystem").flag(path),
            None => peer.flag(flag),
        };
    }
    peer.try_compile("netvm_bench_peer")?;
    // After the peer, which needs them.
    for library in ["rte_ethdev", "rte_mbuf", "rte_mempool", "rte_ring", "rte_eal"] {
        println!("cargo:rustc-link-lib=dylib={library}");
    }
    Ok(())
}
