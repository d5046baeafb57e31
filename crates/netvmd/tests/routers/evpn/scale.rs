// SPDX-License-Identifier: Apache-2.0
//! Many routes by BGP: hosts of the stretched network (MAC and IP address), and prefixes of a VRF. `./dev
//! check-release` runs it with 100,000 hosts and 10,000 prefixes.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use netvm_api::{AddressInfo, RouterRoutes, path};
use netvm_wire::MacAddr;

use super::super::common::download::PORT;
use super::super::common::hosts::{Host, are_possible, within};
use super::super::common::status_field;
use super::super::frr::are_installed;
use super::super::site::ENGINE;
use super::fabric::{Server, Spine};
use super::l2::outage;
use super::port;
use super::speaker::{Behind, Speaker};

/// The number of hosts, set by `./dev check-release`.
const WANTED: &str = "NETVM_TEST_EVPN_HOSTS";
const HOSTS: u32 = 2000;
const MOVES_PER_SECOND: u32 = 1000;

fn config(hosts: [&Host; 2], macs: u32) -> String {
    let [first, second] = hosts.map(Server::outer);
    format!(
        r#"{engine}
[switch]
macs = {macs}
[[port]]
name = "wan"
kind = "af_packet"
interface = "eth1"
forward = {{ router = "edge" }}
[[port]]
name = "overlay"
kind = "vxlan"
vni = 100
control = "evpn"
router = "edge"
local = "192.0.2.1"
forward = {{ normal = true }}
[[port]]
name = "red-l3"
kind = "vxlan"
vni = 5000
control = "evpn"
router = "edge"
local = "192.0.2.1"
forward = {{ router = "red" }}
[[port]]
name = "first"
kind = "container"
namespace = "{first}"
addresses = ["10.0.0.1/8"]
mtu = 1450
forward = {{ normal = true }}
[[port]]
name = "second"
kind = "container"
namespace = "{second}"
addresses = ["10.0.0.2/8"]
mtu = 1450
forward = {{ normal = true }}
[[router]]
name = "edge"
[[router.interface]]
name = "wan"
port = "wan"
addresses = ["10.0.1.1/24", "192.0.2.1/32"]
[[router.routes]]
to = "192.0.2.0/24"
via = "10.0.1.254"
[[router]]
name = "red"
[[router.interface]]
name = "l3"
port = "red-l3"
mac = "02:00:00:00:53:01"
"#,
        engine = &*ENGINE
    )
}

fn mac(n: u32) -> MacAddr {
    let [a, b, c, d] = n.to_be_bytes();
    MacAddr([2, 1, a, b, c, d])
}

/// The hosts with these numbers.
fn hosts(numbers: std::ops::Range<u32>) -> Vec<(MacAddr, Ipv4Addr)> {
    numbers.map(|n| (mac(n), Ipv4Addr::from_bits(0x0a10_0000 + n))).collect()
}

/// The time that a process has had on a processor, in ticks of 10 ms.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn many_hosts_and_prefixes_reach_the_engine_and_move() {
    if !are_possible() || !are_installed() {
        return;
    }
    let wanted = std::env::var(WANTED).map_or(HOSTS, |number| number.parse().unwrap());
    let timeout = Duration::from_secs(60 + u64::from(wanted) / 200);
    let prefixes: Vec<Ipv4Addr> =
        (0..wanted / 10).map(|n| Ipv4Addr::from_bits(0x2000_0000 + (n << 8))).collect();
    let [first, second] = ["5a", "5b"].map(Host::bare);
    let spine = Spine::new("5s", 1);
    let mut server = Server::new("5v", 1, std::slice::from_ref(&spine));
    server.start(&config([&first, &second], (4 * wanted).next_power_of_two().max(32_768)));
    // In place of the fabric's route reflector.
    spine.host.ip("address add 192.0.2.9/32 dev lo");
    spine.host.ip("route add 192.0.2.1/32 via 10.0.1.1");
    let own = Ipv4Addr::new(192, 0, 2, 9);
    let accepted = spine.host.inside(move || Speaker::accept(own));
    server.start_frr(&[("netvm-red", 5000)]);
    let mut speaker = accepted.join().unwrap();
    let vtep = |last| Behind { vtep: Ipv4Addr::new(192, 0, 2, last), vni: 100, moves: 0, router: None };
    let frr: Vec<u32> = server.frr.as_ref().unwrap().pids().collect();
    let processes: Vec<u32> = [server.daemon().child.id()].into_iter().chain(frr).collect();
    // Of netvmd, zebra, bfdd and bgpd: MiB, and ticks of 10 ms on a processor.
    let used = || {
        let memory = |pid| status_field(pid, "VmRSS").trim_end_matches(" kB").parse::<u64>().unwrap() / 1024;
        processes.iter().map(|pid| (memory(*pid), ticks(*pid))).collect::<Vec<_>>()
    };
    let known = || {
        // The list of all is long: reading it takes time from the rest.
        std::thread::sleep(Duration::from_micros(10) * wanted);
        let all: Vec<AddressInfo> = server.daemon().get(path::ADDRESSES);
        all.iter().filter(|address| address.port == "overlay").count()
    };
    let routes = || {
        let path = path::ROUTES.replace("{router}", "red");
        let found: RouterRoutes = server.daemon().get(&format!("{path}?prefix=32.0.0.0/4&most=1"));
        found.routes.len() as u64 + found.more
    };
    assert!(first.pings("10.0.0.2"), "{}", server.log());
    second.echo_any(PORT);
    let before = used();
    // A tenth of the hosts move later.
    let moving = wanted / 10;
    let mut took = Duration::ZERO;
    let disturbed = outage(&first, Ipv4Addr::new(10, 0, 0, 2), || {
        let begin = Instant::now();
        speaker.prefixes(
            Behind { vni: 5000, router: Some(MacAddr([2, 0, 0, 0, 0x53, 2])), ..vtep(2) },
            &prefixes,
        );
        speaker.hosts(vtep(3), &hosts(0..moving));
        speaker.hosts(vtep(2), &hosts(moving..wanted));
        let sent = begin.elapsed();
        assert!(
            within(timeout, || routes() == prefixes.len() as u64),
            "{} routes\n{}",
            routes(),
            server.log()
        );
        println!("the engine has {} prefixes after {:?}", prefixes.len(), begin.elapsed());
        assert!(within(timeout, || known() == wanted as usize), "{} hosts\n{}", known(), server.log());
        took = begin.elapsed();
        println!("sent in {sent:?}, the engine has {wanted} hosts after {took:?}");
    });
    println!(
        "{:.0} hosts a second; MiB and ticks of netvmd, zebra, bfdd and bgpd: {:?}, {before:?} before; a flow of this server \
         waited at most {disturbed:?}",
        f64::from(wanted) / took.as_secs_f64(),
        used()
    );
    // Its requests are answered here.
    let last = Ipv4Addr::from_bits(0x0a10_0000 + wanted - 1);
    let answered = || port(server.daemon(), "overlay").neigh_answered.unwrap();
    let is_answered = || {
        let _ = first.output(&format!("busybox ping -c 1 -W 1 {last}"));
        answered() > 0
    };
    assert!(within(timeout, is_answered), "{}", server.log());
    // They move to another server.
    let begin = Instant::now();
    let disturbed = outage(&first, Ipv4Addr::new(10, 0, 0, 2), || {
        let step = MOVES_PER_SECOND / 20;
        for (turn, from) in (0..moving).step_by(step as usize).enumerate() {
            speaker.hosts(Behind { moves: 1, ..vtep(4) }, &hosts(from..moving.min(from + step)));
            let next = begin + Duration::from_millis(50) * (turn as u32 + 1);
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        let sent = begin.elapsed();
        let vteps = || port(server.daemon(), "overlay").tunnel.unwrap().remote;
        assert!(within(timeout, || vteps() == ["192.0.2.2", "192.0.2.4"]), "{:?}\n{}", vteps(), server.log());
        println!("{moving} moves, sent in {sent:?}, are in the engine after {:?}", begin.elapsed());
    });
    println!("a flow of this server waited at most {disturbed:?} meanwhile");
}
