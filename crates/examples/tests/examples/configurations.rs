// SPDX-License-Identifier: Apache-2.0
//! Each example in namespaces of its own, as its README runs it.

use std::process::Command;

use crate::{have, programs, root, text};

/// The variable that names a source tree of Click.
const CLICK: &str = "CLICK_TREE";

/// Runs an example; its output must have these lines, as its README promises. Returns the output; `None` if this
/// machine cannot run it.
fn run(example: &str, needed: &[&str], promised: &[&str]) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP: not root, so no network namespaces");
        return None;
    }
    if !have(&[&["netvm", "netvmd", "busybox", "unshare"], needed].concat()) {
        return None;
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
    Some(text)
}

/// The steps of the first traced packet in a text, without their times. What differs from run to run is made equal.
fn traced_steps(text: &str) -> Vec<String> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with("packet 1, "));
    assert!(lines.next().is_some(), "no packet: {text}");
    let steps = lines.map_while(|line| line.strip_prefix(' ')?.trim_start().split_once("  "));
    // The client chooses the port.
    let is_port = |c: char| c == ':' || c.is_ascii_digit();
    let alike = |step: &str| match step.split_once("10.0.0.1:") {
        Some((before, after)) => format!("{before}10.0.0.1{}", after.trim_start_matches(is_port)),
        None => step.replace("monitor-b", "monitor-a"),
    };
    steps.map(|(_, step)| alike(step)).collect()
}

#[test]
fn two_tiers() {
    run(
        "two-tiers",
        &["netvm-monitor"],
        &[
            "client connects to 203.0.113.2 port 8080: hello from web",
            "web connects to 10.77.0.3 port 6379: hello from db",
            "client does not connect to 10.77.0.3 port 6379",
            "web2 connects to 10.77.0.3 port 6379: hello from db",
            "web2 does not connect to 10.77.0.3 port 6379",
            "packets between the tiers pass the monitor",
        ],
    );
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
    let output = run(
        "service-chain",
        &["netvm-firewall", "netvm-payload-scan", "netvm-load-balancer", "netvm-monitor"],
        &[
            "client connects to 10.0.0.2 port 80: hello from server",
            "client does not connect to 10.0.0.2 port 23",
            "the inspector drops an attack",
        ],
    );
    let Some(output) = output else { return };
    let page = std::fs::read_to_string(root().join("docs/how-to/trace.md")).unwrap();
    assert_eq!(traced_steps(&output), traced_steps(&page), "{output}");
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
fn two_tier_guests() {
    run(
        "two-tier-guests",
        &["qemu-system-x86_64", "cpio", "apt-get", "netvm-monitor"],
        &[
            "client connects to 10.0.0.2 port 80: the shop has three rows",
            "client does not connect to 10.0.0.3 port 5432",
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

#[test]
fn dns_nf() {
    run(
        "dns-nf",
        &["python3", "dig"],
        &[
            "www.example: NOERROR www.example. 60 IN A 192.0.2.80",
            "mail.example: NOERROR mail.example. 60 IN A 192.0.2.25",
            "nobody.example: NXDOMAIN",
            "400 NOERROR www.example. 60 IN A 192.0.2.80",
        ],
    );
}

#[test]
fn click_router() {
    if std::env::var_os(CLICK).is_none() {
        println!("SKIP: {CLICK} names no source tree of Click");
        return;
    }
    run(
        "click-router",
        &["g++", "make", "pkg-config", "python3", "netvm-l3-forward"],
        &[
            "left reaches 10.0.1.254",
            "left connects to 10.0.2.1 port 80: hello from right",
            "left sees the router 10.0.1.254 before 10.0.2.1",
            "Click forwards 170 packets as l3-forward does",
        ],
    );
}
