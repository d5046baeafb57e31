// SPDX-License-Identifier: Apache-2.0
//! Four servers between two spines, with a route reflector: three with netvmd, one with the kernel's own bridges and
//! `vxlan` devices. One network is stretched over all (VNI 100, with the same gateway on each server), and two VRFs are
//! routed between them by symmetric IRB (L3VNI 5000 and 6000).
//!
//! The cases of grout's seven EVPN smoke tests and of VPP's `test_vxlan.py` and `test_vxlan6.py` (August 2026), and
//! where they are here:
//!
//! | case | where |
//! |---|---|
//! | L2VNI with the kernel and FRR on the other side: types 2 and 3, both directions | `l2.rs`, and here |
//! | the same between VTEPs with IPv6 addresses, which FRR has from 10.6 on | `v6.rs`: its entries are written by hand |
//! | ARP and neighbour solicitations answered from type 2 with an IP address, by netvm and by the kernel | `l2.rs`, `engine`: `stages/evpn.rs`, and here in the underlay |
//! | L3VNI: type 5 prefixes of IPv4, the router's MAC address; the same of IPv6 by the same VTEP, whose next hop is the IPv4-mapped address | here |
//! | a prefix that is announced later; a route by a host of the VRF leads to its port, not into the tunnel | here: `later_prefixes` |
//! | L3VNI between VTEPs with IPv6 addresses | `v6.rs` |
//! | L2VNI and L3VNI in one VRF, hosts of each reach the others | here: `all_reach_all` |
//! | encapsulation: the inner frame is whole, other flows have other source ports, of IPv4 and IPv6 | `engine`: `stages/tunnels.rs` |
//! | frames of MPLS, and fragments, within | `engine`: `stages/inner_flows.rs` (flows of MPLS share a source port) |
//! | a packet that is too long with the headers | its sender is told (`stages/tunnels.rs`); VPP cuts the outer packet |
//! | decapsulation | `engine`: `stages/tunnels.rs` |
//! | floods to many VTEPs | the same |
//! | floods to a group of the underlay, and datagrams from one | none: netvm sends floods to each VTEP |
//! | another UDP port | `tunnels/mod.rs` |
//! | a VTEP address that is not the host's | `config`: `routers/tunnels.rs` |
//! | an IP address on the tunnel's own interface: ARP by the tunnel | `tunnels/mod.rs` |
//! | the route to a VTEP changes and goes | here: a link, a server; `engine`: `stages/tunnels.rs` |
//!
//! And of our own: hosts that move, guests, VRFs that do not mix, captures, hostile datagrams (`engine`:
//! `stages/hostile_tunnels.rs`), VTEPs and VNIs that come, go and change (`router/tunnels/tests.rs`).

mod capture;
mod rig;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::super::common::download::PORT;
use super::super::common::guest::{Image, Reaper};
use super::super::common::hosts::{are_possible, run, within};
use super::super::frr::are_installed;
use super::fabric::{Reflector, Server, Spine};
use super::l2::outage;
use super::{TIMEOUT, port};
use capture::{Capture, Inner, Wanted, at_port, decoded};
use rig::{Hosts, VRFS, address, config, guest, kernel};

struct Net {
    servers: Vec<Server>,
    spines: Vec<Spine>,
    _reflector: Reflector,
    hosts: Vec<Hosts>,
    /// Of the third server, which has a guest if this machine can run one.
    _reaper: Reaper,
    image: Option<Image>,
}

impl Net {
    fn new(mark: &str) -> Self {
        let numbers = [1, 2, 3, 4];
        let mut spines: Vec<Spine> = [1, 2].map(|n| Spine::new(&format!("{mark}s"), n)).into();
        let hosts: Vec<Hosts> = numbers.map(|n| Hosts::new(mark, n)).into();
        let mut servers: Vec<Server> = numbers.map(|n| Server::new(&format!("{mark}v"), n, &spines)).into();
        let reflector = Reflector::start(&format!("{mark}rr"), &spines, &numbers);
        let image = Image::make(1);
        let guest = image.as_ref().map_or_else(String::new, guest);
        let reaper = servers[2].reaper();
        std::thread::scope(|scope| {
            let guest = &guest;
            for spine in &mut spines {
                scope.spawn(move || spine.start_frr(&[1, 2, 3, 4, 9]));
            }
            for (server, hosts) in servers.iter_mut().zip(&hosts) {
                scope.spawn(move || {
                    match server.number {
                        4 => {
                            server.start_kernel(&kernel(4, hosts));
                            address(4, hosts);
                        }
                        3 => server.start(&(config(3, hosts) + guest)),
                        number => server.start(&config(number, hosts)),
                    }
                    server.start_frr(&VRFS);
                });
            }
        });
        Self { servers, spines, _reflector: reflector, hosts, _reaper: reaper, image }
    }

    fn log(&self) -> String {
        let servers: String = self.servers.iter().map(Server::log).collect();
        self.spines.iter().map(Spine::log).collect::<String>() + &servers
    }

    /// The VTEPs that get floods of the stretched network from a server.
    fn vteps(&self, server: usize) -> Vec<String> {
        port(self.servers[server].daemon(), "overlay").tunnel.unwrap().remote
    }
}

/// A network that one server has, and one that all have, over IPv6 too.
fn all_reach_all(net: &Net) {
    // The kernel learns its hosts' addresses when they ask for their gateway; netvm, from whatever they say.
    for gateway in ["10.1.0.254", "fd00:1::fe"] {
        assert!(net.hosts[3].red.pings(gateway), "{}", net.log());
    }
    for (from, to) in [(0, 1), (1, 0), (0, 3), (3, 0), (1, 2), (3, 2)] {
        let n = to + 1;
        let hosts = &net.hosts[from];
        for (host, addresses) in [
            (&hosts.red, [format!("10.1.0.{n}"), format!("fd00:1::{n}")]),
            (&hosts.red, [format!("10.1{n}.0.9"), format!("fd00:1{n}::9")]),
            (&hosts.office, [format!("10.1.0.{n}"), format!("fd00:1::{n}")]),
            (&hosts.office, [format!("10.1{n}.0.9"), format!("fd00:1{n}::9")]),
            (&hosts.blue, [format!("10.2{n}.0.9"), format!("fd00:2{n}::9")]),
        ] {
            for address in addresses {
                assert!(host.pings(&address), "{address} from {}\n{}", host.namespace(), net.log());
            }
        }
    }
    for other in ["10.22.0.9", "fd00:22::9"] {
        let program = if other.contains(':') { "ping6" } else { "ping" };
        let once = format!("busybox {program} -c 1 -W 1 {other}");
        assert!(!net.hosts[0].red.output(&once).status.success(), "VRFs do not mix");
    }
}

/// Networks behind hosts of a VRF, which its router says when all others are known: routes to them lead to the host
/// there, and from other servers into the tunnel, in both families.
fn later_prefixes(net: &Net) {
    for number in [1, 4] {
        let server = &net.servers[number - 1];
        let office = &net.hosts[number - 1].office;
        office.ip("link set lo up");
        for (network, gateway) in [
            (format!("10.9{number}.0"), format!("10.1{number}.0.9")),
            (format!("fd00:9{number}::"), format!("fd00:1{number}::9")),
        ] {
            let (own, length) = match network.strip_suffix("::") {
                Some(_) => (format!("{network}1/128"), 64),
                None => (format!("{network}.1/32"), 24),
            };
            office.ip(&format!("address add {own} dev lo"));
            let prefix = if length == 24 { format!("{network}.0/24") } else { format!("{network}/64") };
            let added = server.output(&format!("ip -n netvm-red route add {prefix} via {gateway}"));
            assert_eq!(added, "");
        }
    }
    for (from, to) in [(1, 1), (1, 4), (3, 1), (4, 1), (4, 4)] {
        let host = &net.hosts[from - 1].red;
        for address in [format!("10.9{to}.0.1"), format!("fd00:9{to}::1")] {
            assert!(host.pings(&address), "{address} from server {from}\n{}", net.log());
        }
    }
}

/// A guest of the third server reaches a container of another netvm and one of the kernel's, in the stretched network
/// and by the L3VNI.
fn a_guest_is_in_the_network(net: &Net) {
    if net.image.is_none() {
        return;
    }
    let mut shell = net.servers[2].daemon().shell("guest");
    for command in [
        "echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad",
        "ip link set eth0 up",
        "ip addr add 10.1.0.33/24 dev eth0",
        "ip addr add fd00:1::33/64 dev eth0",
        "ip route add default via 10.1.0.254",
        "ip -6 route add default via fd00:1::fe",
    ] {
        shell.must(command);
    }
    for address in ["10.1.0.1", "10.1.0.4", "10.11.0.9", "10.14.0.9"] {
        shell.until(&format!("ping -c 1 -W 1 {address}"));
    }
    for address in ["fd00:1::1", "fd00:1::4", "fd00:11::9", "fd00:14::9"] {
        shell.until(&format!("ping -6 -c 1 -W 1 {address}"));
    }
    for from in [&net.hosts[0].red, &net.hosts[3].red, &net.hosts[0].office, &net.hosts[3].office] {
        for address in ["10.1.0.33", "fd00:1::33"] {
            assert!(from.pings(address), "{address}\n{}", net.log());
        }
    }
}

/// What leaves a server by a tunnel, what is on the way, and what comes to the other server are the same packets, in
/// the same order. tshark reads all three.
fn captures_agree(net: &Net) {
    const PACKETS: usize = 200;
    const TO: u16 = 4242;
    let underlay: Vec<Capture> = net.spines.iter().map(Capture::start).collect();
    let folder = tempfile::tempdir().unwrap();
    let [from, to] = [0, 2].map(|server| &net.hosts[server]);
    let filter = format!("udp.dstport == {TO}");
    let networks = [
        (100, "overlay", &from.red, &to.red, ["10.1.0.3", "fd00:1::3"]),
        (5000, "red-l3", &from.office, &to.office, ["10.13.0.9", "fd00:13::9"]),
    ];
    let mut ends = Vec::new();
    for (vni, port, from, to, addresses) in networks {
        to.echo_any(TO);
        let addresses: [IpAddr; 2] = addresses.map(|address| address.parse().unwrap());
        let captures = [0, 2].map(|server| {
            let file = folder.path().join(format!("{server}-{port}.pcapng"));
            let packets = addresses.len() * PACKETS;
            let wanted = Wanted { port, filter: &format!("udp and dst port {TO}"), packets };
            (at_port(net.servers[server].daemon(), &wanted, &file), file)
        });
        from.inside(move || addresses.iter().for_each(|address| send(PACKETS, (*address, TO).into())))
            .join()
            .unwrap();
        ends.push((vni, addresses, captures));
    }
    let ends = ends.into_iter().map(|(vni, addresses, captures)| {
        let frames = captures.map(|(reader, file)| {
            assert!(within(TIMEOUT, || reader.is_finished()), "VNI {vni}\n{}", net.log());
            assert_eq!(reader.join().unwrap().lost, 0);
            decoded(&file, &filter)
        });
        (vni, addresses, frames)
    });
    let ends: Vec<_> = ends.collect();
    let mut on_the_way = Vec::new();
    let has_all = within(TIMEOUT, || {
        on_the_way = underlay.iter().flat_map(|capture| decoded(&capture.file, &filter)).collect();
        on_the_way.len() >= 4 * PACKETS
    });
    assert!(has_all, "{} of {}", on_the_way.len(), 4 * PACKETS);
    for (vni, addresses, [sent, received]) in ends {
        // Each flow takes one way, so its packets stay in order.
        for address in addresses {
            let of_flow = |all: &[Inner]| {
                let frames = all.iter().map(|inner| inner.frame.clone());
                frames.filter(|frame| is_to(frame, address)).collect::<Vec<_>>()
            };
            let are_of_network = |inner: &Inner| inner.vni == Some(vni) || !is_to(&inner.frame, address);
            assert!(on_the_way.iter().all(are_of_network), "{address} is in VNI {vni} only");
            let [sent, on_the_way, received] = [&sent, &on_the_way, &received].map(|all| of_flow(all));
            assert_eq!([sent.len(), on_the_way.len(), received.len()], [PACKETS; 3], "{address}");
            assert!(sent == on_the_way && sent == received, "{address}: other bytes, or another order");
        }
    }
}

/// Sends datagrams of different lengths and contents to an echo server, a few at a time.
fn send(count: usize, to: SocketAddr) {
    let socket = UdpSocket::bind((IpAddr::from([0; 16]), 0)).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut answer = [0; 2048];
    for n in 0..count {
        let payload: Vec<u8> = (0..n * 37 % 1300).map(|byte| (n + byte * 7) as u8).collect();
        socket.send_to(&payload, to).unwrap();
        if n % 8 == 7 {
            (0..8).for_each(|_| assert!(socket.recv(&mut answer).is_ok(), "an answer from {to}"));
        }
    }
}

/// Whether a frame has this destination.
fn is_to(frame: &[u8], address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => frame.get(30..34) == Some(&address.octets()),
        IpAddr::V6(address) => frame.get(38..54) == Some(&address.octets()),
    }
}

#[test]
fn four_servers_share_networks_and_survive_moves_links_and_deaths() {
    if !are_possible() || !are_installed() {
        return;
    }
    let begin = Instant::now();
    let mut net = Net::new("4");
    for server in &net.hosts[..3] {
        server.mover.ip("link set eth0 down");
    }
    println!("all is started after {:?}", begin.elapsed());
    for server in 0..3 {
        assert!(within(TIMEOUT, || net.vteps(server).len() == 3), "{:?}\n{}", net.vteps(server), net.log());
    }
    println!("every server knows every VTEP after {:?}", begin.elapsed());
    all_reach_all(&net);
    later_prefixes(&net);
    println!("all have reached all after {:?}", begin.elapsed());
    a_guest_is_in_the_network(&net);
    println!("a guest has reached others after {:?}", begin.elapsed());
    captures_agree(&net);
    println!("captures agree after {:?}", begin.elapsed());

    // Requests for addresses that EVPN knows stay at home.
    let table = |server: usize| net.servers[server].vtysh("show evpn arp-cache vni 100");
    let knows =
        |server: usize| ["10.1.0.1 ", "10.1.0.2 ", "10.1.0.3 "].iter().all(|one| table(server).contains(one));
    assert!(within(TIMEOUT, || (0..4).all(knows)), "{}", net.log());
    let mut captures: Vec<Capture> = net.spines.iter().map(Capture::start).collect();
    let answered = || port(net.servers[0].daemon(), "overlay").neigh_answered.unwrap();
    let before = answered();
    assert!(within(TIMEOUT, || {
        net.hosts[0].red.ip("neighbour flush dev eth0");
        net.hosts[0].red.pings("10.1.0.2") && answered() > before
    }));
    // By the kernel, too.
    net.hosts[3].red.ip("neighbour flush dev eth0");
    assert!(net.hosts[3].red.pings("10.1.0.2"), "{}", net.log());
    let known = "arp.opcode == 1 && (arp.dst.proto_ipv4 == 10.1.0.2 || arp.dst.proto_ipv4 == 10.1.0.254)";
    let broadcasts = format!("eth.dst == ff:ff:ff:ff:ff:ff && {known}");
    let both = |captures: &mut Vec<Capture>, filter: &str, field: &str| -> Vec<String> {
        captures.iter_mut().flat_map(|capture| capture.end(filter, field)).collect()
    };
    let networks = both(&mut captures, "icmp.type == 8", "vxlan.vni");
    assert!(!networks.is_empty() && networks.iter().all(|vni| vni == "100"), "{networks:?}");
    assert_eq!(both(&mut captures, &broadcasts, "arp.dst.proto_ipv4"), [""; 0], "{}", net.log());
    drop(captures);

    // A host moves.
    let [first, third] = [&net.hosts[0].mover, &net.hosts[2].mover];
    for host in [first, third] {
        assert!(host.output("busybox sysctl -w net.ipv4.conf.eth0.arp_notify=1").status.success());
        host.echo_any(PORT);
    }
    first.ip("link set eth0 up");
    assert!(net.hosts[3].red.pings("10.1.0.50") && net.hosts[1].red.pings("10.1.0.50"), "{}", net.log());
    for (from, to) in [(first, third), (third, first)] {
        let outage = outage(&net.hosts[1].red, [10, 1, 0, 50].into(), || {
            from.ip("link set eth0 down");
            to.ip("link set eth0 up");
        });
        println!("a host was unreachable for {outage:?} when it moved");
        assert!(outage < MAX_SILENCE, "{outage:?}\n{}", net.log());
    }

    // A link carries nothing any more, and nobody says so.
    net.hosts[1].blue.echo_any(PORT);
    let spine = net.spines[0].host.namespace().to_owned();
    let lost = outage(&net.hosts[0].blue, [10, 22, 0, 9].into(), || {
        let port = Spine::port(1);
        run(&format!("ip -n {spine} link set {port} nomaster"));
        let gone = || {
            !net.servers[0]
                .vtysh("show bfd peers brief")
                .lines()
                .any(|line| line.contains("10.0.1.254") && line.contains(" up"))
        };
        assert!(within(TIMEOUT, gone), "{}", net.log());
        run(&format!("ip -n {spine} link set {port} master br0"));
    });
    println!("a link fell silent: flows were interrupted for {lost:?}");
    assert!(lost < MAX_SILENCE, "{lost:?}\n{}", net.log());

    // A server falls silent.
    net.servers[1].die();
    let died = Instant::now();
    let is_gone = || !net.vteps(0).contains(&"192.0.2.2".to_owned());
    assert!(within(TIMEOUT, is_gone), "{}", net.log());
    println!("the others know that a server has died after {:?}", died.elapsed());
    assert!(died.elapsed() < MAX_SILENCE, "{}", net.log());
    assert!(net.hosts[0].red.pings("10.1.0.3") && net.hosts[3].blue.pings("10.23.0.9"), "{}", net.log());
    println!("all of it took {:?}", begin.elapsed());
}

/// BFD takes 0.8 s; the rest is for a loaded machine. BGP's hold time alone is nine seconds.
const MAX_SILENCE: Duration = Duration::from_secs(3);
