// SPDX-License-Identifier: Apache-2.0
//! `src/bindings/mod.rs` and the constants that the C compiler gave are what bindgen reads from the headers of the
//! installed DPDK.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bindings/mod.rs");
const MARK: &str = "// Made from here on.\n";

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

/// What bindgen reads: the allow-listed functions and the shim's definitions. It leaves out DPDK's own structures,
/// which lib.rs declares as handles, because netvm must not rely on their layout.
fn generated() -> String {
    let pkg_config = std::env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".to_owned());
    let flags = Command::new(pkg_config).args(["--cflags", "libdpdk"]).output().expect("pkg-config");
    assert!(flags.status.success(), "pkg-config finds no libdpdk");
    let mut builder = bindgen::Builder::default();
    for header in ["shim", "acl", "offload", "vhost/vhost", "vhost/dma_channel"] {
        builder = builder.header(format!("{}/src/{header}.h", env!("CARGO_MANIFEST_DIR")));
    }
    for function in FUNCTIONS {
        builder = builder.allowlist_function(function);
    }
    builder
        .clang_args(String::from_utf8(flags.stdout).unwrap().split_whitespace())
        .clang_arg("-DALLOW_EXPERIMENTAL_API")
        // Outside of a build script, bindgen does not know the compiler; the oldest with this edition will do.
        .rust_target(bindgen::RustTarget::stable(85, 0).unwrap())
        .rust_edition(bindgen::RustEdition::Edition2024)
        .allowlist_var("NETVM_.*")
        .allowlist_type("netvm_.*|rte_iova_t|phys_addr_t")
        .allowlist_recursively(false)
        .prepend_enum_name(false)
        .generate_comments(false)
        .layout_tests(false)
        .use_core()
        .disable_header_comment()
        .generate()
        .expect("bindgen reads the headers (it needs libclang: package libclang-dev)")
        .to_string()
}

/// The lines of constants, and the others.
fn split(text: &str) -> (BTreeSet<&str>, String) {
    let (constants, others): (Vec<&str>, Vec<&str>) =
        text.lines().partition(|line| line.starts_with("pub const "));
    (constants.into_iter().collect(), others.join("\n").trim().to_owned() + "\n")
}

/// Declarations, in any order: it is that of the headers, which releases of DPDK change.
fn items(declarations: &str) -> BTreeSet<String> {
    let mut items: Vec<String> = Vec::new();
    for line in declarations.lines() {
        match items.last_mut() {
            Some(item) if line.starts_with([' ', '}']) => *item += line,
            _ => items.push(line.to_owned()),
        }
    }
    items.into_iter().collect()
}

#[test]
fn declarations_are_those_of_the_headers() {
    let text = generated();
    let (_, declarations) = split(&text);
    let source = fs::read_to_string(SOURCE).unwrap();
    let (head, written) = source.split_once(MARK).expect("the mark in src/bindings/mod.rs");
    if std::env::var_os("NETVM_UPDATE_BINDINGS").is_some() {
        fs::write(SOURCE, format!("{head}{MARK}{declarations}")).unwrap();
        return;
    }
    assert!(
        items(written) == items(&declarations),
        "src/bindings/mod.rs is not what bindgen makes of the headers now; NETVM_UPDATE_BINDINGS=1 writes it:\n{declarations}"
    );
}

#[test]
fn constants_are_those_of_the_headers() {
    let text = generated();
    let compiled = include_str!(concat!(env!("OUT_DIR"), "/constants.rs"));
    let (expected, _) = split(&text);
    let (found, _) = split(compiled);
    assert_eq!(found, expected, "src/constants.c lacks some, or has others");
    assert!(expected.len() > 40, "bindgen found only {} constants", expected.len());
}
