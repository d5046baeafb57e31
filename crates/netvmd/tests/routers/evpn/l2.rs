// SPDX-License-Identifier: Apache-2.0
//! One network (L2VNI): VTEPs by type 3, addresses by type 2, and hosts that move.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::super::common::Daemon;
use super::super::common::download::PORT;
use super::super::common::hosts::{Host, are_possible, asking, within};
use super::super::frr::{Daemons, are_installed};
use super::peer::Peer;
use super::{Server, TIMEOUT, port};

#[test]
fn hosts_behind_the_kernel_and_netvm_reach_each_other() {
    if !are_possible() || !are_installed() {
        return;
    }
    let (web, db) = (Host::bare("ec"), Host::bare("ed"));
    let peer = Peer::new("ek", "192.0.2.2");
    peer.plug(&db, "10.7.0.2/24");
    let mut server = Server::new("ev", "192.0.2.1", peer.host.port());
    server.container(&web, "10.7.0.1/24\", \"fd00:7::1/64", "");
    db.ip("address add fd00:7::2/64 dev eth0 nodad");
    let mut daemon = Daemon::start(&server.config());
    let (ours, theirs) = (server.start_frr(&["192.0.2.2"]), peer.start_frr(&["192.0.2.1"]));
    let logs = |daemon: &Daemon| {
        format!(
            "{:?}\n{}\n{}\n{}\n{}{}{}{}",
            daemon.stats().drops,
            daemon.log(),
            ours.log(),
            theirs.log(),
            ours.vtysh("show evpn mac vni 100"),
            theirs.vtysh("show evpn mac vni 100"),
            ours.vtysh("show evpn arp-cache vni 100"),
            theirs.vtysh("show evpn arp-cache vni 100")
        )
    };
    let vteps = || port(&daemon, "overlay").tunnel.unwrap().remote;
    assert!(within(TIMEOUT, || vteps() == ["192.0.2.2"]), "{}", logs(&daemon));
    assert!(web.pings("10.7.0.2") && db.pings("10.7.0.1"), "{}", logs(&daemon));
    // Both know by type 2 where the other host is.
    let mac = |host: &Host| {
        host.ip_output("-o link show dev eth0").split("link/ether ").nth(1).unwrap()[..17].to_owned()
    };
    let has =
        |table: String, mac: &str| table.lines().any(|line| line.contains(mac) && line.contains("remote"));
    assert!(within(TIMEOUT, || has(theirs.vtysh("show evpn mac vni 100"), &mac(&web))), "{}", logs(&daemon));
    assert!(within(TIMEOUT, || has(ours.vtysh("show evpn mac vni 100"), &mac(&db))), "{}", logs(&daemon));
    // The IP addresses, too: netvm's by the configuration, the kernel's as that of a gateway there learns them.
    for address in ["10.7.0.2", "fd00:7::2"] {
        peer.host.ip(&format!("neighbour replace {address} lladdr {} dev br100 nud permanent", mac(&db)));
    }
    let knows = |frr: &Daemons, address: &str| has(frr.vtysh("show evpn arp-cache vni 100"), address);
    let all_known = || {
        ["10.7.0.1", "fd00:7::1"].iter().all(|address| knows(&theirs, address))
            && ["10.7.0.2", "fd00:7::2"].iter().all(|address| knows(&ours, address))
    };
    assert!(within(TIMEOUT, all_known), "{}", logs(&daemon));
    // Requests for them end here.
    let answered = || port(&daemon, "overlay").neigh_answered.unwrap();
    for (number, address) in (1..).zip(["10.7.0.2", "fd00:7::2"]) {
        let is_answered = || {
            web.ip("neighbour flush dev eth0");
            web.pings(address) && answered() >= number
        };
        assert!(within(TIMEOUT, is_answered), "{address}: {} answered, {}", answered(), logs(&daemon));
    }
    drop((ours, theirs));
    daemon.purge();
}

/// The MAC address of the host that moves.
const GUEST: &str = "02:00:00:00:07:09";

#[test]
fn a_host_moves_from_server_to_server_and_back() {
    if !are_possible() || !are_installed() {
        return;
    }
    let [web, here, there] = ["fc", "fh", "ft"].map(Host::bare);
    let peer = Peer::new("fk", "192.0.2.2");
    peer.plug(&there, "10.7.0.9/24");
    there.ip("link set eth0 down");
    there.ip(&format!("link set eth0 address {GUEST}"));
    let mut server = Server::new("fv", "192.0.2.1", peer.host.port());
    server.container(&web, "10.7.0.1/24", "");
    server.container(&here, "10.7.0.9/24", &format!("mac = \"{GUEST}\"\n"));
    let mut daemon = Daemon::start(&server.config());
    let (ours, theirs) = (server.start_frr(&["192.0.2.2"]), peer.start_frr(&["192.0.2.1"]));
    let logs = || {
        format!(
            "{}\n{}\n{}",
            ours.vtysh("show evpn mac vni 100"),
            theirs.vtysh("show evpn mac vni 100"),
            daemon.log()
        )
    };
    let at = |daemons: &Daemons, place: &str| {
        let table = daemons.vtysh("show evpn mac vni 100");
        table.lines().any(|line| line.starts_with(GUEST) && line.contains(place))
    };
    assert!(web.pings("10.7.0.9"), "{}", logs());
    assert!(within(TIMEOUT, || at(&theirs, "remote")), "{}", logs());
    for host in [&here, &there] {
        // A host announces itself where it arrives.
        assert!(host.output("busybox sysctl -w net.ipv4.conf.eth0.arp_notify=1").status.success());
        host.echo_any(PORT);
    }
    for (from, to) in [(&here, &there), (&there, &here), (&here, &there)] {
        let outage = outage(&web, Ipv4Addr::new(10, 7, 0, 9), || {
            from.ip("link set eth0 down");
            to.ip("link set eth0 up");
        });
        println!("a host was unreachable for {outage:?} when it moved");
        assert!(outage < Duration::from_secs(1), "{outage:?}\n{}", logs());
        let is_here = std::ptr::eq(to, &here);
        let [own, others] = if is_here { ["local", "remote"] } else { ["remote", "local"] };
        assert!(within(TIMEOUT, || at(&ours, own) && at(&theirs, others)), "{}", logs());
    }
    drop((ours, theirs));
    daemon.purge();
}

/// The longest time without an answer of an echo server, of several flows, around what `change` does.
pub fn outage(client: &Host, server: Ipv4Addr, change: impl FnOnce()) -> Duration {
    const FLOWS: usize = 4;
    let over = Arc::new(AtomicBool::new(false));
    let (heard, is_heard) = mpsc::channel();
    let flow = |_| {
        let (is_over, heard) = (Arc::clone(&over), heard.clone());
        client.inside(move || {
            let socket = asking(server.into(), PORT, Duration::from_millis(20));
            let (mut last, mut longest, mut last_number) = (None, Duration::ZERO, None);
            for number in 0u64.. {
                // Of a datagram that is sent from then on, the answer comes from the new place.
                if is_over.load(Ordering::Relaxed) {
                    last_number.get_or_insert(number);
                }
                let mut answer = [0; 8];
                let _ = socket.send(&number.to_be_bytes());
                if socket.recv(&mut answer).is_err() {
                    continue;
                }
                let now = Instant::now();
                match last.replace(now) {
                    None => heard.send(()).unwrap(),
                    Some(before) => longest = longest.max(now - before),
                }
                if last_number.is_some_and(|last| u64::from_be_bytes(answer) >= last) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            longest
        })
    };
    let flows: Vec<_> = (0..FLOWS).map(flow).collect();
    for _ in &flows {
        is_heard.recv_timeout(TIMEOUT).unwrap();
    }
    change();
    over.store(true, Ordering::Relaxed);
    flows.into_iter().map(|flow| flow.join().unwrap()).max().unwrap()
}
