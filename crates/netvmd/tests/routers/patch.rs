// SPDX-License-Identifier: Apache-2.0
//! Ports without a device: a router's interface in a VLAN of L2 switching, the switch's own or a patch port, and a
//! link from one router to another.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use netvm_api::{ApplyReply, PortInfo, RouterInfo, path};

use super::DOWNLOAD;
use super::common::Daemon;
use super::common::download::{download, serve};
use super::common::hosts::{Host, are_possible, succeeds, within};
use super::frr::{Daemons, are_installed};
use super::site::{ENGINE, until_forwarded};

/// Two hosts in a VLAN with a router's interface, and one behind another router.
struct Net {
    hosts: [Host; 2],
    server: Host,
    blue: String,
    red: String,
}

impl Net {
    /// `mark` is a letter of its own in the names of each test.
    fn new(mark: char) -> Self {
        let host = |name: &str, address: &str| {
            Host::new(
                name,
                &[address, &address.replace("10.1.0.", "2001:db8:1::").replace("/24", "/64")],
                &["10.1.0.1", "2001:db8:1::1"],
            )
        };
        Self {
            hosts: [host(&format!("{mark}a"), "10.1.0.2/24"), host(&format!("{mark}b"), "10.1.0.3/24")],
            server: Host::new(
                &format!("{mark}s"),
                &["10.2.0.2/16", "2001:db8:2::2/64"],
                &["10.2.0.1", "2001:db8:2::1"],
            ),
            blue: format!("{mark}b{}", std::process::id()),
            red: format!("{mark}r{}", std::process::id()),
        }
    }

    /// With static routes, or without any. The first router is at a patch link to L2 switching, or at its own
    /// interface.
    fn config(&self, is_static: bool, is_patched: bool) -> String {
        let Self { hosts: [a, b], server, blue, red } = self;
        let mut text = ENGINE.to_owned();
        let switched = "forward = { normal = true }\nvlan";
        for (name, host, does) in [
            ("a", a, format!("{switched} = {{ access = 10 }}")),
            ("b", b, format!("{switched} = {{ access = 10 }}")),
            ("s", server, format!("forward = {{ router = \"{red}\" }}")),
        ] {
            let interface = host.port();
            writeln!(
                text,
                "[[port]]\nname = \"{name}\"\nkind = \"af_xdp\"\ninterface = \"{interface}\"\n{does}"
            )
            .unwrap();
        }
        let (to_blue, trunk) = (format!("forward = {{ router = \"{blue}\" }}"), "{ trunk = [10, 20] }");
        if !is_patched {
            writeln!(text, "[[port]]\nname = \"svi\"\nkind = \"bridge\"\nvlan = {trunk}\n{to_blue}").unwrap();
        }
        let to_switch =
            [("vlans", "svi", format!("{switched} = {trunk}")), ("svi", "vlans", to_blue.clone())];
        let links = [
            ("to-red", "to-blue", to_blue),
            ("to-blue", "to-red", format!("forward = {{ router = \"{red}\" }}")),
        ];
        for (name, peer, does) in to_switch.into_iter().filter(|_| is_patched).chain(links) {
            writeln!(text, "[[port]]\nname = \"{name}\"\nkind = \"patch\"\npeer = \"{peer}\"\n{does}")
                .unwrap();
        }
        for (name, routes, interfaces) in [
            (
                blue,
                [("10.2.0.0/16", "10.9.0.2"), ("2001:db8:2::/64", "2001:db8:9::2")],
                [
                    ("vlan10", "svi", ["10.1.0.1/24", "2001:db8:1::1/64"]),
                    ("red", "to-red", ["10.9.0.1/30", "2001:db8:9::1/64"]),
                ],
            ),
            (
                red,
                [("10.1.0.0/24", "10.9.0.1"), ("2001:db8:1::/64", "2001:db8:9::1")],
                [
                    ("blue", "to-blue", ["10.9.0.2/30", "2001:db8:9::2/64"]),
                    ("wan", "s", ["10.2.0.1/16", "2001:db8:2::1/64"]),
                ],
            ),
        ] {
            let routes = routes.map(|(to, via)| format!("{{ to = \"{to}\", via = \"{via}\" }}")).join(", ");
            let routes = if is_static { format!("routes = [{routes}]") } else { String::new() };
            writeln!(text, "[[router]]\nname = \"{name}\"\n{routes}").unwrap();
            for (name, port, addresses) in interfaces {
                let vlan = if port == "svi" { "vlan = 10\n" } else { "" };
                writeln!(
                    text,
                    "[[router.interface]]\nname = \"{name}\"\nport = \"{port}\"\n{vlan}addresses = {addresses:?}"
                )
                .unwrap();
            }
        }
        text
    }
}

impl Drop for Net {
    /// Cleans up after a failed test whose netvmd was killed.
    fn drop(&mut self) {
        for namespace in [&self.blue, &self.red].map(|name| format!("netvm-{name}")) {
            if Path::new("/run/netns").join(&namespace).exists() {
                let _ = succeeds(&format!("ip netns delete {namespace}"));
            }
        }
    }
}

#[test]
fn a_router_has_an_interface_in_a_vlan_and_a_link_to_another_router() {
    if !are_possible() {
        return;
    }
    let net = Net::new('v');
    let mut daemon = Daemon::start(&net.config(true, true));
    let [a, b] = &net.hosts;
    assert!(a.pings("10.1.0.3") && b.pings("2001:db8:1::2"), "within the VLAN\n{}", daemon.log());
    assert!(a.pings("10.1.0.1") && b.pings("2001:db8:1::1"), "its router\n{}", daemon.log());
    assert!(a.pings("10.2.0.2") && net.server.pings("10.1.0.3"), "over both\n{}", daemon.log());
    assert!(a.pings("2001:db8:2::2") && net.server.pings("2001:db8:1::3"), "{}", daemon.log());
    until_forwarded(&daemon, a, "10.2.0.2");
    let punted = |daemon: &Daemon| {
        let routers: Vec<RouterInfo> = daemon.get(path::ROUTERS);
        routers.iter().map(|router| router.punted).sum::<u64>()
    };
    let before = punted(&daemon);
    serve(&net.server, DOWNLOAD / 5);
    let took = download(a, net.server.address(), DOWNLOAD / 5);
    let punted = punted(&daemon) - before;
    println!("{} bytes over a VLAN and two routers in {took:?}, {punted} packets punted", DOWNLOAD / 5);
    assert!(punted < DOWNLOAD / 5 / 1500 / 20, "{punted} packets of a download went through the kernel");
    let ports: Vec<PortInfo> = daemon.get(path::PORTS);
    let patches: Vec<_> = ports.iter().filter(|port| port.kind == "patch").collect();
    assert!(patches.len() == 4 && patches.iter().all(|port| port.link && port.rx_packets > 0), "{ports:?}");
    // One end is opened again, with another MTU: its peer stays.
    let shorter = net.config(true, true).replace("name = \"to-red\"\n", "name = \"to-red\"\nmtu = 1400\n");
    let _: ApplyReply = daemon.post(path::APPLY, &shorter);
    assert!(a.pings("10.2.0.2") && net.server.pings("2001:db8:1::3"), "{}", daemon.log());
    // Without the link nothing gets through, and it comes back.
    let _: ApplyReply = daemon.post(path::APPLY, &ENGINE);
    let _: ApplyReply = daemon.post(path::APPLY, &net.config(true, true));
    assert!(b.pings("10.2.0.2"), "{}", daemon.log());
    // The switch's own interface in place of the link to it.
    let _: ApplyReply = daemon.post(path::APPLY, &net.config(true, false));
    assert!(a.pings("10.1.0.3") && a.pings("10.1.0.1"), "within the VLAN\n{}", daemon.log());
    assert!(b.pings("10.2.0.2") && net.server.pings("2001:db8:1::2"), "{}", daemon.log());
    let ports: Vec<PortInfo> = daemon.get(path::PORTS);
    let svi = ports.iter().find(|port| port.kind == "bridge").unwrap();
    assert!(svi.link && svi.workers.is_empty() && svi.rx_packets > 0 && svi.tx_packets > 0, "{svi:?}");
    daemon.purge();
}

/// BGP with BFD between FRR in one router and BIRD in the other.
fn routing_daemons(net: &Net) -> [Daemons; 2] {
    let bfd = "bfd\n peer 10.9.0.1\n  receive-interval 200\n  transmit-interval 200\n !\n".to_owned();
    let bgp = "router bgp 65001\n no bgp ebgp-requires-policy\n bgp router-id 10.9.0.2\n timers bgp 3 9\n \
               neighbor 10.9.0.1 remote-as 65002\n neighbor 10.9.0.1 timers connect 1\n neighbor 10.9.0.1 bfd\n \
               address-family ipv4 unicast\n  network 10.2.0.0/16\n exit-address-family\n"
        .to_owned();
    let frr = Daemons::frr(&format!("netvm-{}", net.red), &[("bfdd", bfd), ("bgpd", bgp)]);
    let bird = Daemons::bird(
        &format!("netvm-{}", net.blue),
        "router id 10.9.0.1;\nprotocol device { scan time 1; }\nprotocol direct { ipv4; interface \"vlan10\"; }\n\
         protocol kernel { ipv4 { import none; export where source = RTS_BGP; }; }\n\
         protocol bfd { interface \"red\" { interval 200 ms; multiplier 5; }; }\n\
         protocol bgp red {\n local 10.9.0.1 as 65002; neighbor 10.9.0.2 as 65001; bfd on; connect delay time 1;\n \
         ipv4 { import all; export where source = RTS_DEVICE; };\n}\n",
    );
    [frr, bird]
}

#[test]
fn frr_and_bird_in_two_routers_learn_each_others_networks() {
    if !are_possible() || !are_installed() {
        return;
    }
    let net = Net::new('x');
    let mut daemon = Daemon::start(&net.config(false, false));
    let [a, _] = &net.hosts;
    assert!(!succeeds(&format!("ip netns exec {} ping -c 1 -W 1 10.2.0.2", a.namespace())), "no route yet");
    let daemons = routing_daemons(&net);
    let log = || daemons.iter().map(Daemons::log).collect::<String>();
    assert!(within(Duration::from_secs(60), || a.pings("10.2.0.2")), "{}\n{}", log(), daemon.log());
    assert!(net.server.pings("10.1.0.3"), "{}\n{}", log(), daemon.log());
    let forwarded = |daemon: &Daemon| {
        let routers: Vec<RouterInfo> = daemon.get(path::ROUTERS);
        routers.iter().map(|router| router.forwarded).min().unwrap()
    };
    let before = forwarded(&daemon);
    serve(&net.server, DOWNLOAD / 5);
    download(a, net.server.address(), DOWNLOAD / 5);
    assert!(forwarded(&daemon) - before > DOWNLOAD / 5 / 1500, "by the engines of both routers");
    drop(daemons);
    daemon.purge();
}
