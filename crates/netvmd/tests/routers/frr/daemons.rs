// SPDX-License-Identifier: Apache-2.0
//! Routing daemons steer the engine: FRR in a virtual router, with FRR and BIRD in plain namespaces as its peers.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netvm_api::{RouterRoutes, path};

use super::{Daemons, are_installed};
use crate::common::download::PORT;
use crate::common::hosts::{Host, are_possible, asking, within};
use crate::common::{Daemon, Folder};
use crate::site::ENGINE;

/// Prefixes that both peers announce.
const PREFIXES: usize = 10_000;
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// BFD takes a second, five intervals of 200 ms; the rest is for a loaded machine. BGP's hold time alone is nine
/// seconds.
const MAX_INTERRUPTION: Duration = Duration::from_secs(3);
/// The carrier is lost at once.
const LINK_LOSS: Duration = Duration::from_secs(1);

fn prefixes() -> impl Iterator<Item = String> {
    (0..PREFIXES).map(|n| format!("30.{}.{}.0/24", n / 256, n % 256))
}

/// A router with a client and two peers.
pub struct Net {
    router: String,
    pub client: Host,
    pub peers: [Host; 2],
    pub daemon: Daemon,
}

impl Net {
    /// `mark` is a letter of its own in the names of each test.
    pub fn new(mark: char) -> Self {
        let host = |name: &str, network: u8| {
            Host::new(
                &format!("{mark}{name}"),
                &[&format!("10.{network}.0.2/16")],
                &[&format!("10.{network}.0.1")],
            )
        };
        let (client, peers) = (host("c", 1), [host("f", 2), host("b", 3)]);
        for (n, peer) in (1..).zip(&peers) {
            peer.ip("address add 30.0.0.1/32 dev lo");
            peer.ip(&format!("address add 172.31.0.{n}/32 dev lo"));
        }
        let router = format!("{mark}{}", std::process::id());
        let mut text = ENGINE.to_owned();
        for (n, host) in (1..).zip([&client, &peers[0], &peers[1]]) {
            write!(
                text,
                "\n[[port]]\nname = \"p{n}\"\nkind = \"af_xdp\"\ninterface = \"{}\"\n\
                 forward = {{ router = \"{router}\" }}\n",
                host.port()
            )
            .unwrap();
        }
        writeln!(text, "\n[[router]]\nname = \"{router}\"").unwrap();
        for n in 1..=3 {
            write!(
                text,
                "\n[[router.interface]]\nname = \"if{n}\"\nport = \"p{n}\"\naddresses = [\"10.{n}.0.1/16\"]\n"
            )
            .unwrap();
        }
        let daemon = Daemon::start_in(Arc::new(Folder::new()), &text);
        Self { router, client, peers, daemon }
    }

    pub fn namespace(&self) -> String {
        format!("netvm-{}", self.router)
    }

    pub fn routes(&self, query: &str) -> RouterRoutes {
        self.daemon.get(&format!("{}?{query}", path::ROUTES.replace("{router}", &self.router)))
    }

    /// The gateways of a route that the engine uses now.
    pub fn gateways(&self, prefix: &str) -> Vec<String> {
        let found = self.routes(&format!("prefix={prefix}"));
        let resolved = |hop: &netvm_api::RouteHop| hop.mac.is_some().then(|| hop.address.clone());
        let mut all: Vec<_> =
            found.routes.iter().flat_map(|route| &route.hops).filter_map(resolved).collect();
        all.sort_unstable();
        all
    }

    /// Daemons of the router.
    pub fn start_router(&self) -> Daemons {
        let mut bgp = "router bgp 65000\n no bgp ebgp-requires-policy\n bgp router-id 10.2.0.1\n \
                       bgp bestpath as-path multipath-relax\n timers bgp 3 9\n"
            .to_owned();
        let (mut bfd, mut ospf) = ("bfd\n".to_owned(), String::new());
        for n in 2..=3 {
            write!(
                bgp,
                " neighbor 10.{n}.0.2 remote-as 6500{n}\n neighbor 10.{n}.0.2 timers connect 1\n \
                 neighbor 10.{n}.0.2 bfd\n"
            )
            .unwrap();
            write!(bfd, " peer 10.{n}.0.2\n  detect-multiplier 5\n  receive-interval 200\n  transmit-interval 200\n !\n").unwrap();
            ospf += &ospf_interface(&format!("if{n}"));
        }
        bgp += " address-family ipv4 unicast\n  maximum-paths 2\n exit-address-family\n";
        ospf += "router ospf\n ospf router-id 10.2.0.1\n network 10.2.0.0/16 area 0\n network 10.3.0.0/16 area 0\n";
        Daemons::frr(&self.namespace(), &[("bfdd", bfd), ("bgpd", bgp), ("ospfd", ospf)])
    }
}

fn ospf_interface(name: &str) -> String {
    format!(
        "interface {name}\n ip ospf network point-to-point\n ip ospf hello-interval 1\n ip ospf dead-interval 4\n!\n"
    )
}

fn frr_peer(host: &Host) -> Daemons {
    let mut bgp = "router bgp 65002\n no bgp ebgp-requires-policy\n no bgp network import-check\n \
                   bgp router-id 10.2.0.2\n timers bgp 3 9\n neighbor 10.2.0.1 remote-as 65000\n \
                   neighbor 10.2.0.1 timers connect 1\n neighbor 10.2.0.1 bfd\n address-family ipv4 unicast\n"
        .to_owned();
    prefixes().for_each(|prefix| writeln!(bgp, "  network {prefix}").unwrap());
    bgp += " exit-address-family\n";
    let bfd =
        "bfd\n peer 10.2.0.1\n  detect-multiplier 5\n  receive-interval 200\n  transmit-interval 200\n !\n"
            .to_owned();
    let ospf = ospf_interface("eth0")
        + "router ospf\n ospf router-id 10.2.0.2\n network 10.2.0.0/16 area 0\n network 172.31.0.1/32 area 0\n";
    Daemons::frr(host.namespace(), &[("bfdd", bfd), ("bgpd", bgp), ("ospfd", ospf)])
}

fn bird_peer(host: &Host) -> Daemons {
    let mut config = "router id 10.3.0.2;\nprotocol device { scan time 1; }\n\
        protocol bfd { interface \"eth0\" { interval 200 ms; multiplier 5; }; }\n\
        protocol bgp blue {\n local 10.3.0.2 as 65003; neighbor 10.3.0.1 as 65000; bfd on; connect delay time 1;\n \
        ipv4 { import none; export where source = RTS_STATIC; };\n}\n\
        protocol ospf v2 {\n ipv4 { import none; export none; };\n area 0 {\n  \
        interface \"eth0\" { type pointopoint; hello 1; dead 4; };\n  interface \"lo\" 172.31.0.0/16 { stub; };\n };\n}\n\
        protocol static {\n ipv4;\n"
        .to_owned();
    prefixes().for_each(|prefix| writeln!(config, " route {prefix} blackhole;").unwrap());
    config += "}\n";
    Daemons::bird(host.namespace(), &config)
}

#[test]
fn bgp_ospf_and_bfd_of_frr_and_bird_steer_the_engine() {
    if !are_possible() || !are_installed() {
        return;
    }
    let mut net = Net::new('d');
    let [first, second] = ["10.2.0.2", "10.3.0.2"].map(str::to_owned);
    let (frr, bird) = (frr_peer(&net.peers[0]), bird_peer(&net.peers[1]));
    let begin = Instant::now();
    let router = net.start_router();
    let logs = || format!("{}\n{}\n{}", router.log(), frr.log(), bird.log());
    let both = |prefix: &str| net.gateways(prefix) == [first.clone(), second.clone()];
    let all_learned = || {
        let found = net.routes("prefix=30.0.0.0/8&most=1");
        found.more + 1 == PREFIXES as u64 && both("30.0.0.0/24") && both("30.39.15.0/24")
    };
    assert!(within(TIMEOUT, all_learned), "{:?}\n{}", net.routes("prefix=30.0.0.0/8&most=2"), logs());
    println!("{PREFIXES} routes from two peers by BGP in the engine after {:?}", begin.elapsed());
    for n in 1..=2 {
        let prefix = format!("172.31.0.{n}/32");
        assert!(within(TIMEOUT, || net.gateways(&prefix).len() == 1), "{prefix} by OSPF\n{}", logs());
        assert!(net.client.pings(&format!("172.31.0.{n}")));
    }
    for peer in &net.peers {
        peer.echo([30, 0, 0, 1].into(), PORT);
    }
    let drops = format!("{:?}", net.daemon.stats().drops);
    assert!(!drops.contains("punt-quota"), "a routing protocol lost packets: {drops}");

    // How often a session of each peer has gone down: one may while it starts.
    let downs = || {
        let counters = router.vtysh("show bfd peers counters json");
        let lines = counters.lines().filter(|line| line.contains("\"session-down\""));
        lines.map(|line| line.trim().to_owned()).collect::<Vec<_>>()
    };
    let before = downs();
    assert_eq!(before.len(), 2, "{}", router.vtysh("show bfd peers counters json"));

    // A scan of unused addresses by a peer takes nothing from its BGP and BFD sessions.
    let stop = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&stop);
    let scan = net.peers[0].inside(move || {
        let socket = std::net::UdpSocket::bind(("0.0.0.0", 0)).unwrap();
        let to = |n: u32| (Ipv4Addr::new(10, 1, 1 + (n / 250 % 200) as u8, 1 + (n % 250) as u8), 9);
        let mut sent = 0u32;
        while !is_over.load(Ordering::Relaxed) {
            let _ = socket.send_to(b"?", to(sent));
            sent += 1;
            // Some ten times the share of such packets. A flood would also fill the port's ring, whatever is in it.
            if sent.is_multiple_of(32) {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        sent
    });
    // Several times as long as BFD takes to call a session down.
    std::thread::sleep(Duration::from_secs(3));
    stop.store(true, Ordering::Relaxed);
    println!("{} addresses scanned", scan.join().unwrap());
    assert_eq!(downs(), before, "a BFD session went down\n{}", logs());
    assert!(format!("{:?}", net.daemon.stats().drops).contains("punt-quota"), "the scan was limited");
    assert!(both("30.0.0.0/24"));

    // A peer falls silent: BFD notices.
    let only = |gateway: &String| net.gateways("30.39.15.0/24") == [gateway.clone()];
    let outage = Outage::watch(&net.client);
    frr.freeze(true);
    net.peers[0].ip("address flush dev eth0");
    let cut = Instant::now();
    assert!(within(TIMEOUT, || only(&second)), "{:?}\n{}", net.gateways("30.39.15.0/24"), logs());
    let took = cut.elapsed();
    let interruption = outage.end();
    println!(
        "a silent peer: the last route has moved after {took:?}, flows were interrupted for {interruption:?}"
    );
    assert!(
        took < MAX_INTERRUPTION && interruption < MAX_INTERRUPTION,
        "{took:?}, {interruption:?}\n{}",
        logs()
    );

    // It is back, and then the other peer's link goes down.
    net.peers[0].ip("address add 10.2.0.2/16 dev eth0");
    net.peers[0].ip("route add default via 10.2.0.1");
    frr.freeze(false);
    assert!(within(TIMEOUT, || both("30.0.0.0/24") && both("30.39.15.0/24")), "{}", logs());
    let outage = Outage::watch(&net.client);
    net.peers[1].ip("link set eth0 down");
    let cut = Instant::now();
    assert!(within(TIMEOUT, || only(&first)), "{}", logs());
    let took = cut.elapsed();
    let interruption = outage.end();
    println!(
        "a link down: the last route has moved after {took:?}, flows were interrupted for {interruption:?}"
    );
    assert!(took < LINK_LOSS && interruption < LINK_LOSS, "{took:?}, {interruption:?}\n{}", logs());
    drop((router, frr, bird));
    net.daemon.purge();
}

/// Flows of a client to both peers, until each has had answers again.
pub struct Outage {
    stop: Arc<AtomicBool>,
    flows: Vec<std::thread::JoinHandle<Duration>>,
}

impl Outage {
    /// Begins once every flow gets answers.
    pub fn watch(client: &Host) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (heard, is_heard) = std::sync::mpsc::channel();
        let flow = |_| {
            let (stop, heard) = (Arc::clone(&stop), heard.clone());
            client.inside(move || {
                let socket = asking([30, 0, 0, 1].into(), PORT, Duration::from_millis(20));
                let (mut last, mut longest, mut datagram) = (None, Duration::ZERO, [0; 8]);
                while !stop.load(Ordering::Relaxed)
                    || last.is_none_or(|at: Instant| at.elapsed() > MAX_ANSWER_AGE)
                {
                    let _ = socket.send(&datagram);
                    if socket.recv(&mut datagram).is_err() {
                        continue;
                    }
                    let now = Instant::now();
                    match last.replace(now) {
                        None => heard.send(()).unwrap(),
                        Some(before) => longest = longest.max(now - before),
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
                longest
            })
        };
        let flows: Vec<_> = (0..8).map(flow).collect();
        for _ in &flows {
            is_heard.recv_timeout(TIMEOUT).unwrap();
        }
        Self { stop, flows }
    }

    /// The longest time without an answer of any flow.
    pub fn end(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        self.flows.into_iter().map(|flow| flow.join().unwrap()).max().unwrap()
    }
}

/// A flow whose last answer is not older goes on.
const MAX_ANSWER_AGE: Duration = Duration::from_millis(200);
