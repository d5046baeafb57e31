// SPDX-License-Identifier: Apache-2.0
//! Finds libdpdk through pkg-config, compiles the shim, and has the C compiler say the constants that depend on DPDK's
//! build.

use std::env;
use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Oldest release that the shim is written for.
const OLDEST: &str = "22.11";

/// The libraries whose symbols the shim and the bindings name; drivers are plug-ins that the EAL loads.
/// Older releases have no rte_log of its own.
const LIBRARIES: [&str; 8] =
    ["rte_acl", "rte_dmadev", "rte_eal", "rte_ethdev", "rte_log", "rte_mbuf", "rte_mempool", "rte_ring"];

fn main() -> ExitCode {
    println!("cargo:rerun-if-changed=build.rs");
    for part in [
        "acl.c",
        "acl.h",
        "bindings/constants.c",
        "mbuf_free.h",
        "offload.c",
        "offload.h",
        "port.c",
        "shim.c",
        "shim.h",
        "vhost/dma_channel.c",
        "vhost/dma_channel.h",
        "vhost/dma_copy.c",
        "vhost/dma_copy.h",
        "vhost/record.c",
        "vhost/record.h",
        "vhost/vhost.c",
        "vhost/vhost.h",
        "vhost/vring/copy.h",
        "vhost/vring/drain.c",
        "vhost/vring/fill.c",
        "vhost/vring/fill.h",
        "vhost/vring/offload.c",
        "vhost/vring/offload.h",
        "vhost/vring/packed.h",
        "vhost/vring/split.h",
        "vhost/vring/vring.h",
    ] {
        println!("cargo:rerun-if-changed=src/{part}");
    }
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            for line in error.to_string().lines() {
                println!("cargo::error={line}");
            }
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), Box<dyn Error>> {
    let dpdk = pkg_config::Config::new()
        .atleast_version(OLDEST)
        .cargo_metadata(false)
        .env_metadata(true)
        .probe("libdpdk")
        .map_err(|error| missing(&error))?;

    for path in &dpdk.link_paths {
        println!("cargo:rustc-link-search=native={}", path.display());
    }
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let flags = c_flags()?;

    let mut shim = cc::Build::new();
    // Part of the packet path: optimised in debug builds too.
    shim.file("src/shim.c")
        .file("src/port.c")
        .file("src/acl.c")
        .file("src/offload.c")
        .file("src/vhost/vhost.c")
        .file("src/vhost/record.c")
        .file("src/vhost/vring/fill.c")
        .file("src/vhost/vring/drain.c")
        .file("src/vhost/vring/offload.c")
        .file("src/vhost/dma_channel.c")
        .file("src/vhost/dma_copy.c")
        .std("gnu11")
        .opt_level(3);
    shim.define("_GNU_SOURCE", None).define("ALLOW_EXPERIMENTAL_API", None);
    for flag in &flags {
        // As system headers: DPDK's own headers warn under -Wextra.
        match flag.strip_prefix("-I") {
            Some(path) => shim.flag("-isystem").flag(path),
            None => shim.flag(flag),
        };
    }
    shim.try_compile("netvm_dpdk_shim")?;
    // After the shim, which needs them.
    for library in LIBRARIES.iter().filter(|library| dpdk.libs.iter().any(|lib| lib == *library)) {
        println!("cargo:rustc-link-lib=dylib={library}");
    }

    constants(&shim, &out)
}

/// Writes `constants.rs`: what `constants.c` asks the compiler for.
fn constants(shim: &cc::Build, out: &Path) -> Result<(), Box<dyn Error>> {
    let assembly = out.join("constants.s");
    let mut compiler = shim.try_get_compiler()?.to_command();
    compiler.args(["-S", "-fno-lto", "src/bindings/constants.c", "-o"]).arg(&assembly);
    let output = compiler.output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }

    let mut text = String::new();
    for line in fs::read_to_string(assembly)?.lines() {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["@netvm", "constant", kind, name, value] => {
                writeln!(text, "pub const {name}: {kind} = {};", immediate(value))?;
            }
            ["@netvm", "structure", name, bytes] => {
                writeln!(text, "const _: () = assert!(size_of::<{name}>() == {});", immediate(bytes))?;
            }
            _ => {}
        }
    }
    fs::write(out.join("constants.rs"), text)?;
    Ok(())
}

/// A number as assemblers write it: `$` before it on x86, `#` on Arm.
fn immediate(text: &str) -> &str {
    text.trim_start_matches(['$', '#'])
}

/// All of pkg-config's compiler flags, including those for the instruction set, which the pkg-config crate drops and
/// DPDK's inline functions need.
fn c_flags() -> Result<Vec<String>, Box<dyn Error>> {
    let tool = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".to_owned());
    let output = std::process::Command::new(tool).args(["--cflags", "libdpdk"]).output()?;
    if !output.status.success() {
        return Err("pkg-config --cflags libdpdk failed".into());
    }
    Ok(String::from_utf8(output.stdout)?.split_whitespace().map(str::to_owned).collect())
}

fn missing(error: &pkg_config::Error) -> String {
    format!(
        "DPDK {OLDEST} or newer was not found: {}\n\
         Debian and Ubuntu: apt install libdpdk-dev pkg-config\n\
         DPDK installed elsewhere: set PKG_CONFIG_PATH to the directory that holds libdpdk.pc",
        error.to_string().lines().find(|line| !line.trim().is_empty()).unwrap_or_default()
    )
}
