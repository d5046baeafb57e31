// SPDX-License-Identifier: Apache-2.0
//! Programs that misbehave: others lose nothing by it, and a word says what to do.

use std::os::fd::OwnedFd;

use netvm_api::NfState;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with,
};

use crate::common::Daemon;
use crate::common::hosts::succeeds;
use crate::foreign::testpmd_keys;
use crate::seen::traced_from_client;
use crate::site::Site;

/// testpmd with two memifs, with these words changed; `None`, with the reason printed, if it is not here.
fn testpmd(site: &Site, from: &str, to: &str) -> Option<String> {
    if !succeeds("which dpdk-testpmd") {
        println!("SKIP: no dpdk-testpmd here");
        return None;
    }
    let keys = testpmd_keys(&site.role, "memif", &std::env::temp_dir().join(&site.role));
    assert!(keys.contains(from), "{keys}");
    Some(keys.replace(from, to))
}

fn dropped(daemon: &Daemon, port: &str, reason: &str) -> u64 {
    daemon.stats().drops.ports.get(port).and_then(|drops| drops.get(reason)).copied().unwrap_or_default()
}

#[test]
fn a_program_that_floods_and_forwards_nothing_gets_no_packets_and_nobody_gets_its_own() {
    let Some(site) = Site::new("fl") else { return };
    let Some(program) = testpmd(&site, "--forward-mode=io", "--forward-mode=txonly") else { return };
    let daemon = site.start(&program, "on_failure = \"bypass\"");
    for side in ["left", "right"] {
        let port = format!("{}.0.{side}", site.role);
        daemon.until("its packets are dropped", |daemon| dropped(daemon, &port, "late-from-hop") > 10_000);
    }
    assert_eq!(site.nf(&daemon).state, NfState::Starting, "{}", daemon.log());
    assert!(site.pings() && site.echoes(20_000), "{}", daemon.log());
    let counters = site.nf(&daemon).counters;
    assert!(counters.values().all(|count| *count == 0), "{counters:?}");
}

#[test]
fn a_trace_shows_that_a_program_changes_mac_addresses() {
    let Some(site) = Site::new("sw") else { return };
    let Some(program) = testpmd(&site, "--forward-mode=io", "--forward-mode=macswap") else { return };
    let daemon = site.start(&program, "on_failure = \"drop\"");
    site.until(&daemon, NfState::Running);
    let packet = traced_from_client(&site, &daemon, "arp");
    // Without IP, the MAC addresses are the flow: the frame is another one.
    let last = packet.steps.last().unwrap();
    assert!(last.text.contains("no packet of its flow has come back"), "{packet:#?}");
    assert!(!site.pings_once(), "the hosts do not know these addresses");
}

#[test]
fn a_program_that_wants_huge_pages_is_reported_with_a_remedy() {
    let pages = std::fs::read_to_string("/proc/sys/vm/nr_hugepages").unwrap_or_default();
    if pages.trim() != "0" {
        println!("SKIP: there are huge pages here");
        return;
    }
    let Some(site) = Site::new("hp") else { return };
    let Some(program) = testpmd(&site, "\"--no-huge\", ", "") else { return };
    let daemon = site.start(&program, "on_failure = \"bypass\"");
    site.until(&daemon, NfState::Backoff);
    let how = site.nf(&daemon).last_exit.unwrap();
    assert!(how.contains("exit status") && how.contains("`--no-huge`"), "{how}");
    assert!(site.pings(), "{}", daemon.log());
}

#[test]
fn a_peer_of_another_version_of_memif_is_refused_with_a_word() {
    let Some(site) = Site::new("mv") else { return };
    let sockets = std::env::temp_dir().join(&site.role);
    let program = format!("attach = \"memif\"\nsockets = {sockets:?}\nuser = \"root\"\n");
    let daemon = site.start(&program, "on_failure = \"bypass\"");
    let path = sockets.join(format!("{}.0.left.sock", site.role));
    daemon.until("its socket is there", |_| path.exists());
    let peer: OwnedFd =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&peer, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    let mut hello = [0; 128];
    let (length, _) = recv(&peer, &mut hello, RecvFlags::empty()).unwrap();
    assert_eq!((length, hello[0]), (128, 2), "memif's HELLO");
    // INIT of version 1.0.
    let mut init = [0; 128];
    (init[0], init[3]) = (3, 1);
    send(&peer, &init, SendFlags::empty()).unwrap();
    let word = "it speaks memif 1.0 to 1.0, netvm speaks 2.0: use DPDK 19.08";
    daemon.until("it is said", |daemon| daemon.log().contains(word));
    assert!(site.pings(), "{}", daemon.log());
}
