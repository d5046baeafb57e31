// SPDX-License-Identifier: Apache-2.0
//! Tunnels beside the kernel's own VXLAN, and between two netvmd.

mod many;
mod servers;

use std::net::Ipv4Addr;
use std::path::Path;

use netvm_api::{PortInfo, path};

use super::DOWNLOAD;
use super::common::Daemon;
use super::common::download::{download, serve};
use super::common::hosts::{Host, are_possible, succeeds};
use super::site::ENGINE;

/// A container at netvm, and a host with a VXLAN device of the kernel.
struct Net {
    container: Host,
    peer: Host,
    router: String,
}

/// The addresses of the servers.
struct Underlay {
    netvm: &'static str,
    kernel: &'static str,
    prefix: u8,
}

const V4: Underlay = Underlay { netvm: "192.0.2.1", kernel: "192.0.2.2", prefix: 24 };
const V6: Underlay = Underlay { netvm: "2001:db8::1", kernel: "2001:db8::2", prefix: 64 };
const CONTAINER: &str = "10.5.0.1";
const KERNEL: &str = "10.5.0.2";

impl Net {
    /// `mark` is a letter of its own in the names of each test.
    fn new(mark: char, underlay: &Underlay) -> Self {
        let Underlay { netvm, kernel, prefix } = underlay;
        let peer = Host::new(&format!("{mark}k"), &[&format!("{kernel}/{prefix}")], &[]);
        peer.ip(&format!(
            "link add vx type vxlan id 100 local {kernel} remote {netvm} dstport 4789 dev eth0"
        ));
        peer.ip("link set vx up");
        peer.ip(&format!("address add {KERNEL}/24 dev vx"));
        peer.ip("address add fd05::2/64 dev vx nodad");
        Self {
            container: Host::bare(&format!("{mark}c")),
            peer,
            router: format!("{mark}v{}", std::process::id()),
        }
    }

    /// `kind`: of the port to the peer.
    fn config(&self, kind: &str, underlay: &Underlay) -> String {
        let Self { container, peer, router } = self;
        let Underlay { netvm, kernel, prefix } = underlay;
        format!(
            "{}\n[[port]]\nname = \"wan\"\nkind = \"{kind}\"\ninterface = \"{}\"\n\
             forward = {{ router = \"{router}\" }}\n\
             [[port]]\nname = \"overlay\"\nkind = \"vxlan\"\nvni = 100\nrouter = \"{router}\"\n\
             local = \"{netvm}\"\nremote = \"{kernel}\"\nforward = {{ normal = true }}\n\
             [[port]]\nname = \"web\"\nkind = \"container\"\nnamespace = \"{}\"\nmtu = 1430\n\
             addresses = [\"{CONTAINER}/24\", \"fd05::1/64\"]\nforward = {{ normal = true }}\n\
             [[router]]\nname = \"{router}\"\n\
             [[router.interface]]\nname = \"wan\"\nport = \"wan\"\naddresses = [\"{netvm}/{prefix}\"]\n",
            &*ENGINE,
            peer.port(),
            container.namespace(),
        )
    }
}

impl Drop for Net {
    /// Cleans up after a failed test whose netvmd was killed.
    fn drop(&mut self) {
        let namespace = format!("netvm-{}", self.router);
        if Path::new("/run/netns").join(&namespace).exists() {
            let _ = succeeds(&format!("ip netns delete {namespace}"));
        }
    }
}

fn port(daemon: &Daemon, name: &str) -> PortInfo {
    let ports: Vec<PortInfo> = daemon.get(path::PORTS);
    ports.into_iter().find(|port| port.name == name).unwrap()
}

/// Pings and downloads in both directions.
fn exchanges(net: &Net, daemon: &Daemon) {
    let Net { container, peer, .. } = net;
    assert!(container.pings(KERNEL), "{:?}\n{}", daemon.stats().drops, daemon.log());
    assert!(peer.pings(CONTAINER), "{:?}\n{}", daemon.stats().drops, daemon.log());
    assert!(container.pings("fd05::2") && peer.pings("fd05::1"), "{}", daemon.log());
    let addresses = [CONTAINER, KERNEL].map(|address| address.parse::<Ipv4Addr>().unwrap());
    for (server, client, from) in [(container, peer, addresses[0]), (peer, container, addresses[1])] {
        serve(server, DOWNLOAD / 5);
        let took = download(client, from, DOWNLOAD / 5);
        println!("{} bytes from {from} in {took:?}", DOWNLOAD / 5);
    }
}

#[test]
fn containers_reach_hosts_behind_the_kernels_vxlan() {
    if !are_possible() {
        return;
    }
    for (mark, kind) in [('t', "af_packet"), ('u', "af_xdp")] {
        let net = Net::new(mark, &V4);
        let mut daemon = Daemon::start(&net.config(kind, &V4));
        exchanges(&net, &daemon);
        let overlay = port(&daemon, "overlay");
        assert!(
            overlay.link && overlay.rx_bytes > DOWNLOAD / 5 && overlay.tx_bytes > DOWNLOAD / 5,
            "{overlay:?}"
        );
        // Segments pass whole; those of the kernel come whole only by packet sockets.
        let cut = DOWNLOAD / 5 / 1430;
        assert!(overlay.tx_packets < cut && (kind == "af_xdp" || overlay.rx_packets < cut), "{overlay:?}");
        let tunnel = overlay.tunnel.unwrap();
        assert_eq!(
            (tunnel.vni, tunnel.local.as_str(), &tunnel.remote[..]),
            (100, V4.netvm, &[V4.kernel.to_owned()][..])
        );
        daemon.purge();
    }
}

/// The tunnel leads to another router, which has an address there, so ARP goes by it, too.
#[test]
fn a_router_has_an_address_in_a_tunnel_on_another_port() {
    if !are_possible() {
        return;
    }
    let net = Net::new('7', &V4);
    net.peer.ip("link delete vx");
    net.peer.ip(&format!(
        "link add vx type vxlan id 100 local {} remote {} dstport 4790 dev eth0",
        V4.kernel, V4.netvm
    ));
    net.peer.ip("link set vx up");
    net.peer.ip(&format!("address add {KERNEL}/24 dev vx"));
    net.peer.ip("route add 10.9.0.0/24 via 10.5.0.9");
    let inside = Net {
        container: Host::bare("7i"),
        peer: Host::bare("7j"),
        router: format!("7r{}", std::process::id()),
    };
    let text = net.config("af_packet", &V4);
    let text = text.replace(
        "forward = { normal = true }\n[[port]]\nname = \"web\"",
        &format!("udp_port = 4790\nforward = {{ router = \"{}\" }}\n[[port]]\nname = \"web\"", inside.router),
    );
    let text = format!(
        "{text}[[port]]\nname = \"db\"\nkind = \"container\"\nnamespace = \"{}\"\nmtu = 1430\n\
         addresses = [\"10.9.0.2/24\"]\ngateways = [\"10.9.0.1\"]\nforward = {{ router = \"{router}\" }}\n\
         [[router]]\nname = \"{router}\"\n\
         [[router.interface]]\nname = \"tunnel\"\nport = \"overlay\"\naddresses = [\"10.5.0.9/24\"]\n\
         [[router.interface]]\nname = \"lan\"\nport = \"db\"\naddresses = [\"10.9.0.1/24\"]\n",
        inside.container.namespace(),
        router = inside.router,
    );
    let mut daemon = Daemon::start(&text);
    assert!(inside.container.pings(KERNEL), "{:?}\n{}", daemon.stats().drops, daemon.log());
    assert!(net.peer.pings("10.9.0.2"), "{:?}\n{}", daemon.stats().drops, daemon.log());
    daemon.purge();
}

#[test]
fn the_same_over_ipv6() {
    if !are_possible() {
        return;
    }
    for (mark, kind) in [('v', "af_packet"), ('w', "af_xdp")] {
        let net = Net::new(mark, &V6);
        let mut daemon = Daemon::start(&net.config(kind, &V6));
        exchanges(&net, &daemon);
        daemon.purge();
    }
}
