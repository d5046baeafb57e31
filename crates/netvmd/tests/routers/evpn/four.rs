//! Four servers between two spines, with a route reflector: three with netvmd, one with the kernel's own bridges and
//! `vxlan` devices. One network is stretched over all (VNI 100, with the same gateway on each server), and two VRFs are
//! routed between them by symmetric IRB (L3VNI 5000 and 6000).
//!
//! The cases that grout's EVPN smoke tests and VPP's VXLAN tests have, and where they are here:
//!
//! | case | where |
//! |---|---|
//! | L2VNI with the kernel and FRR on the other side: types 2 and 3, both directions | `l2.rs`, and here |
//! | hosts that move | `l2.rs`, and here between two servers with netvmd |
//! | ARP and neighbour solicitations answered from type 2 | `l2.rs`, `engine`: `stages/evpn.rs`, and here in the underlay |
//! | L3VNI with symmetric IRB, type 5 prefixes and hosts' routes, both directions; VRFs that do not mix | here |
//! | several VTEPs, floods to each, none back (split horizon) | here; `engine`: `stages/evpn.rs` |
//! | a peer goes: its routes and VTEP are withdrawn | here |
//! | encapsulation and decapsulation, unicast and floods, of one and many VTEPs | `engine`: `stages/tunnels.rs` |
//! | a datagram of an unknown VNI or VTEP, with another flag or a fragment; VTEP by another address | the same |
//! | over IPv6; another UDP port; MTU and ICMP; segments | the same, and `tunnels/` |
//! | VTEPs and VNIs that come, go and change | `engine`: `router/tunnels/tests.rs` |

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::super::common::download::PORT;
use super::super::common::hosts::{Host, are_possible, run, within};
use super::super::frr::are_installed;
use super::super::site::ENGINE;
use super::fabric::{Reflector, Server, Spine};
use super::l2::outage;
use super::{TIMEOUT, port};

/// The gateway of the stretched network, the same on each server (an address of VRRP's range).
const GATEWAY_MAC: &str = "00:00:5e:00:01:01";
/// The MAC address of the host that moves.
const MOVER: &str = "02:00:00:00:50:50";
const VRFS: [(&str, u32); 2] = [("netvm-red", 5000), ("netvm-blue", 6000)];

/// The hosts of a server: in the stretched network, in the other VRF, and one that moves.
struct Hosts {
    red: Host,
    blue: Host,
    mover: Host,
}

impl Hosts {
    fn new(mark: &str, number: u8) -> Self {
        let host = |kind: char| Host::bare(&format!("{mark}{kind}{number}"));
        Self { red: host('r'), blue: host('b'), mover: host('m') }
    }
}

fn config(number: u8, hosts: &Hosts) -> String {
    let [red, blue, mover] = [&hosts.red, &hosts.blue, &hosts.mover].map(Server::outer);
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
addresses = ["10.1.0.{number}/24"]
gateways = ["10.1.0.254"]
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
addresses = ["10.2{number}.0.9/24"]
gateways = ["10.2{number}.0.1"]
mtu = 1450
forward = {{ router = "blue" }}
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
addresses = ["10.1.0.254/24"]
[[router.interface]]
name = "l3"
port = "red-l3"
mac = "02:00:00:00:53:0{number}"
[[router]]
name = "blue"
[[router.interface]]
name = "lan"
port = "blue"
addresses = ["10.2{number}.0.1/24"]
[[router.interface]]
name = "l3"
port = "blue-l3"
mac = "02:00:00:00:63:0{number}"
"#,
        engine = &*ENGINE
    )
}

/// The commands that make the fourth server: the same with the kernel, and a network of its own in `red`.
fn kernel(number: u8, hosts: &Hosts) -> Vec<String> {
    let [red, blue] = [&hosts.red, &hosts.blue].map(Server::outer);
    let mut all = vec![
        format!("ip address add 10.0.1.{number}/24 dev eth1"),
        format!("ip address add 10.0.2.{number}/24 dev eth2"),
        format!("ip address add 192.0.2.{number}/32 dev lo"),
        "sysctl -qw net.ipv4.fib_multipath_hash_policy=1".to_owned(),
    ];
    let add = |text: &str| text.to_owned();
    for (vrf, l3) in VRFS {
        all.push(format!("ip netns add {vrf}"));
        all.push(format!("ip -n {vrf} link set lo up"));
        all.push(format!("ip netns exec {vrf} sysctl -qw net.ipv4.ip_forward=1"));
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
    all.extend([
        add("ip -n netvm-red address add 10.1.0.254/24 dev br100"),
        format!("ip -n netvm-red link add red type veth peer name eth0 netns {red}"),
        add("ip -n netvm-red link set red master br100 addrgenmode none up"),
        format!("ip -n netvm-blue link add blue type veth peer name eth0 netns {blue}"),
        format!("ip -n netvm-blue address add 10.2{number}.0.1/24 dev blue"),
        add("ip -n netvm-blue link set blue up"),
    ]);
    all
}

/// Gives a host of the fourth server its address.
fn address(host: &Host, address: &str, gateway: &str) {
    host.ip("link set lo up");
    host.ip(&format!("address add {address} dev eth0"));
    host.ip("link set eth0 mtu 1450 up");
    host.ip(&format!("route add default via {gateway}"));
}

/// A capture of the underlay at a spine.
struct Capture {
    child: Child,
    file: String,
}

impl Capture {
    fn start(spine: &Spine) -> Self {
        let file = format!("{}/{}.pcap", std::env::temp_dir().display(), spine.host.namespace());
        let mut command = Command::new("ip");
        command.args(["netns", "exec", spine.host.namespace(), "tcpdump", "-U"]);
        command
            .args(["--immediate-mode", "-i", "any", "-Q", "in", "-w", &file, "udp port 4789"])
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().unwrap();
        assert!(within(TIMEOUT, || std::fs::metadata(&file).is_ok_and(|file| file.len() > 0)));
        Self { child, file }
    }

    /// Ends it, unless it has ended.
    fn stop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
            self.child.wait().unwrap();
        }
    }

    /// Ends it, and returns what tshark says of the packets that a filter selects.
    fn end(&mut self, filter: &str, field: &str) -> Vec<String> {
        self.stop();
        let mut tshark = Command::new("tshark");
        let output =
            tshark.args(["-r", &self.file, "-Y", filter, "-T", "fields", "-e", field]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.stop();
        let _ = std::fs::remove_file(&self.file);
    }
}

struct Net {
    servers: Vec<Server>,
    spines: Vec<Spine>,
    _reflector: Reflector,
    hosts: Vec<Hosts>,
}

impl Net {
    fn new(mark: &str) -> Self {
        let numbers = [1, 2, 3, 4];
        let mut spines: Vec<Spine> = [1, 2].map(|n| Spine::new(&format!("{mark}s"), n)).into();
        let hosts: Vec<Hosts> = numbers.map(|n| Hosts::new(mark, n)).into();
        let mut servers: Vec<Server> = numbers.map(|n| Server::new(&format!("{mark}v"), n, &spines)).into();
        let reflector = Reflector::start(&format!("{mark}rr"), &spines, &numbers);
        std::thread::scope(|scope| {
            for spine in &mut spines {
                scope.spawn(move || spine.start_frr(&[1, 2, 3, 4, 9]));
            }
            for (server, hosts) in servers.iter_mut().zip(&hosts) {
                scope.spawn(move || {
                    match server.number {
                        4 => {
                            server.start_kernel(&kernel(4, hosts));
                            address(&hosts.red, "10.1.0.4/24", "10.1.0.254");
                            address(&hosts.blue, "10.24.0.9/24", "10.24.0.1");
                        }
                        number => server.start(&config(number, hosts)),
                    }
                    server.start_frr(&VRFS);
                });
            }
        });
        Self { servers, spines, _reflector: reflector, hosts }
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
    // One network, and routed ones; each VRF has its own addresses only.
    for (from, to) in [(0, 1), (1, 0), (0, 3), (3, 0), (1, 2), (3, 2)] {
        let [red, blue] = [format!("10.1.0.{}", to + 1), format!("10.2{}.0.9", to + 1)];
        let hosts = &net.hosts[from];
        assert!(hosts.red.pings(&red), "{red} from server {}\n{}", from + 1, net.log());
        assert!(hosts.blue.pings(&blue), "{blue} from server {}\n{}", from + 1, net.log());
    }
    assert!(!net.hosts[0].red.output("busybox ping -c 1 -W 1 10.22.0.9").status.success(), "VRFs do not mix");
    println!("all have reached all after {:?}", begin.elapsed());

    // Requests for addresses that EVPN knows stay at home.
    let table = |server: usize| net.servers[server].vtysh("show evpn arp-cache vni 100");
    let knows =
        |server: usize| ["10.1.0.1 ", "10.1.0.2 ", "10.1.0.3 "].iter().all(|one| table(server).contains(one));
    assert!(within(TIMEOUT, || (0..3).all(knows)), "{}", net.log());
    let mut captures: Vec<Capture> = net.spines.iter().map(Capture::start).collect();
    let answered = || port(net.servers[0].daemon(), "overlay").neigh_answered.unwrap();
    let before = answered();
    assert!(within(TIMEOUT, || {
        net.hosts[0].red.ip("neighbour flush dev eth0");
        net.hosts[0].red.pings("10.1.0.2") && answered() > before
    }));
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
