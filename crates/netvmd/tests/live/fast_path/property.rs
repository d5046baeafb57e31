//! Random rules and random datagrams: the same arrive with the fast path and without, and the same is counted.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::time::Duration;

use netvm_api::{ApplyReply, PolicyInfo, path};

use super::traffic::hits;
use super::{are_connected, container, soon};
use crate::common::hosts::{Host, are_possible};
use crate::common::{Daemon, ENGINE};

const SOURCES: [u16; 2] = [7300, 7301];
const TARGETS: [u16; 3] = [7200, 7201, 7202];
const RULE_SETS: usize = 5;
/// Datagrams of each flow under one set of rules, some before and some after the kernel knows it.
const ROUNDS: usize = 8;

/// A flow: the sending host, its port, and that of the other one.
type Flow = (usize, u16, u16);

/// Rules about UDP, which nothing else uses here.
fn rules(random: &mut u64) -> String {
    let mut any = |below: u64| {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((*random >> 33) % below) as usize
    };
    let mut text = String::new();
    for n in 0..any(8) {
        let action = ["allow = true", "drop = true", "reject = true", "normal = true", "drop = true"][any(5)];
        let (from, to) = (["", "from = \"c1\"\n", "from = \"c2\"\n"][any(3)], any(4));
        let is_egress = to < 2 && action != "normal = true";
        let to = if is_egress { ["to = \"c1\"\n", "to = \"c2\"\n"][to] } else { "" };
        let mut matches = vec!["protocol = \"udp\"".to_owned()];
        if any(2) == 0 {
            matches.push(format!("destination_ports = {}", TARGETS[any(3)]));
        }
        if any(3) == 0 {
            matches.push(format!("source_ports = {}", SOURCES[any(2)]));
        }
        if any(3) == 0 {
            matches.push(format!("source = \"10.54.0.{}\"", 1 + any(2)));
        }
        if any(8) == 0 {
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
}

impl Site {
    fn new(name: &str, is_fast: bool) -> Self {
        let hosts = [1, 2].map(|n| Host::bare(&format!("{name}{n}")));
        let daemon = Daemon::start(&config(&hosts, is_fast, ""));
        assert!(are_connected(&hosts));
        let mut sockets = BTreeMap::new();
        for (n, host) in hosts.iter().enumerate() {
            for port in SOURCES.into_iter().chain(TARGETS) {
                let socket = host.inside(move || UdpSocket::bind(("0.0.0.0", port)).unwrap()).join().unwrap();
                socket.set_nonblocking(true).unwrap();
                sockets.insert((n, port), socket);
            }
        }
        Self { hosts, daemon, is_fast, sockets }
    }

    /// Applies rules, and sends. Returns what has arrived of each flow, and how often each rule was hit.
    fn run(&self, rules: &str) -> (BTreeMap<Flow, usize>, BTreeMap<String, u64>) {
        let _: ApplyReply = self.daemon.post(path::APPLY, &config(&self.hosts, self.is_fast, rules));
        let mut arrived = BTreeMap::new();
        for round in 0..ROUNDS {
            for from in [0, 1] {
                for (source, target) in SOURCES.into_iter().flat_map(|one| TARGETS.map(|other| (one, other)))
                {
                    let flow = u16::try_from(from).unwrap();
                    let text = [flow, source, target].map(u16::to_be_bytes).concat();
                    let to = (format!("10.54.0.{}", 2 - from), target);
                    // An answer may say that an earlier one was rejected.
                    let send = || self.sockets[&(from, source)].send_to(&text, (&*to.0, to.1)).is_ok();
                    assert!(send() || send(), "round {round}");
                }
            }
            std::thread::sleep(Duration::from_millis(30));
            self.receive(&mut arrived);
        }
        (arrived, self.settled())
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

    /// The counts of the rules, once they do not grow.
    fn settled(&self) -> BTreeMap<String, u64> {
        let counts = || -> BTreeMap<String, u64> {
            let policy: PolicyInfo = self.daemon.get(path::POLICY);
            policy.rules.into_iter().map(|rule| (rule.name, rule.packets)).collect()
        };
        let mut last = counts();
        assert!(soon(|| {
            std::thread::sleep(Duration::from_millis(if self.is_fast { 600 } else { 50 }));
            let now = counts();
            std::mem::replace(&mut last, now.clone()) == now
        }));
        last
    }
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
    let (fast, slow) = (Site::new("pf", true), Site::new("ps", false));
    let mut random = 54;
    for set in 0..RULE_SETS {
        let rules = rules(&mut random);
        let (with, without) = (fast.run(&rules), slow.run(&rules));
        let by_kernel = ["c1", "c2"].map(|name| hits(&fast.daemon, name));
        println!("set {set}: {} flows arrive, {by_kernel:?} packets by the kernel", with.0.len());
        assert_eq!(with.0, without.0, "{rules}");
        assert_eq!(with.1, without.1, "{rules}");
    }
    assert!(hits(&fast.daemon, "c1") + hits(&fast.daemon, "c2") > 50);
}
