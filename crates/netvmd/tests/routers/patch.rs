//! Patch ports: a router's interface in a VLAN of L2 switching, and a link from one router to another.

use std::fmt::Write as _;
use std::path::Path;

use netvm_api::{ApplyReply, Done, PortInfo, RouterInfo, path};

use super::DOWNLOAD;
use super::common::Daemon;
use super::common::download::{download, serve};
use super::common::hosts::{Host, are_possible, succeeds};
use super::site::ENGINE;

/// Two hosts in a VLAN with a router's interface, and one behind another router.
struct Net {
    hosts: [Host; 2],
    server: Host,
    blue: String,
    red: String,
}

impl Net {
    fn new() -> Self {
        let host = |name: &str, address: &str| {
            Host::new(
                name,
                &[address, &address.replace("10.1.0.", "2001:db8:1::").replace("/24", "/64")],
                &["10.1.0.1", "2001:db8:1::1"],
            )
        };
        Self {
            hosts: [host("va", "10.1.0.2/24"), host("vb", "10.1.0.3/24")],
            server: Host::new("vs", &["10.2.0.2/16", "2001:db8:2::2/64"], &["10.2.0.1", "2001:db8:2::1"]),
            blue: format!("vb{}", std::process::id()),
            red: format!("vr{}", std::process::id()),
        }
    }

    fn config(&self) -> String {
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
        for (name, peer, does) in [
            ("vlans", "svi", format!("{switched} = {{ trunk = [10, 20] }}")),
            ("svi", "vlans", format!("forward = {{ router = \"{blue}\" }}")),
            ("to-red", "to-blue", format!("forward = {{ router = \"{blue}\" }}")),
            ("to-blue", "to-red", format!("forward = {{ router = \"{red}\" }}")),
        ] {
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
            writeln!(text, "[[router]]\nname = \"{name}\"\nroutes = [{routes}]").unwrap();
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
    let net = Net::new();
    let mut daemon = Daemon::start(&net.config());
    let [a, b] = &net.hosts;
    assert!(a.pings("10.1.0.3") && b.pings("2001:db8:1::2"), "within the VLAN\n{}", daemon.log());
    assert!(a.pings("10.1.0.1") && b.pings("2001:db8:1::1"), "its router\n{}", daemon.log());
    assert!(a.pings("10.2.0.2") && net.server.pings("10.1.0.3"), "over both\n{}", daemon.log());
    assert!(a.pings("2001:db8:2::2") && net.server.pings("2001:db8:1::3"), "{}", daemon.log());
    let punted = |daemon: &Daemon| {
        let routers: Vec<RouterInfo> = daemon.get(path::ROUTERS);
        assert!(routers.iter().all(|router| router.forwarded > 0), "{routers:?}");
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
    let shorter = net.config().replace("name = \"to-red\"\n", "name = \"to-red\"\nmtu = 1400\n");
    let _: ApplyReply = daemon.post(path::APPLY, &shorter);
    assert!(a.pings("10.2.0.2") && net.server.pings("2001:db8:1::3"), "{}", daemon.log());
    // Without the link nothing gets through, and it comes back.
    let _: ApplyReply = daemon.post(path::APPLY, ENGINE);
    let _: ApplyReply = daemon.post(path::APPLY, &net.config());
    assert!(b.pings("10.2.0.2"), "{}", daemon.log());
    let _: Done = daemon.post(path::STOP, "{\"purge\": true}");
    assert!(daemon.wait().success(), "{}", daemon.log());
}
