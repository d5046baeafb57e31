// SPDX-License-Identifier: Apache-2.0
//! Virtual routers end to end: hosts in namespaces with netvmd between them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod beside_kernel;
mod churn;
#[path = "../common/mod.rs"]
mod common;
mod evpn;
mod frr;
mod links;
mod many;
mod namespace;
mod nat;
mod neighbours;
mod patch;
mod site;
mod static_routes;
mod tunnels;

use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::Folder;
use common::download::{PORT, download, serve};
use common::hosts::{Host, are_possible, asking, run, within};
use netvm_api::{RouteAction, path};
use netvm_model::RouterInterface;
use rustix::process::Signal;
use site::{ENGINE, Site, start, start_in};

const DOWNLOAD: u64 = 50_000_000;

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
fn the_engine_forwards_between_networks_and_punts_little() {
    if !are_possible() {
        return;
    }
    let site = Site::new("a");
    let mut daemon = start(&[&site]);
    let (client, server) = (&site.client, &site.server);
    assert!(client.pings("10.1.0.1"), "the router itself answers\n{}", daemon.log());
    assert!(client.pings("10.2.0.2") && server.pings("10.1.0.2"), "{}", daemon.log());
    assert!(client.pings("2001:db8:2::2") && server.pings("2001:db8:1::2"), "{}", daemon.log());

    let before = site.punted(&daemon);
    serve(server, DOWNLOAD);
    let took = download(client, server.address(), DOWNLOAD);
    let punted = site.punted(&daemon) - before;
    println!("{DOWNLOAD} bytes in {took:?}, {punted} packets punted");
    assert!(punted < DOWNLOAD / 1500 / 20, "{punted} packets of a download went through the kernel");

    // Time exceeded (RFC 792) comes from the router's namespace.
    let hops = client.output("busybox traceroute -n -q 1 -w 5 -m 4 10.2.0.2").stdout;
    let hops = String::from_utf8(hops).unwrap();
    let lines: Vec<&str> = hops.lines().filter(|line| line.contains(" ms")).collect();
    assert!(lines.len() == 2 && lines[0].contains("10.1.0.1") && lines[1].contains("10.2.0.2"), "{hops}");

    // No route: the kernel answers with an ICMP error; without one, connecting would time out.
    let connect = || TcpStream::connect((Ipv4Addr::new(192, 0, 2, 1), PORT)).unwrap_err().raw_os_error();
    let error = client.inside(connect).join().unwrap();
    assert!(matches!(error, Some(libc::ENETUNREACH | libc::EHOSTUNREACH)), "{error:?}");

    // The engine follows a new route and a blackhole route.
    server.ip("address add 172.16.0.1/32 dev lo");
    server.echo([172, 16, 0, 1].into(), PORT);
    site.ip("route add 172.16.0.0/24 via 10.2.0.2");
    assert!(client.pings("172.16.0.1"));
    let mut times = acting(&site);
    println!(
        "a kernel route is in force in the engine {:?} after `ip route` ended (median of {})",
        median(&mut times),
        times.len()
    );
    assert!(median(&mut times) < Duration::from_millis(500), "{times:?}");

    // The server changes its MAC address.
    server.ip("link set eth0 address 02:00:00:00:77:01");
    assert!(server.pings("10.2.0.1") && client.pings("10.2.0.2"), "{}", daemon.log());
    let is_known = || {
        let routes = site.routes(&daemon).routes;
        routes.iter().any(|route| {
            route.prefix == "10.2.0.2/32"
                && route.action == RouteAction::Forward
                && route.hops[0].mac.as_deref() == Some("02:00:00:00:77:01")
        })
    };
    assert!(within(Duration::from_secs(10), is_known), "{:?}", site.routes(&daemon));

    // On request, a shutdown removes everything.
    let ends = ["lan", "wan"].map(|name| RouterInterface::host_end_of(&site.router, name));
    let is_there = |end: &String| Path::new("/sys/class/net").join(end).exists();
    assert!(ends.iter().all(is_there), "{ends:?}");
    daemon.purge();
    assert!(!Path::new("/run/netns").join(site.namespace()).exists());
    assert!(!ends.iter().any(is_there), "{ends:?}");
}

/// Measures several times how long packets still pass after a blackhole route was added.
fn acting(site: &Site) -> Vec<Duration> {
    let target = IpAddr::from([172, 16, 0, 1]);
    let stop = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&stop);
    let (heard, answers) = std::sync::mpsc::channel();
    let asker = site.client.inside(move || {
        let socket = asking(target, PORT, Duration::from_millis(1));
        let mut datagram = [0; 8];
        while !is_over.load(Ordering::Relaxed) {
            // Fails while the route is a blackhole.
            let _ = socket.send(&datagram);
            if socket.recv(&mut datagram).is_ok() {
                heard.send(Instant::now()).unwrap();
            }
        }
    });
    let next = || answers.recv_timeout(Duration::from_secs(20)).unwrap();
    let mut times = Vec::new();
    for _ in 0..11 {
        next();
        site.ip("route add blackhole 172.16.0.1/32");
        let made = Instant::now();
        let mut last = made;
        // Longer than a scheduler delay.
        while let Ok(at) = answers.recv_timeout(Duration::from_millis(100)) {
            last = last.max(at);
            assert!(made.elapsed() < Duration::from_secs(20), "packets still get through");
        }
        times.push(last - made);
        site.ip("route del blackhole 172.16.0.1/32");
    }
    stop.store(true, Ordering::Relaxed);
    asker.join().unwrap();
    times
}

#[test]
fn a_restarted_netvmd_takes_over_its_routers() {
    if !are_possible() {
        return;
    }
    let site = Site::new("k");
    let folder = Arc::new(Folder::new());
    let mut daemon = start_in(Arc::clone(&folder), &[&site]);
    assert!(site.client.pings("10.2.0.2"), "{}", daemon.log());
    site.server.ip("address add 172.16.0.1/32 dev lo");
    site.ip("route add 172.16.0.0/24 via 10.2.0.2");
    let mut inside = Command::new("ip");
    let mut inside = inside.args(["netns", "exec", &site.namespace(), "sleep", "600"]).spawn().unwrap();
    daemon.signal(Signal::KILL);
    daemon.wait();
    assert!(Path::new("/run/netns").join(site.namespace()).exists());

    let mut daemon = start_in(Arc::clone(&folder), &[&site]);
    assert!(daemon.log().contains("taking over the existing namespace"), "{}", daemon.log());
    assert!(site.client.pings("172.16.0.1"), "the route persists\n{}", daemon.log());
    assert!(inside.try_wait().unwrap().is_none(), "a daemon inside keeps running");

    // What somebody set in the namespace is not the next netvmd's to change: a permanent neighbour, a name, and a
    // setting.
    site.ip("neighbour add 10.2.0.99 lladdr 02:00:00:00:99:99 dev wan nud permanent");
    let inside_of = |words: &str| run(&format!("ip netns exec {} busybox {words}", site.namespace()));
    inside_of("sysctl -w net.ipv4.conf.lan.forwarding=0");
    let passes = || site.client.output("busybox ping -c 1 -W 1 172.16.0.1").status.success();
    assert!(within(Duration::from_secs(20), || !passes()), "{}", daemon.log());

    // An orderly shutdown keeps it, too; what runs inside sees that the carrier is lost.
    let carrier = || run(&format!("ip -n {} -o link show lan", site.namespace()));
    assert!(!carrier().contains("NO-CARRIER"));
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().success(), "{}", daemon.log());
    assert!(inside.try_wait().unwrap().is_none() && carrier().contains("NO-CARRIER"), "{}", carrier());
    let mut daemon = start_in(Arc::clone(&folder), &[&site]);
    assert!(site.client.pings("10.1.0.1") && !passes(), "the setting persists\n{}", daemon.log());
    let neighbours = run(&format!("ip -n {} neighbour show", site.namespace()));
    assert!(neighbours.contains("10.2.0.99 dev wan lladdr 02:00:00:00:99:99 PERMANENT"), "{neighbours}");
    inside_of("sysctl -w net.ipv4.conf.lan.forwarding=1");
    assert!(site.client.pings("172.16.0.1"), "the route persists\n{}", daemon.log());
    assert!(!carrier().contains("NO-CARRIER"));

    // The configuration loses the router while no netvmd runs: the next one removes it.
    daemon.signal(Signal::KILL);
    daemon.wait();
    inside.kill().unwrap();
    inside.wait().unwrap();
    let mut daemon = start_in(folder, &[]);
    assert!(!Path::new("/run/netns").join(site.namespace()).exists(), "{}", daemon.log());
    daemon.signal(Signal::TERM);
    daemon.wait();
}

#[test]
fn routers_with_the_same_addresses_are_isolated_and_a_scan_does_not_disturb() {
    if !are_possible() {
        return;
    }
    let (blue, red) = (Site::new("b"), Site::new("r"));
    let mut daemon = start(&[&blue, &red]);
    // The servers share an address and differ in another.
    blue.server.ip("address add 172.16.0.1/32 dev lo");
    red.server.ip("address add 172.16.0.2/32 dev lo");
    for site in [&blue, &red] {
        site.ip("route add 172.16.0.0/24 via 10.2.0.2");
    }
    assert!(blue.client.pings("172.16.0.1") && red.client.pings("172.16.0.2"), "{}", daemon.log());
    let once = |host: &Host, address: &str| {
        host.output(&format!("busybox ping -c 1 -W 1 {address}")).status.success()
    };
    assert!(!once(&blue.client, "172.16.0.2") && !once(&red.client, "172.16.0.1"));

    // Red's client scans for neighbours at full speed during both downloads.
    let stop = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&stop);
    let scan = red.client.inside(move || {
        let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let mut sent = 0u32;
        while !is_over.load(Ordering::Relaxed) {
            // The kernel may run out of buffers. By default it keeps few neighbours for all namespaces together.
            let _ = socket.send_to(b"?", (Ipv4Addr::new(10, 2, 1, (sent % 250) as u8), 9));
            sent += 1;
        }
        sent
    });
    for site in [&blue, &red] {
        serve(&site.server, DOWNLOAD / 5);
        let took = download(&site.client, site.server.address(), DOWNLOAD / 5);
        println!("{}: {} bytes in {took:?} beside a scan", site.router, DOWNLOAD / 5);
    }
    stop.store(true, Ordering::Relaxed);
    let scanned = scan.join().unwrap();
    let drops = daemon.stats().drops;
    println!("{scanned} addresses scanned; {drops:?}");
    let by_quota = format!("{drops:?}").contains("punt-quota");
    assert!(by_quota, "the quota limited the scan");

    // Routers are added and removed while netvmd runs.
    let _: netvm_api::ApplyReply = daemon.post(path::APPLY, &(ENGINE.to_owned() + &red.config()));
    assert!(!Path::new("/run/netns").join(blue.namespace()).exists());
    assert!(red.client.pings("172.16.0.2"), "{}", daemon.log());
    let _: netvm_api::ApplyReply =
        daemon.post(path::APPLY, &(ENGINE.to_owned() + &red.config() + &blue.config()));
    assert!(blue.client.pings("10.2.0.2"), "{}", daemon.log());
    daemon.purge();
}
