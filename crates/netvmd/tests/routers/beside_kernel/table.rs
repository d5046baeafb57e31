// SPDX-License-Identifier: Apache-2.0
//! The attributes of `ip link`, `ip address`, `ip route`, `ip neighbour`, `ip rule` and `sysctl` that change what
//! becomes of packets. The table in `docs/how-to/virtual-routers.md` has all others, too.

use std::path::Path;

use super::{Probe, Side};

/// An attribute. Commands are for the router's namespace, or, after a number, for that host.
pub struct Attribute {
    pub name: &'static str,
    /// What has to be so before.
    pub before: &'static [&'static str],
    pub set: &'static [&'static str],
    /// Back to how it was, `before` too.
    pub undo: &'static [&'static str],
    /// On which it has an effect.
    pub probe: fn() -> Probe,
}

impl Attribute {
    /// Whether this kernel has it.
    pub fn is_possible(&self, kernel: &Side) -> bool {
        let name = "net.ipv6.conf.lan.force_forwarding";
        let file = format!("/proc/sys/{}", name.replace('.', "/"));
        let has = || super::probe::inside(&kernel.router, || Path::new(&file).exists());
        !self.set.iter().any(|command| command.contains(name)) || has()
    }
}

const fn with(
    name: &'static str,
    set: &'static [&'static str],
    undo: &'static [&'static str],
    probe: fn() -> Probe,
) -> Attribute {
    Attribute { name, before: &[], set, undo, probe }
}

fn v4() -> Probe {
    Probe::to("10.50.2.2")
}

fn v6() -> Probe {
    Probe::to("fd50:2::2")
}

/// By a static route.
fn routed_v4() -> Probe {
    Probe::to("192.0.2.1")
}

fn routed_v6() -> Probe {
    Probe::to("2001:db8:7::1")
}

/// From an address without a route back.
fn without_route() -> Probe {
    v4().from("172.30.0.1")
}

/// From an address of a network behind another interface.
fn from_elsewhere() -> Probe {
    v4().from("10.50.2.77")
}

/// From an address of the router itself.
fn from_own() -> Probe {
    v4().from("10.50.2.1")
}

pub const ATTRIBUTES: &[Attribute] = &[
    // Settings.
    with("ip_forward", &["sysctl -w net.ipv4.ip_forward=0"], &["sysctl -w net.ipv4.ip_forward=1"], v4),
    with(
        "conf.lan.forwarding",
        &["sysctl -w net.ipv4.conf.lan.forwarding=0"],
        &["sysctl -w net.ipv4.conf.lan.forwarding=1"],
        v4,
    ),
    with(
        "ipv6 conf.all.forwarding",
        &["sysctl -w net.ipv6.conf.all.forwarding=0"],
        &["sysctl -w net.ipv6.conf.all.forwarding=1"],
        v6,
    ),
    Attribute {
        name: "ipv6 force_forwarding",
        before: &["sysctl -w net.ipv6.conf.all.forwarding=0"],
        set: &["sysctl -w net.ipv6.conf.lan.force_forwarding=1"],
        undo: &["sysctl -w net.ipv6.conf.lan.force_forwarding=0", "sysctl -w net.ipv6.conf.all.forwarding=1"],
        probe: v6,
    },
    with(
        "disable_ipv6",
        &["sysctl -w net.ipv6.conf.lan.disable_ipv6=1"],
        &["sysctl -w net.ipv6.conf.lan.disable_ipv6=0", "ip address replace fd50:1::1/64 dev lan nodad"],
        v6,
    ),
    with(
        "rp_filter=1",
        &["sysctl -w net.ipv4.conf.lan.rp_filter=1"],
        &["sysctl -w net.ipv4.conf.lan.rp_filter=0"],
        from_elsewhere,
    ),
    with(
        "rp_filter=2",
        &["sysctl -w net.ipv4.conf.lan.rp_filter=2"],
        &["sysctl -w net.ipv4.conf.lan.rp_filter=0"],
        without_route,
    ),
    with(
        "conf.all.rp_filter=1",
        &["sysctl -w net.ipv4.conf.all.rp_filter=1"],
        &["sysctl -w net.ipv4.conf.all.rp_filter=0"],
        from_elsewhere,
    ),
    // The larger of the two counts.
    Attribute {
        name: "rp_filter of all and one",
        before: &["sysctl -w net.ipv4.conf.all.rp_filter=1"],
        set: &["sysctl -w net.ipv4.conf.lan.rp_filter=2"],
        undo: &["sysctl -w net.ipv4.conf.all.rp_filter=0", "sysctl -w net.ipv4.conf.lan.rp_filter=0"],
        probe: from_elsewhere,
    },
    with(
        "accept_local",
        &["sysctl -w net.ipv4.conf.lan.accept_local=1"],
        &["sysctl -w net.ipv4.conf.lan.accept_local=0"],
        from_own,
    ),
    with(
        "conf.all.accept_local",
        &["sysctl -w net.ipv4.conf.all.accept_local=1"],
        &["sysctl -w net.ipv4.conf.all.accept_local=0"],
        from_own,
    ),
    Attribute {
        name: "ignore_routes_with_linkdown",
        before: &["ip route add 192.0.2.0/24 via 10.50.3.2 metric 20", "1: ip link set eth0 down"],
        set: &["sysctl -w net.ipv4.conf.all.ignore_routes_with_linkdown=1"],
        undo: &[
            "sysctl -w net.ipv4.conf.all.ignore_routes_with_linkdown=0",
            "ip route del 192.0.2.0/24 via 10.50.3.2 metric 20",
            "1: ip link set eth0 up",
            "1: ip route replace default via 10.50.2.1",
            "1: ip address replace fd50:2::2/64 dev eth0 nodad",
            "1: ip -6 route replace default via fd50:2::1",
        ],
        probe: routed_v4,
    },
    with(
        "bc_forwarding",
        &["sysctl -w net.ipv4.conf.all.bc_forwarding=1", "sysctl -w net.ipv4.conf.lan.bc_forwarding=1"],
        &["sysctl -w net.ipv4.conf.all.bc_forwarding=0", "sysctl -w net.ipv4.conf.lan.bc_forwarding=0"],
        || Probe::to("10.50.2.255"),
    ),
    Attribute {
        name: "proxy_arp",
        before: &["0: ip route replace 10.50.2.0/24 dev eth0", "0: ip neighbour flush dev eth0"],
        set: &["sysctl -w net.ipv4.conf.lan.proxy_arp=1"],
        undo: &["sysctl -w net.ipv4.conf.lan.proxy_arp=0", "0: ip route del 10.50.2.0/24 dev eth0"],
        probe: v4,
    },
    // Interfaces.
    with("link mtu", &["ip link set wan mtu 1280"], &["ip link set wan mtu 1500"], || v4().size(1400)),
    with("link mtu, IPv6", &["ip link set wan mtu 1300"], &["ip link set wan mtu 1500"], || v6().size(1400)),
    Attribute {
        name: "link down, where packets come in",
        before: &[],
        set: &["ip link set lan down"],
        undo: &["ip link set lan up", "ip address replace fd50:1::1/64 dev lan nodad"],
        probe: v4,
    },
    Attribute {
        name: "link down, where packets leave",
        before: &[],
        set: &["ip link set wan down"],
        undo: &[
            "ip link set wan up",
            "ip address replace fd50:2::1/64 dev wan nodad",
            "ip route replace 192.0.2.0/24 via 10.50.2.2 metric 10",
            "ip -6 route replace 2001:db8:7::/64 via fd50:2::2 metric 10",
        ],
        probe: v4,
    },
    // A host that knows only the new address sends to it.
    Attribute {
        name: "link address, where packets come in",
        before: &["0: ip neighbour replace 10.50.1.1 lladdr 02:00:00:00:50:03 dev eth0 nud permanent"],
        set: &["ip link set lan address 02:00:00:00:50:03"],
        undo: &["0: ip neighbour del 10.50.1.1 dev eth0", "0: ip neighbour flush dev eth0"],
        probe: v4,
    },
    with(
        "link name",
        &["ip link set wan name other", "ip link set other down"],
        &[
            "ip link set other name wan",
            "ip link set wan up",
            "ip address replace fd50:2::1/64 dev wan nodad",
            "ip route replace 192.0.2.0/24 via 10.50.2.2 metric 10",
            "ip -6 route replace 2001:db8:7::/64 via fd50:2::2 metric 10",
        ],
        v4,
    ),
    with(
        "link arp off",
        &["ip link set wan arp off"],
        &["ip link set wan arp on", "ip neighbour flush dev wan nud all"],
        v4,
    ),
    // Addresses.
    with(
        "address",
        &["ip address del 10.50.2.1/24 dev wan"],
        &[
            "ip address add 10.50.2.1/24 broadcast + dev wan",
            "ip route replace 192.0.2.0/24 via 10.50.2.2 metric 10",
        ],
        v4,
    ),
    // Routes.
    with(
        "route metric",
        &["ip route add 192.0.2.0/24 via 10.50.3.2 metric 5"],
        &["ip route del 192.0.2.0/24 via 10.50.3.2 metric 5"],
        routed_v4,
    ),
    with(
        "route metric, IPv6",
        &["ip -6 route add 2001:db8:7::/64 via fd50:3::2 metric 5"],
        &["ip -6 route del 2001:db8:7::/64 via fd50:3::2 metric 5"],
        routed_v6,
    ),
    with(
        "route mtu",
        &["ip route add 192.0.2.0/24 via 10.50.2.2 metric 5 mtu 1200"],
        &["ip route del 192.0.2.0/24 metric 5"],
        || routed_v4().size(1300),
    ),
    with(
        "route blackhole",
        &["ip route add blackhole 192.0.2.1/32"],
        &["ip route del blackhole 192.0.2.1/32"],
        routed_v4,
    ),
    with(
        "route unreachable",
        &["ip route add unreachable 192.0.2.1/32"],
        &["ip route del unreachable 192.0.2.1/32"],
        routed_v4,
    ),
    with(
        "route prohibit",
        &["ip route add prohibit 192.0.2.1/32"],
        &["ip route del prohibit 192.0.2.1/32"],
        routed_v4,
    ),
    with(
        "route prohibit, IPv6",
        &["ip -6 route add prohibit 2001:db8:7::1/128"],
        &["ip -6 route del prohibit 2001:db8:7::1/128"],
        routed_v6,
    ),
    with(
        "route throw",
        &["ip route add throw 192.0.2.1/32"],
        &["ip route del throw 192.0.2.1/32"],
        routed_v4,
    ),
    with(
        "route local",
        &["ip route add local 192.0.2.1/32 dev lo"],
        &["ip route del local 192.0.2.1/32 dev lo"],
        routed_v4,
    ),
    // The kernel removes it some 30 s after it has expired.
    Attribute {
        name: "route expired",
        before: &["ip -6 route add 2001:db8:7::/96 via fd50:3::2 expires 3"],
        set: &[],
        undo: &["ip -6 route flush 2001:db8:7::/96"],
        probe: routed_v6,
    },
    with(
        "route nhid",
        &["ip nexthop add id 5 via 10.50.3.2 dev dmz", "ip route add 192.0.2.1/32 nhid 5"],
        &["ip nexthop del id 5"],
        routed_v4,
    ),
    with(
        "rule",
        &["ip route add 192.0.2.0/24 via 10.50.3.2 table 100", "ip rule add from 10.50.1.2 table 100"],
        &["ip rule del from 10.50.1.2 table 100", "ip route flush table 100"],
        routed_v4,
    ),
    // Neighbours.
    with(
        "neighbour lladdr",
        &["ip neighbour replace 10.50.2.2 lladdr 02:00:00:00:66:66 dev wan nud permanent"],
        &["ip neighbour del 10.50.2.2 dev wan"],
        v4,
    ),
    with(
        "neighbour noarp",
        &["ip neighbour replace 10.50.2.2 lladdr 02:00:00:00:66:66 dev wan nud noarp"],
        &["ip neighbour del 10.50.2.2 dev wan"],
        v4,
    ),
];
