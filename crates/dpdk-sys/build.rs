//! Finds libdpdk through pkg-config, compiles the shim and generates the bindings to it.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Oldest release that the shim is written for.
const OLDEST: &str = "22.11";

/// The libraries whose symbols the shim and the bindings name; drivers are plug-ins that the EAL loads.
/// Older releases have no rte_log of its own.
const LIBRARIES: [&str; 9] = [
    "rte_acl",
    "rte_dmadev",
    "rte_eal",
    "rte_ethdev",
    "rte_log",
    "rte_mbuf",
    "rte_mempool",
    "rte_ring",
    "rte_vhost",
];

/// DPDK functions that are bound directly; everything else goes through the shim's `netvm_*`.
const FUNCTIONS: [&str; 22] = [
    "rte_version",
    "rte_get_tsc_hz",
    "rte_eal_get_runtime_dir",
    "rte_eal_has_hugepages",
    "rte_thread_unregister",
    "rte_mempool_avail_count",
    "rte_mempool_free",
    "rte_extmem_unregister",
    "rte_mem_virt2phy",
    "rte_ring_create",
    "rte_ring_free",
    "rte_dev_probe",
    "rte_eth_dev_get_port_by_name",
    "rte_eth_dev_adjust_nb_rx_tx_desc",
    "rte_eth_rx_queue_setup",
    "rte_eth_tx_queue_setup",
    "rte_eth_dev_start",
    "rte_eth_dev_is_removed",
    "rte_eth_promiscuous_enable",
    "rte_eth_promiscuous_disable",
    "rte_acl_free",
    "netvm_.*",
];

fn main() -> ExitCode {
    println!("cargo:rerun-if-changed=build.rs");
    for part in [
        "acl.c",
        "acl.h",
        "vhost/dma_channel.c",
        "vhost/dma_channel.h",
        "mbuf_free.h",
        "offload.c",
        "offload.h",
        "port.c",
        "shim.c",
        "shim.h",
        "vhost/vhost.c",
        "vhost/vhost.h",
        "vhost/vring.c",
        "vhost/vring.h",
        "vhost/vring_memory.h",
        "vhost/vring_packed.h",
        "vhost/vring_split.h",
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
        .file("src/vhost/vring.c")
        .file("src/vhost/dma_channel.c")
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

    bindings(&out, &flags)
}

/// Generates `bindings.rs`: the allow-listed functions and the shim's definitions. It leaves out DPDK's own structures:
/// lib.rs declares them as handles, because netvm must not rely on their layout.
fn bindings(out: &Path, flags: &[String]) -> Result<(), Box<dyn Error>> {
    let mut builder = bindgen::Builder::default()
        .header("src/shim.h")
        .header("src/acl.h")
        .header("src/offload.h")
        .header("src/vhost/vhost.h")
        .header("src/vhost/vring.h")
        .header("src/vhost/dma_channel.h")
        .clang_args(flags)
        .clang_arg("-DALLOW_EXPERIMENTAL_API")
        .rust_edition(bindgen::RustEdition::Edition2024)
        .allowlist_var("NETVM_.*")
        .allowlist_type("netvm_.*|rte_iova_t|phys_addr_t")
        .allowlist_recursively(false)
        .prepend_enum_name(false)
        .generate_comments(false)
        .layout_tests(false)
        .use_core()
        .parse_callbacks(Box::new(bindgen::CargoCallbacks::new()));
    for function in FUNCTIONS {
        builder = builder.allowlist_function(function);
    }
    let bindings = builder.generate().map_err(|error| {
        format!(
            "bindgen could not read DPDK's headers (libclang comes with the package libclang-dev): {error}"
        )
    })?;
    bindings.write_to_file(out.join("bindings.rs"))?;
    Ok(())
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
         Debian and Ubuntu: apt install libdpdk-dev libclang-dev pkg-config\n\
         DPDK installed elsewhere: set PKG_CONFIG_PATH to the directory that holds libdpdk.pc",
        error.to_string().lines().find(|line| !line.trim().is_empty()).unwrap_or_default()
    )
}
