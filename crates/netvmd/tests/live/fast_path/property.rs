// SPDX-License-Identifier: Apache-2.0
//! Random rules and random datagrams: the same arrive with the fast path and without, and the same is counted. Then the
//! same while hosts, ports and netvmd change at random: nothing arrives that the rules of that moment forbid.
//!
//! `NETVM_TEST_SEED` repeats a run, `NETVM_TEST_SECONDS` makes it longer.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_api::{ApplyReply, PolicyInfo, TraceReply, TraceRequest, path};
use rustix::process::Signal;

use super::traffic::hits;
use super::{container, has_interface, port, soon};
use crate::common::hosts::{Host, are_possible};
use crate::common::{Daemon, ENGINE};

const SOURCES: [u16; 2] = [7300, 7301];
const TARGETS: [u16; 3] = [7200, 7201, 7202];
/// Sets of rules, unless the test is to take longer.
const RULE_SETS: usize = 4;
const EVENTS: usize = 3;
/// Datagrams of each flow under one set of rules, some before and some after the kernel knows it.
const ROUNDS: usize = 8;

/// Datagrams of each host then.
const DATAGRAMS: u64 = (SOURCES.len() * TARGETS.len() * ROUNDS) as u64;

/// A flow: the sending host, its port, and that of the other one.
type Flow = (usize, u16, u16);

struct Random(u64);

impl Random {
    /// Another one in each run, unless the environment says which.
    fn new() -> Self {
        let given = std::env::var("NETVM_TEST_SEED").ok();
        let now = || std::time::UNIX_EPOCH.elapsed().unwrap().as_micros() as u64;
        let seed = given.map_or_else(now, |seed| seed.parse().unwrap());
        println!("NETVM_TEST_SEED={seed}");
        Self(seed)
    }

    fn any(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % below
    }
}

/// Whether a test that has done so much goes on.
fn goes_on(done: usize, least: usize, begin: Instant) -> bool {
    match std::env::var("NETVM_TEST_SECONDS") {
        Ok(seconds) => begin.elapsed() < Duration::from_secs(seconds.parse().unwrap()),
        Err(_) => done < least,
    }
}

/// Rules about UDP, which nothing else uses here.
fn rules(random: &mut Random) -> String {
    let mut text = String::new();
    for n in 0..random.any(8) {
        let action = ["allow = true", "drop = true", "reject = true", "normal = true", "drop = true"];
        let action = action[random.any(5)];
        let (from, to) = (["", "from = \"c1\"\n", "from = \"c2\"\n"][random.any(3)], random.any(4));
        let is_egress = to < 2 && action != "normal = true";
        let to = if is_egress { ["to = \"c1\"\n", "to = \"c2\"\n"][to] } else { "" };
        let mut matches = vec!["protocol = \"udp\"".to_owned()];
        if random.any(2) == 0 {
            matches.push(format!("destination_ports = {}", TARGETS[random.any(3)]));
        }
        if random.any(3) == 0 {
            matches.push(format!("source_ports = {}", SOURCES[random.any(2)]));
        }
        if random.any(3) == 0 {
            matches.push(format!("source = \"10.54.0.{}\"", 1 + random.any(2)));
        }
        if random.any(8) == 0 {
            matches.push("dscp = 46".to_owned());
        }
        let matches = matches.join(", ");
        text += &format!("[[rule]]\nname = \"r{n}\"\n{from}{to}{action}\nmatch = {{ {matches} }}\n");
    }
    text
}

/// Two connected containers.
struct Site {
    hosts: [Host; 2],
    daemon: Daemon,
    is_fast: bool,
    sockets: BTreeMap<(usize, u16), UdpSocket>,
    /// Packets that each port has received, and that each host has sent.
    counted: [[u64; 2]; 2],
}

/// What has become of the datagrams of a run.
struct Outcome {
    /// Datagrams of each flow.
    arrived: BTreeMap<Flow, usize>,
    /// Hits of each rule.
    hits: BTreeMap<String, u64>,
}

impl Site {
    fn new(name: &str, is_fast: bool) -> Self {
        let hosts = [1, 2].map(|n| Host::bare(&format!("{name}{n}")));
        hosts.iter().for_each(without_ipv6);
        let daemon = Daemon::start(&config(&hosts, is_fast, ""));
        let site = Self { hosts, daemon, is_fast, sockets: BTreeMap::new(), counted: [[0; 2]; 2] };
        site.connect();
        site
    }

    /// Tells the hosts each other's MAC addresses, so that nothing but datagrams is sent.
    fn connect(&self) {
        assert!(soon(|| self.hosts.iter().all(has_interface)), "{}", self.daemon.log());
        let macs = [0, 1].map(|n| mac_of(&self.hosts[n]));
        for (n, host) in self.hosts.iter().enumerate() {
            host.ip(&format!("neighbor replace 10.54.0.{} lladdr {} dev eth0", 2 - n, macs[1 - n]));
        }
        assert!(
            self.hosts[0].pings("10.54.0.2") && self.hosts[1].pings("10.54.0.1"),
            "{}",
            self.daemon.log()
        );
    }

    fn open(&mut self) {
        self.sockets.clear();
        for (n, host) in self.hosts.iter().enumerate() {
            for port in SOURCES.into_iter().chain(TARGETS) {
                let socket = host.inside(move || UdpSocket::bind(("0.0.0.0", port)).unwrap()).join().unwrap();
                socket.set_nonblocking(true).unwrap();
                self.sockets.insert((n, port), socket);
            }
        }
    }

    fn apply(&self, rules: &str) {
        let _: ApplyReply = self.daemon.post(path::APPLY, &config(&self.hosts, self.is_fast, rules));
    }

    /// Sends so many datagrams of each flow, and adds those that arrive.
    fn send(&self, rounds: usize, arrived: &mut BTreeMap<Flow, usize>) {
        for _ in 0..rounds {
            for from in [0, 1] {
                for (source, target) in SOURCES.into_iter().flat_map(|one| TARGETS.map(|other| (one, other)))
                {
                    let flow = u16::try_from(from).unwrap();
                    let text = [flow, source, target].map(u16::to_be_bytes).concat();
                    let to = (format!("10.54.0.{}", 2 - from), target);
                    // An answer may say that an earlier one was rejected; the interface may be gone.
                    let send = |_| self.sockets[&(from, source)].send_to(&text, (&*to.0, to.1)).is_ok();
                    let _ = (0..4).any(send);
                }
            }
            std::thread::sleep(Duration::from_millis(30));
            self.receive(arrived);
        }
    }

    /// Applies rules, and sends.
    fn run(&mut self, rules: &str) -> Outcome {
        self.apply(rules);
        let mut arrived = BTreeMap::new();
        self.send(ROUNDS, &mut arrived);
        // Each packet that a host has sent is one that its port has received. Hosts announce their addresses now and
        // then.
        let (before, mut now) = (self.counted, self.counted);
        let all = soon(|| {
            now = self.count();
            let [received, sent] = [0, 1].map(|what| [0, 1].map(|host| now[what][host] - before[what][host]));
            received == sent && sent.iter().all(|sent| *sent >= DATAGRAMS)
        });
        assert!(all, "received and sent before {before:?} and after {now:?}\n{rules}{}", self.daemon.log());
        self.counted = now;
        let arrived = RefCell::new(arrived);
        let (arrived, hits) = self.settled(|| {
            let policy: PolicyInfo = self.daemon.get(path::POLICY);
            self.receive(&mut arrived.borrow_mut());
            let hits = policy.rules.into_iter().map(|rule| (rule.name, rule.packets)).collect();
            (arrived.borrow().clone(), hits)
        });
        Outcome { arrived, hits }
    }

    /// Packets that each port has received, and that the interface of each host has sent.
    fn count(&self) -> [[u64; 2]; 2] {
        let of = |host: &Host| {
            let output = host.output("cat /sys/class/net/eth0/statistics/tx_packets");
            String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
        };
        [["c1", "c2"].map(|name| port(&self.daemon, name).rx_packets), self.hosts.each_ref().map(of)]
    }

    fn receive(&self, arrived: &mut BTreeMap<Flow, usize>) {
        let mut bytes = [0; 16];
        for ((host, port), socket) in &self.sockets {
            while let Ok((length, _)) = socket.recv_from(&mut bytes) {
                assert_eq!(length, 6);
                let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
                let flow = (usize::from(word(0)), word(2), word(4));
                assert!(flow.0 == 1 - host && flow.2 == *port, "{flow:?} at {port} of {host}");
                *arrived.entry(flow).or_default() += 1;
            }
        }
    }

    /// Counts, once they do not grow.
    fn settled<T: PartialEq + Clone>(&self, counts: impl Fn() -> T) -> T {
        let mut last = counts();
        assert!(soon(|| {
            std::thread::sleep(Duration::from_millis(if self.is_fast { 600 } else { 200 }));
            let now = counts();
            std::mem::replace(&mut last, now.clone()) == now
        }));
        last
    }

    /// The flows that may arrive, as netvm says of a datagram of each.
    fn allowed(&self) -> BTreeSet<Flow> {
        let macs = [0, 1].map(|n| mac_of(&self.hosts[n]).replace(':', ""));
        let mut found = BTreeSet::new();
        for from in [0, 1] {
            for (source, target) in SOURCES.into_iter().flat_map(|one| TARGETS.map(|other| (one, other))) {
                let ip = format!("4500002200004000401100000a36000{}0a36000{}", 1 + from, 2 - from);
                let frame = format!(
                    "{}{}0800{ip}{source:04x}{target:04x}000e0000000000000000",
                    macs[1 - from],
                    macs[from]
                );
                let request =
                    TraceRequest { port: format!("c{}", 1 + from), frame, length: None, state: None };
                let request = serde_json::to_string(&request).unwrap();
                let steps = self.daemon.post::<TraceReply>(path::TRACE, &request).steps;
                let arrives = format!("sent on port c{}", 2 - from);
                if steps.iter().any(|step| step.contains(&arrives)) {
                    found.insert((from, source, target));
                }
            }
        }
        found
    }

    /// Something happens. Datagrams may be lost, but none arrives that must not.
    fn disturb(&mut self, event: usize, rules: &str) {
        let host = event / 2 % 2;
        match event % 7 {
            0 => {
                self.hosts[host]
                    .ip(&format!("link set eth0 address 02:00:00:54:0{host}:{:02x}", event % 256));
            }
            1 => self
                .hosts
                .iter()
                .for_each(|host| host.ip(&format!("link set eth0 mtu {}", 1400 - event % 64))),
            // Another interface, which may have the index of this one.
            2 => self.hosts[host].ip("link delete eth0"),
            3 => {
                self.hosts[host].restart();
                without_ipv6(&self.hosts[host]);
            }
            4 => {
                let one = container(1, &self.hosts[0], "").replace("fast_path = true", "fast_path = false");
                let _: ApplyReply = self.daemon.post(path::APPLY, &(ENGINE.to_owned() + &one));
                self.apply(rules);
            }
            5 => {
                self.daemon.signal(Signal::STOP);
                std::thread::sleep(Duration::from_millis(400));
                self.daemon.signal(Signal::CONT);
            }
            _ => {
                self.daemon.child.kill().unwrap();
                self.daemon.child.wait().unwrap();
                let text = config(&self.hosts, self.is_fast, rules);
                self.daemon = Daemon::start_in(Arc::clone(&self.daemon.folder), &text);
            }
        }
    }
}

fn without_ipv6(host: &Host) {
    let command = "sysctl -qw net.ipv6.conf.default.disable_ipv6=1";
    assert!(host.output(command).status.success());
}

fn mac_of(host: &Host) -> String {
    let text = host.ip_output("-o link show eth0");
    text.split_whitespace().skip_while(|word| *word != "link/ether").nth(1).unwrap().to_owned()
}

fn config(hosts: &[Host; 2], is_fast: bool, rules: &str) -> String {
    let text = ENGINE.to_owned() + &container(1, &hosts[0], "") + &container(2, &hosts[1], "") + rules;
    if is_fast { text } else { text.replace("fast_path = true", "fast_path = false") }
}

#[test]
fn the_same_packets_arrive_and_are_counted_with_and_without_the_table() {
    if !are_possible() {
        return;
    }
    let [mut fast, mut slow] = [Site::new("pf", true), Site::new("ps", false)];
    for site in [&mut fast, &mut slow] {
        site.open();
        // Some may have been sent before the other end was up.
        site.counted = site.settled(|| site.count());
        site.run("");
    }
    let (mut random, begin, mut set, mut by_kernel) = (Random::new(), Instant::now(), 0, 0);
    while goes_on(set, RULE_SETS, begin) {
        let before = ["c1", "c2"].map(|name| hits(&fast.daemon, name));
        let rules = rules(&mut random);
        let (with, without) = (fast.run(&rules), slow.run(&rules));
        let after = ["c1", "c2"].map(|name| hits(&fast.daemon, name));
        by_kernel += after[0] + after[1] - before[0] - before[1];
        println!("set {set}: {} flows arrive, {by_kernel} packets by the kernel so far", with.arrived.len());
        assert_eq!((&with.arrived, &with.hits), (&without.arrived, &without.hits), "{rules}");
        set += 1;
    }
    println!("{by_kernel} packets by the kernel");
}

#[test]
fn nothing_arrives_that_the_rules_of_the_moment_forbid() {
    if !are_possible() {
        return;
    }
    let (mut site, mut random) = (Site::new("px", true), Random::new());
    let (begin, mut done) = (Instant::now(), 0);
    while goes_on(done, EVENTS, begin) {
        let (rules, event) = (rules(&mut random), random.any(1 << 16));
        println!("event {}, host {}", event % 7, event / 2 % 2);
        site.apply("");
        site.open();
        // Nothing of it is on its way any more when the rules change.
        let mut all = BTreeMap::new();
        site.send(4, &mut all);
        site.settled(|| site.count());
        site.receive(&mut all);
        // What may arrive under these rules is what netvm alone lets through.
        site.apply(&rules);
        let allowed = site.allowed();
        let mut arrived = BTreeMap::new();
        site.send(3, &mut arrived);
        site.disturb(event, &rules);
        site.send(3, &mut arrived);
        site.connect();
        site.open();
        assert!(
            soon(|| {
                site.send(1, &mut arrived);
                allowed.iter().all(|flow| arrived.contains_key(flow))
            }),
            "{arrived:?}\n{allowed:?}\n{rules}{}",
            site.daemon.log()
        );
        let wrong: Vec<_> = arrived.keys().filter(|flow| !allowed.contains(flow)).collect();
        assert!(wrong.is_empty(), "{wrong:?}\n{rules}");
        done += 1;
    }
}
