// SPDX-License-Identifier: Apache-2.0
//! Three servers in one network: netvm, and two with the kernel's VXLAN, behind different interfaces of the router.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use netvm_api::{MulticastInfo, PortInfo, path};

use super::super::common::Daemon;
use super::super::common::hosts::{Host, are_possible, run, succeeds};
use super::super::site::ENGINE;

/// The networks of the two servers with the router, whose address there ends with 1, and theirs with 2.
const NETWORKS: [&str; 2] = ["192.0.2", "198.51.100"];

struct Net {
    container: Host,
    peers: [Host; 2],
    router: String,
}

impl Net {
    /// `mark` is in the names of its hosts.
    fn new(mark: &str) -> Self {
        let peer = |n: usize| {
            let (own, other) = (NETWORKS[n], NETWORKS[1 - n]);
            let host = Host::new(&format!("{mark}k{n}"), &[&format!("{own}.2/24")], &[&format!("{own}.1")]);
            host.ip(&format!("link add vx type vxlan id 100 local {own}.2 dstport 4789 dev eth0"));
            for remote in [format!("{}.1", NETWORKS[0]), format!("{other}.2")] {
                let flood = format!("fdb append 00:00:00:00:00:00 dev vx dst {remote}");
                run(&format!("bridge -n {} {flood}", host.namespace()));
            }
            host.ip("link set vx up");
            host.ip(&format!("address add 10.6.0.{}/24 dev vx", n + 2));
            host
        };
        let router = format!("{mark}m{}", std::process::id());
        Self { container: Host::bare(&format!("{mark}c")), peers: [peer(0), peer(1)], router }
    }

    fn config(&self) -> String {
        let Self { container, peers, router } = self;
        let [first, second] = NETWORKS;
        let mut text = format!(
            "{}\n[[port]]\nname = \"overlay\"\nkind = \"vxlan\"\nvni = 100\nrouter = \"{router}\"\n\
             local = \"{first}.1\"\nremote = [\"{first}.2\", \"{second}.2\"]\nforward = {{ normal = true }}\n\
             [[port]]\nname = \"web\"\nkind = \"container\"\nnamespace = \"{}\"\nmtu = 1450\n\
             addresses = [\"10.6.0.1/24\"]\nforward = {{ normal = true }}\n",
            &*ENGINE,
            container.namespace(),
        );
        for (n, peer) in peers.iter().enumerate() {
            let interface = peer.port();
            writeln!(
                text,
                "[[port]]\nname = \"wan{n}\"\nkind = \"af_packet\"\ninterface = \"{interface}\"\n\
                 forward = {{ router = \"{router}\" }}"
            )
            .unwrap();
        }
        writeln!(text, "[[router]]\nname = \"{router}\"").unwrap();
        for (n, network) in NETWORKS.iter().enumerate() {
            writeln!(
                text,
                "[[router.interface]]\nname = \"wan{n}\"\nport = \"wan{n}\"\naddresses = [\"{network}.1/24\"]"
            )
            .unwrap();
        }
        text
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

#[test]
fn an_address_is_learned_behind_its_server_and_moves() {
    if !are_possible() {
        return;
    }
    let net = Net::new("x");
    let mut daemon = Daemon::start(&net.config());
    let Net { container, peers: [first, second], .. } = &net;
    let log = |daemon: &Daemon| format!("{:?}\n{}", daemon.stats().drops, daemon.log());
    assert!(container.pings("10.6.0.2") && container.pings("10.6.0.3"), "{}", log(&daemon));
    assert!(first.pings("10.6.0.1") && second.pings("10.6.0.1"), "{}", log(&daemon));
    // Between the two others, by netvm's router: datagrams that are not for its VTEP.
    assert!(first.pings("10.6.0.3") && second.pings("10.6.0.2"), "{}", log(&daemon));
    let sent = |daemon: &Daemon| {
        let ports: Vec<PortInfo> = daemon.get(path::PORTS);
        let of = |name: &str| ports.iter().find(|port| port.name == name).unwrap().tx_packets;
        [of("wan0"), of("wan1")]
    };
    // What has been learned is not flooded.
    let before = sent(&daemon);
    assert!(container.output("busybox ping -A -c 20 10.6.0.3").status.success(), "{}", log(&daemon));
    let [to_first, to_second] = sent(&daemon);
    assert!(to_second - before[1] >= 20, "{before:?} {to_second}");
    assert!(to_first - before[0] < 10, "{before:?} {to_first}");
    // A host moves from one server to the other, with its MAC address.
    let mac = first.ip_output("-o link show dev vx").split("link/ether ").nth(1).unwrap()[..17].to_owned();
    first.ip("link set vx down");
    second.ip("address add 10.6.0.2/24 dev vx");
    second.ip(&format!("link set vx address {mac}"));
    assert!(container.pings("10.6.0.2"), "{}", log(&daemon));
    daemon.purge();
}

#[test]
fn a_group_is_joined_through_a_tunnel() {
    const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 1, 1);
    if !are_possible() {
        return;
    }
    let net = Net::new("xg");
    let switch = "[switch]\nmcast_snooping = true\nmcast_querier = true\nmcast_query_interval = 4\n\
                  mcast_query_response_interval = 1\nmcast_flood_unregistered = false\n";
    let mut daemon = Daemon::start(&(net.config() + switch));
    let Net { container, peers: [first, _], .. } = &net;
    assert!(container.pings("10.6.0.2"), "{}", daemon.log());
    let (joined, has_joined) = mpsc::channel();
    let member = first.inside(move || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 5004)).unwrap();
        socket.join_multicast_v4(&GROUP, &[10, 6, 0, 2].into()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        joined.send(()).unwrap();
        let mut datagram = [0; 16];
        socket.recv(&mut datagram).map(|length| datagram[..length].to_vec())
    });
    has_joined.recv().unwrap();
    daemon.until("a host behind the tunnel has joined", |daemon| {
        let info: MulticastInfo = daemon.get(path::MULTICAST);
        let mut igmp = info.domains.iter().filter(|domain| domain.protocol == "igmp" && domain.pruned);
        igmp.any(|domain| {
            domain.groups.iter().any(|group| {
                group.group == GROUP.to_string() && group.ports.iter().any(|member| member.port == "overlay")
            })
        })
    });
    let sender = container.inside(|| {
        let socket = UdpSocket::bind((Ipv4Addr::new(10, 6, 0, 1), 0)).unwrap();
        socket.send_to(b"hello", (GROUP, 5004)).unwrap();
    });
    sender.join().unwrap();
    assert_eq!(member.join().unwrap().unwrap(), b"hello", "{}", daemon.log());
    daemon.purge();
}
