// SPDX-License-Identifier: Apache-2.0
//! EVPN between VTEPs with IPv6 addresses. FRR has them from 10.6 on; what it writes into the kernel is written by hand
//! here, on both sides.

use super::super::common::Daemon;
use super::super::common::hosts::{Host, are_possible, run, succeeds, within};
use super::peer::Peer;
use super::{Server, TIMEOUT, port};

const VTEPS: [&str; 2] = ["2001:db8::1", "2001:db8::2"];
/// The MAC addresses of the routers in the L3VNI.
const ROUTERS: [&str; 2] = ["02:00:00:00:53:01", "02:00:00:00:53:02"];

/// What a daemon in a namespace knows of another server.
struct Behind<'a> {
    namespace: &'a str,
    vtep: &'a str,
}

impl Behind<'_> {
    /// The devices may just be made.
    fn must(&self, tool: &str, words: &str) {
        let command = format!("{tool} -n {} {words}", self.namespace);
        assert!(within(TIMEOUT, || succeeds(&command)), "{command}");
    }

    /// Floods of a network go there (type 3).
    fn floods(&self, vni: u32) {
        let vtep = self.vtep;
        self.must("bridge", &format!("fdb append 00:00:00:00:00:00 dev vxlan{vni} dst {vtep}"));
    }

    /// A MAC address is there (type 2).
    fn mac(&self, vni: u32, mac: &str) {
        let vtep = self.vtep;
        self.must("bridge", &format!("fdb replace {mac} dev vxlan{vni} dst {vtep} self extern_learn"));
        self.must("bridge", &format!("fdb replace {mac} dev vxlan{vni} master extern_learn"));
    }

    /// A host, or a router, has this address.
    fn address(&self, vni: u32, address: &str, mac: &str) {
        let words = format!("neighbour replace {address} lladdr {mac} dev br{vni} extern_learn nud noarp");
        self.must("ip", &words);
    }

    /// A prefix is behind the router there (type 5).
    fn prefix(&self, prefix: &str) {
        let family = if prefix.contains(':') { "" } else { "inet6 " };
        self.must("ip", &format!("route add {prefix} via {family}{} dev br5000 onlink", self.vtep));
    }
}

#[test]
fn vteps_may_have_ipv6_addresses() {
    if !are_possible() {
        return;
    }
    let [web, db, office, far, gate] = ["6w", "6d", "6o", "6f", "6g"].map(Host::bare);
    let peer = Peer::new("6k", VTEPS[1]);
    peer.plug(&db, "10.7.0.2/24");
    db.ip("address add fd00:7::2/64 dev eth0 nodad");
    let kernel = peer.host.namespace();
    // The other server's VRF has a network, and sends by the server.
    let far_vrf = gate.namespace();
    gate.ip(&format!("link add br5000 address {} type bridge", ROUTERS[1]));
    peer.host.ip(&format!(
        "link add vxlan5000 netns {far_vrf} type vxlan id 5000 local {} dstport 4789 nolearning",
        VTEPS[1]
    ));
    gate.ip("link set vxlan5000 master br5000 up");
    gate.ip("link set br5000 addrgenmode none up");
    for setting in ["ipv4.ip_forward", "ipv6.conf.all.forwarding"] {
        run(&format!("ip netns exec {far_vrf} busybox sysctl -w net.{setting}=1"));
    }
    run(&format!("ip link add far netns {far_vrf} type veth peer name eth0 netns {}", far.namespace()));
    for (host, device, last) in [(&gate, "far", "1"), (&far, "eth0", "9")] {
        host.ip(&format!("address add 10.12.0.{last}/24 dev {device}"));
        host.ip(&format!("address add fd00:12::{last}/64 dev {device} nodad"));
        host.ip(&format!("link set {device} up"));
    }
    ["10.12.0.1", "fd00:12::1"].iter().for_each(|own| far.ip(&format!("route add default via {own}")));

    let mut server = Server::new("6v", VTEPS[0], peer.host.port());
    server.container(&web, "10.7.0.1/24\", \"fd00:7::1/64", "mac = \"02:00:00:00:07:01\"\n");
    let red = Server::new("6r", "", String::new());
    server.more = format!(
        "[[port]]\nname = \"red-l3\"\nkind = \"vxlan\"\nvni = 5000\ncontrol = \"evpn\"\nrouter = \"{edge}\"\n\
         local = \"{local}\"\nforward = {{ router = \"{red}\" }}\n\
         [[port]]\nname = \"office\"\nkind = \"container\"\nnamespace = \"{office}\"\nmtu = 1430\n\
         addresses = [\"10.11.0.9/24\", \"fd00:11::9/64\"]\ngateways = [\"10.11.0.1\", \"fd00:11::1\"]\n\
         forward = {{ router = \"{red}\" }}\n\
         [[router]]\nname = \"{red}\"\n\
         [[router.interface]]\nname = \"l3\"\nport = \"red-l3\"\nmac = \"{mac}\"\n\
         [[router.interface]]\nname = \"office\"\nport = \"office\"\naddresses = [\"10.11.0.1/24\", \"fd00:11::1/64\"]\n",
        edge = server.router,
        local = VTEPS[0],
        red = red.router,
        office = office.namespace(),
        mac = ROUTERS[0],
    );
    let mut daemon = Daemon::start(&server.config());
    let log = || format!("{:?}\n{}", daemon.stats().drops, daemon.log());
    let (edge, vrf) = (server.namespace(), red.namespace());

    // One network.
    let theirs = Behind { namespace: kernel, vtep: VTEPS[0] };
    let ours = Behind { namespace: &edge, vtep: VTEPS[1] };
    [&theirs, &ours].iter().for_each(|one| one.floods(100));
    assert!(within(TIMEOUT, || port(&daemon, "overlay").tunnel.unwrap().remote == [VTEPS[1]]), "{}", log());
    for address in ["10.7.0.2", "fd00:7::2"] {
        assert!(web.pings(address), "{address}\n{}", log());
    }
    let shown = db.ip_output("-o link show dev eth0");
    let mac = &shown.split("link/ether ").nth(1).unwrap()[..17];
    theirs.mac(100, "02:00:00:00:07:01");
    ours.mac(100, mac);
    ["10.7.0.2", "fd00:7::2"].iter().for_each(|address| ours.address(100, address, mac));
    let answered = || port(&daemon, "overlay").neigh_answered.unwrap();
    for (number, address) in (1..).zip(["10.7.0.2", "fd00:7::2"]) {
        let is_answered = || {
            web.ip("neighbour flush dev eth0");
            web.pings(address) && answered() >= number
        };
        assert!(within(TIMEOUT, is_answered), "{address}: {} answered, {}", answered(), log());
    }

    // Routed networks, whose IPv4 prefixes have IPv6 next hops, too.
    let theirs = Behind { namespace: far_vrf, vtep: VTEPS[0] };
    let ours = Behind { namespace: &vrf, vtep: VTEPS[1] };
    for (side, router, networks) in [
        (&theirs, ROUTERS[0], ["10.11.0.0/24", "fd00:11::/64"]),
        (&ours, ROUTERS[1], ["10.12.0.0/24", "fd00:12::/64"]),
    ] {
        side.mac(5000, router);
        side.address(5000, side.vtep, router);
        networks.iter().for_each(|network| side.prefix(network));
    }
    for (host, addresses) in [(&office, ["10.12.0.9", "fd00:12::9"]), (&far, ["10.11.0.9", "fd00:11::9"])] {
        for address in addresses {
            assert!(host.pings(address), "{address}\n{}", log());
        }
    }
    daemon.purge();
}
