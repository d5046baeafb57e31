// SPDX-License-Identifier: Apache-2.0
//! The servers' configurations, and the commands of the one with the kernel's devices.

use super::super::super::common::guest::Image;
use super::super::super::common::hosts::Host;
use super::super::super::site::ENGINE;
use super::super::fabric::Server;

/// The gateway of the stretched network, the same on each server (an address of VRRP's range).
const GATEWAY_MAC: &str = "00:00:5e:00:01:01";
/// The MAC address of the host that moves.
const MOVER: &str = "02:00:00:00:50:50";
pub const VRFS: [(&str, u32); 2] = [("netvm-red", 5000), ("netvm-blue", 6000)];

/// The hosts of a server: in the stretched network, in one of its VRF that only this server has, in the other VRF, and
/// one that moves.
pub struct Hosts {
    pub red: Host,
    pub office: Host,
    pub blue: Host,
    pub mover: Host,
}

impl Hosts {
    pub fn new(mark: &str, number: u8) -> Self {
        let host = |kind: char| Host::bare(&format!("{mark}{kind}{number}"));
        Self { red: host('r'), office: host('o'), blue: host('b'), mover: host('m') }
    }
}

/// A guest in the stretched network, as its server's configuration has it.
pub fn guest(image: &Image) -> String {
    image.guest("guest", "mtu = 1450\nvlan = { access = 100 }\nforward = { normal = true }", "")
}

pub fn config(number: u8, hosts: &Hosts) -> String {
    let [red, office, blue, mover] =
        [&hosts.red, &hosts.office, &hosts.blue, &hosts.mover].map(Server::outer);
    format!(
        r#"{engine}
[[port]]
name = "wan1"
kind = "af_packet"
interface = "eth1"
forward = {{ router = "edge" }}
[[port]]
name = "wan2"
kind = "af_packet"
interface = "eth2"
forward = {{ router = "edge" }}
[[port]]
name = "overlay"
kind = "vxlan"
vni = 100
control = "evpn"
router = "edge"
local = "192.0.2.{number}"
vlan = {{ access = 100 }}
forward = {{ normal = true }}
[[port]]
name = "gateway"
kind = "bridge"
vlan = {{ access = 100 }}
mtu = 1450
forward = {{ router = "red" }}
[[port]]
name = "red-l3"
kind = "vxlan"
vni = 5000
control = "evpn"
router = "edge"
local = "192.0.2.{number}"
forward = {{ router = "red" }}
[[port]]
name = "blue-l3"
kind = "vxlan"
vni = 6000
control = "evpn"
router = "edge"
local = "192.0.2.{number}"
forward = {{ router = "blue" }}
[[port]]
name = "red"
kind = "container"
namespace = "{red}"
addresses = ["10.1.0.{number}/24", "fd00:1::{number}/64"]
gateways = ["10.1.0.254", "fd00:1::fe"]
mtu = 1450
vlan = {{ access = 100 }}
forward = {{ normal = true }}
[[port]]
name = "mover"
kind = "container"
namespace = "{mover}"
addresses = ["10.1.0.50/24"]
gateways = ["10.1.0.254"]
mac = "{MOVER}"
mtu = 1450
vlan = {{ access = 100 }}
forward = {{ normal = true }}
[[port]]
name = "blue"
kind = "container"
namespace = "{blue}"
addresses = ["10.2{number}.0.9/24", "fd00:2{number}::9/64"]
gateways = ["10.2{number}.0.1", "fd00:2{number}::1"]
mtu = 1450
forward = {{ router = "blue" }}
[[port]]
name = "office"
kind = "container"
namespace = "{office}"
addresses = ["10.1{number}.0.9/24", "fd00:1{number}::9/64"]
gateways = ["10.1{number}.0.1", "fd00:1{number}::1"]
mtu = 1450
forward = {{ router = "red" }}
[[router]]
name = "edge"
[[router.interface]]
name = "wan1"
port = "wan1"
mac = "02:00:00:01:00:0{number}"
addresses = ["10.0.1.{number}/24", "192.0.2.{number}/32"]
[[router.interface]]
name = "wan2"
port = "wan2"
mac = "02:00:00:02:00:0{number}"
addresses = ["10.0.2.{number}/24"]
[[router]]
name = "red"
[[router.interface]]
name = "gateway"
port = "gateway"
mac = "{GATEWAY_MAC}"
addresses = ["10.1.0.254/24", "fd00:1::fe/64"]
[[router.interface]]
name = "office"
port = "office"
addresses = ["10.1{number}.0.1/24", "fd00:1{number}::1/64"]
[[router.interface]]
name = "l3"
port = "red-l3"
mac = "02:00:00:00:53:0{number}"
[[router]]
name = "blue"
[[router.interface]]
name = "lan"
port = "blue"
addresses = ["10.2{number}.0.1/24", "fd00:2{number}::1/64"]
[[router.interface]]
name = "l3"
port = "blue-l3"
mac = "02:00:00:00:63:0{number}"
"#,
        engine = &*ENGINE
    )
}

/// The commands that make the fourth server: the same with the kernel.
pub fn kernel(number: u8, hosts: &Hosts) -> Vec<String> {
    let mut all = vec![
        format!("ip address add 10.0.1.{number}/24 dev eth1"),
        format!("ip address add 10.0.2.{number}/24 dev eth2"),
        format!("ip address add 192.0.2.{number}/32 dev lo"),
        "sysctl -qw net.ipv4.fib_multipath_hash_policy=1".to_owned(),
    ];
    for (vrf, l3) in VRFS {
        all.push(format!("ip netns add {vrf}"));
        all.push(format!("ip -n {vrf} link set lo up"));
        all.push(format!(
            "ip netns exec {vrf} sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1"
        ));
        let networks: &[u32] = if l3 == 5000 { &[100, 5000] } else { &[6000] };
        for vni in networks {
            let mac = match vni {
                100 => GATEWAY_MAC.to_owned(),
                vni => format!("02:00:00:00:{}3:0{number}", vni / 1000),
            };
            all.push(format!("ip -n {vrf} link add br{vni} address {mac} type bridge"));
            all.push(format!(
                "ip link add vxlan{vni} netns {vrf} type vxlan id {vni} local 192.0.2.{number} dstport 4789 nolearning"
            ));
            all.push(format!("ip -n {vrf} link set vxlan{vni} master br{vni} addrgenmode none"));
            all.push(format!(
                "ip -n {vrf} link set vxlan{vni} type bridge_slave learning off neigh_suppress on"
            ));
            all.push(format!("ip -n {vrf} link set br{vni} addrgenmode none mtu 1450 up"));
            all.push(format!("ip -n {vrf} link set vxlan{vni} up"));
        }
    }
    let mut plug = |vrf: &str, name: &str, host: &Host| {
        let host = Server::outer(host);
        all.push(format!("ip -n {vrf} link add {name} type veth peer name eth0 netns {host}"));
        all.push(format!("ip -n {vrf} link set {name} addrgenmode none up"));
    };
    plug("netvm-red", "red", &hosts.red);
    plug("netvm-red", "office", &hosts.office);
    plug("netvm-blue", "blue", &hosts.blue);
    all.push("ip -n netvm-red link set red master br100".to_owned());
    for (vrf, device, own) in [
        ("netvm-red", "br100", ["10.1.0.254/24".to_owned(), "fd00:1::fe/64".to_owned()]),
        ("netvm-red", "office", [format!("10.1{number}.0.1/24"), format!("fd00:1{number}::1/64")]),
        ("netvm-blue", "blue", [format!("10.2{number}.0.1/24"), format!("fd00:2{number}::1/64")]),
    ] {
        let add = |address| format!("ip -n {vrf} address add {address} dev {device} nodad");
        all.extend(own.map(add));
        // Without a link-local address, a kernel that forwards cannot ask for neighbours.
        all.push(add(format!("fe80::{number}/64")));
    }
    all
}

/// Gives the hosts of the fourth server their addresses.
pub fn address(number: u8, hosts: &Hosts) {
    let all = [
        (&hosts.red, format!("10.1.0.{number}/24 fd00:1::{number}/64 10.1.0.254 fd00:1::fe")),
        (
            &hosts.office,
            format!("10.1{number}.0.9/24 fd00:1{number}::9/64 10.1{number}.0.1 fd00:1{number}::1"),
        ),
        (&hosts.blue, format!("10.2{number}.0.9/24 fd00:2{number}::9/64 10.2{number}.0.1 fd00:2{number}::1")),
    ];
    for (host, words) in all {
        let words: Vec<&str> = words.split(' ').collect();
        host.ip("link set lo up");
        words[..2].iter().for_each(|address| host.ip(&format!("address add {address} dev eth0 nodad")));
        host.ip("link set eth0 mtu 1450 up");
        words[2..].iter().for_each(|gateway| host.ip(&format!("route add default via {gateway}")));
    }
}
