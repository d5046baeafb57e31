//! Each example in namespaces of its own, as its README runs it.

use std::process::Command;

use crate::{have, programs, root, text};

/// Runs an example; its output must have these lines, as its README promises.
fn run(example: &str, needed: &[&str], promised: &[&str]) {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP: not root, so no network namespaces");
        return;
    }
    if !have(&[&["netvm", "netvmd", "busybox", "unshare"], needed].concat()) {
        return;
    }
    let mut command = Command::new(root().join("examples/try.sh"));
    let output = command.arg(example).env("NETVM_BIN", programs()).output().unwrap();
    let text = text(&output);
    assert!(output.status.success(), "{example}: {}\n{text}", output.status);
    let done = format!("{example}: ok");
    for line in promised.iter().copied().chain([done.as_str()]) {
        assert!(text.lines().any(|said| said == line), "{example} does not say `{line}`:\n{text}");
    }
    let readme = std::fs::read_to_string(root().join("examples").join(example).join("README.md")).unwrap();
    for line in promised {
        assert!(readme.contains(line), "the README of {example} lacks `{line}`");
    }
}

#[test]
fn transparent_firewall() {
    run(
        "transparent-firewall",
        &["netvm-firewall"],
        &[
            "outside reaches 10.0.0.1",
            "inside connects to 10.0.0.2 port 80: hello from outside",
            "outside does not connect to 10.0.0.1 port 80",
        ],
    );
}

#[test]
fn router_vlans() {
    run(
        "router-vlans",
        &[],
        &["staff reaches 10.0.20.2", "staff connects to 10.0.20.2 port 80: hello from server"],
    );
}

#[test]
fn container_acls() {
    run(
        "container-acls",
        &[],
        &[
            "client connects to 10.0.0.2 port 80: hello from web",
            "web connects to 10.0.0.3 port 5432: hello from db",
            "client does not connect to 10.0.0.3 port 5432",
            "client does not get out with a forged address",
        ],
    );
}

#[test]
fn service_chain() {
    run(
        "service-chain",
        &["netvm-firewall", "netvm-payload-scan", "netvm-load-balancer", "netvm-monitor"],
        &[
            "client connects to 10.0.0.2 port 80: hello from server",
            "client does not connect to 10.0.0.2 port 23",
            "the inspector drops an attack",
        ],
    );
}

#[test]
fn podman_networks() {
    run(
        "podman-networks",
        &[],
        &["client reaches fd00::2", "client connects to 10.0.0.2 port 80: hello from web"],
    );
}

#[test]
fn guests() {
    run(
        "guests",
        &["qemu-system-x86_64", "cpio", "apt-get"],
        &[
            "client connects to 10.0.0.2 port 80: hello from guest",
            "client does not connect to 10.0.0.2 port 23",
        ],
    );
}

#[test]
fn python_nf() {
    run(
        "python-nf",
        &["python3"],
        &[
            "client does not connect to 10.0.0.2 port 80",
            "client connects to 10.0.0.2 port 80: hello from server",
        ],
    );
}

#[test]
fn go_nf() {
    run(
        "go-nf",
        &["go", "cc", "pkg-config"],
        &[
            "client connects to 10.0.0.2 port 80: hello from server",
            "client does not connect to 10.0.0.2 port 23",
        ],
    );
}
