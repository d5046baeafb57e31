// SPDX-License-Identifier: Apache-2.0
//! What neighbours see of a router: announced addresses, and VRRP's second MAC address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netvm_api::{RouterInfo, Status, path};

use super::common::Daemon;
use super::common::download::PORT;
use super::common::hosts::{are_possible, run, succeeds, within};
use super::site::{Site, start};

const VIRTUAL: &str = "00:00:5e:00:01:07";

#[test]
fn a_new_router_announces_itself_and_may_have_a_virtual_mac_address() {
    if !are_possible() {
        return;
    }
    let site = Site::new("nv");
    let client = &site.client;
    let switch = format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", client.port());
    // The client remembers the MAC address of another router, which is gone.
    let gateways = ["10.1.0.1", "2001:db8:1::1"];
    for gateway in gateways {
        client.ip(&format!("neighbour replace {gateway} lladdr 02:00:00:00:99:99 dev eth0 nud stale"));
    }
    let ipv6_is_off = || std::fs::read_to_string(&switch).unwrap().trim() == "1";
    std::fs::write(&switch, "0").unwrap();
    let mut daemon = start(&[&site]);
    assert!(ipv6_is_off(), "the host sends nothing from the interface of a port");
    let knows = |mac: &str| {
        gateways.iter().all(|gateway| client.ip_output(&format!("neighbour show {gateway}")).contains(mac))
    };
    let mac = interfaces(&daemon, &site)[0].mac.clone();
    assert!(
        within(Duration::from_secs(20), || knows(&mac)),
        "{}\n{}",
        client.ip_output("neighbour show"),
        daemon.log()
    );
    assert!(client.pings("10.2.0.2"), "{}", daemon.log());

    // A macvlan in the namespace, as keepalived and FRR's vrrpd make one.
    site.ip(&format!("link add link lan name vrrp1 address {VIRTUAL} type macvlan mode bridge"));
    site.ip("link set vrrp1 up");
    site.ip("address add 10.1.0.254/24 dev vrrp1");
    client.ip(&format!("neighbour replace 10.1.0.254 lladdr {VIRTUAL} dev eth0 nud permanent"));
    client.ip("route replace default via 10.1.0.254");
    assert!(client.pings("10.1.0.254"), "{}", daemon.log());
    assert!(client.pings("10.2.0.2"), "{}", daemon.log());
    let forwarded = |daemon: &Daemon| router(daemon, &site).forwarded;
    let before = forwarded(&daemon);
    let burst = client.output("busybox ping -c 20 -i 0.02 10.2.0.2");
    assert!(burst.status.success(), "{burst:?}");
    let after = forwarded(&daemon);
    assert!(after >= before + 30, "the engine forwards: {before}, {after}, {:?}", router(&daemon, &site));
    // NAT in the namespace is not followed, and netvmd says so.
    if succeeds("nft --version") {
        let namespace = site.namespace();
        run(&format!("ip netns exec {namespace} nft add table ip t"));
        let chain = ["{", "type", "nat", "hook", "postrouting", "priority", "100;", "}"];
        let mut nft = Command::new("ip");
        nft.args(["netns", "exec", &namespace, "nft", "add", "chain", "ip", "t", "c"]).args(chain);
        assert!(nft.status().unwrap().success());
        daemon.until("NAT is noticed", |daemon| {
            let status: Status = daemon.get(path::STATUS);
            status.problems.iter().any(|problem| problem.contains("NAT in its namespace"))
        });
        run(&format!("ip netns exec {namespace} nft delete table ip t"));
        daemon.until("it is gone", |daemon| !router(daemon, &site).has_nat);
    } else {
        println!("SKIP: NAT in a namespace: nft is not installed");
    }
    // Another router has it now.
    site.ip("link set vrrp1 down");
    let passes = || client.output("busybox ping -c 1 -W 1 10.2.0.2").status.success();
    assert!(within(Duration::from_secs(20), || !passes()));
    daemon.purge();
    assert!(!ipv6_is_off(), "as it was");
}

/// A client scans a large network of each family as fast as it can, and the kernel forgets a neighbour there again and
/// again.
#[test]
fn a_neighbour_is_learned_again_during_a_scan() {
    if !are_possible() {
        return;
    }
    let site = Site::new("ne");
    let mut daemon = start(&[&site]);
    let (v4, v6) = ("10.2.0.2", "2001:db8:2::2");
    assert!(site.client.pings(v4) && site.client.pings(v6), "{}", daemon.log());
    site.server.echo_any(PORT);
    let stop = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&stop);
    let scan = site.client.inside(move || {
        let sockets = ["0.0.0.0:0", "[::]:0"].map(|any| std::net::UdpSocket::bind(any).unwrap());
        let mut sent = 0u32;
        while !is_over.load(Ordering::Relaxed) {
            let [_, _, high, low] = sent.to_be_bytes();
            let v6 = Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 1, sent as u16);
            // The kernel may run out of buffers.
            let _ = sockets[0].send_to(b"?", (Ipv4Addr::new(10, 2, 1 + high % 250, low), 9));
            let _ = sockets[1].send_to(b"?", (v6, 9));
            sent += 1;
        }
        sent
    });
    let over = |daemon: &Daemon| format!("{:?}", daemon.stats().drops).contains("punt-quota");
    daemon.until("the scan exceeds its share", over);
    let mut times = Vec::new();
    for _ in 0..15 {
        for address in [v4, v6] {
            // It may be gone: the scan makes the kernel remove what it has not used for long.
            site.ip(&format!("neighbour flush to {address} dev wan"));
            let deleted = Instant::now();
            let to: IpAddr = address.parse().unwrap();
            let answered = site.client.inside(move || {
                let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
                let socket = std::net::UdpSocket::bind((any, 0)).unwrap();
                socket.connect((to, PORT)).unwrap();
                socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
                within(Duration::from_secs(20), || {
                    let _ = socket.send(b"again");
                    socket.recv(&mut [0; 8]).is_ok()
                })
            });
            assert!(answered.join().unwrap(), "{address}: {:?}\n{}", router(&daemon, &site), daemon.log());
            times.push(deleted.elapsed());
        }
    }
    stop.store(true, Ordering::Relaxed);
    let scanned = scan.join().unwrap();
    times.sort_unstable();
    println!("{scanned} addresses scanned; learned again after {times:?}");
    assert!(times[times.len() - 2] < Duration::from_secs(1), "{times:?}");
    // The kernel's table holds what its users need.
    let table = run(&format!("ip -n {} neighbour show", site.namespace()));
    println!("{} neighbours in the namespace", table.lines().count());
    daemon.purge();
}

#[test]
fn senders_are_told_of_a_shorter_way() {
    if !are_possible() {
        return;
    }
    let site = Site::new("q");
    let client = &site.client;
    let mut daemon = start(&[&site]);
    assert!(client.pings("10.2.0.2") && client.pings("2001:db8:2::2"), "{}", daemon.log());
    // The way to both networks leads back by the client's own.
    for (family, gateway, network) in
        [("-4", "10.1.0.9", "172.20.0.0/16"), ("-6", "fe80::9", "2001:db8:20::/48")]
    {
        site.ip(&format!("neighbour replace {gateway} lladdr 02:00:00:00:99:09 dev lan nud permanent"));
        // A sender follows to a gateway that it knows.
        client.ip(&format!("neighbour replace {gateway} lladdr 02:00:00:00:99:09 dev eth0 nud permanent"));
        site.ip(&format!("{family} route add {network} via {gateway} dev lan"));
    }
    // An IPv6 sender listens to its gateway only, which redirects from its link-local address (RFC 4861 section 8.1).
    let own = run(&format!("ip -n {} -6 -o address show dev lan scope link", site.namespace()));
    let own = own.split_whitespace().nth(3).unwrap().split('/').next().unwrap();
    client.ip(&format!("-6 route replace default via {own} dev eth0"));
    for family in ["ipv4", "ipv6"] {
        for scope in ["all", "eth0"] {
            let switch = format!("busybox sysctl -w net.{family}.conf.{scope}.accept_redirects=1");
            assert!(client.output(&switch).status.success());
        }
    }
    let before = router(&daemon, &site);
    for (ping, address) in [("ping", "172.20.0.1"), ("ping6", "2001:db8:20::1")] {
        // No host answers.
        let is_told = || {
            client.output(&format!("busybox {ping} -c 1 -W 1 {address}"));
            let route = client.ip_output(&format!("route get {address}"));
            route.contains("via 10.1.0.9 ") || route.contains("via fe80::9 ")
        };
        assert!(within(Duration::from_secs(30), is_told), "{address}: {:?}", router(&daemon, &site));
    }
    // The engine forwards all but a packet a second.
    client.ip("route flush cache");
    for family in ["ipv4", "ipv6"] {
        client.output(&format!("busybox sysctl -w net.{family}.conf.all.accept_redirects=0"));
        client.output(&format!("busybox sysctl -w net.{family}.conf.eth0.accept_redirects=0"));
    }
    client.output("busybox ping -c 20 -i 0.01 -W 1 172.20.0.2");
    let after = router(&daemon, &site);
    assert!(after.forwarded >= before.forwarded + 15, "{before:?}\n{after:?}");
    daemon.purge();
}

fn router(daemon: &Daemon, site: &Site) -> RouterInfo {
    let routers: Vec<RouterInfo> = daemon.get(path::ROUTERS);
    routers.into_iter().find(|router| router.name == site.router).unwrap()
}

fn interfaces(daemon: &Daemon, site: &Site) -> Vec<netvm_api::RouterInterfaceInfo> {
    router(daemon, site).interfaces
}
