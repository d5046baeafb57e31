// SPDX-License-Identifier: Apache-2.0
//! Decisions that connections store: a worker with them does with every packet what a worker without them does.

use netvm_model::{ConnectionsConfig, Host, NatRule};
use netvm_wire::{FrameBuilder, IpProto, TcpFlags, VlanId};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::super::rig::{Rig, mac, udp};
use super::nat::{masquerade, publish};
use super::{back, client_and_server, host, passes, tracking};
use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::worker::{Command, WorkerConnections};

const RULES: [&str; 19] = [
    "match = { state = \"new\", protocol = \"udp\", destination_ports = 53 }\ndrop = true",
    "from = \"p1\"\nmatch = { state = [\"established\", \"related\"] }\nallow = true",
    "match = { state = \"established\" }\nout = \"p2\"",
    "match = { state = \"invalid\" }\ndrop = true",
    "match = { dscp = \"ef\" }\ndrop = true",
    "match = { vlan = 10 }\nout = \"p2\"",
    "match = { vlan = 20, inner_vlan = 7 }\ndrop = true",
    "match = { source_mac = \"02:00:00:00:00:01\" }\nout = \"p1\"",
    "match = { destination_mac = \"02:00:00:00:00:02\" }\ndrop = true",
    "match = { protocol = \"tcp\", tcp_flags = \"psh\" }\nout = \"p0\"",
    "match = { protocol = \"icmp\", icmp_code = 1 }\ndrop = true",
    "match = { protocol = \"icmp\", icmp_type = \"echo-reply\" }\nout = \"p1\"",
    "match = { fragment = \"later\" }\ndrop = true",
    "match = { fragment = \"first\" }\nout = \"p0\"",
    "match = { ether_type = \"ipv6\" }\nout = \"p1\"",
    "match = { source = \"10.0.0.2\" }\ndrop = true",
    "match = { destination = \"198.51.100.0/24\", protocol = \"tcp\", destination_ports = 80 }\nset_vlan = 20",
    "to = \"p1\"\nmatch = { state = \"new\" }\ndrop = true",
    "from = \"p0\"\nmatch = { protocol = \"udp\", source_ports = 1001 }\nreject = true",
];

const PORTS: [[&str; 3]; 4] = [
    ["forward = { normal = true }"; 3],
    ["forward = { out = \"p1\" }", "forward = { out = \"p0\" }", "forward = { normal = true }"],
    [
        "forward = { normal = true }\nguard = { addresses = [\"10.0.0.0/31\", \"2001:db8::/127\"] }",
        "forward = { normal = true }",
        "forward = { normal = true }",
    ],
    [
        "forward = { normal = true }",
        "forward = { normal = true }\nacl_in = \"deny\"",
        "forward = { out = \"p0\" }\ntrack = false",
    ],
];

fn with_rules(ports: [&str; 3], rules: &[&str], has_nat: bool) -> Host {
    let track = |lines: &str| if lines.contains("track") { "" } else { "track = true\n" };
    let mut text = String::new();
    for (n, lines) in ports.iter().enumerate() {
        text += &format!("[[port]]\nname = \"p{n}\"\nkind = \"sink\"\n{}{lines}\n", track(lines));
    }
    for rule in rules {
        text += &format!("[[rule]]\n{rule}\n");
    }
    let nat: Vec<NatRule> =
        if has_nat { vec![masquerade([1024, 65535]), publish(PortId(1))] } else { Vec::new() };
    Host { nat, ..host(&text) }
}

/// What happens in one tick.
#[derive(Clone, Debug)]
enum Step {
    /// Frames arrive. The hosts have moved on by so many ports.
    Frames(Vec<Frame>, u8),
    Rules(Vec<&'static str>),
}

/// The ends of a connection: one of three hosts inside, and a host outside.
#[derive(Clone, Copy, Debug)]
struct Ends {
    inside: u8,
    is_v6: bool,
    protocol: IpProto,
    ports: (u16, u16),
    /// The host outside sends to what NAT makes of the other one.
    is_outside: bool,
}

/// In what packets of a connection differ.
#[derive(Clone, Copy, Debug)]
struct Kind {
    is_reply: bool,
    /// The last byte of the destination address.
    to: u8,
    /// VLAN tags and DSCP.
    marks: u8,
    /// TCP flags, fragments, ICMP code.
    rest: u8,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    ends: Ends,
    kind: Kind,
}

impl Frame {
    fn bytes(&self) -> Vec<u8> {
        let Self { ends: Ends { inside, is_v6, protocol, ports, is_outside }, kind } = *self;
        let (here, there) = match (is_v6, is_outside && kind.is_reply) {
            (true, _) => (format!("2001:db8::{inside}"), "2001:db8:1::7"),
            (false, true) => ("203.0.113.1".to_owned(), "198.51.100.7"),
            (false, false) => (format!("10.0.0.{inside}"), "198.51.100.7"),
        };
        let ends = [here.parse().unwrap(), there.parse().unwrap()];
        let [source, destination] = if kind.is_reply { [ends[1], ends[0]] } else { ends };
        let [from, to] = if kind.is_reply { [ports.1, ports.0] } else { [ports.0, ports.1] };
        let frame = FrameBuilder::new(mac(self.sender()), mac(kind.to));
        let vlan = |n| VlanId::new(n).unwrap();
        let frame = match kind.marks {
            0 => frame.vlan(vlan(10)),
            1 => frame.vlan(vlan(20)).vlan(vlan(7)),
            2 => frame.vlan(vlan(20)),
            3 => frame.dscp(46),
            _ => frame,
        };
        let frame = frame.ip(source, destination);
        if kind.rest == 0 && !is_v6 {
            // An error about a packet in the other direction.
            let kind = Kind { is_reply: !kind.is_reply, marks: 7, rest: 7, ..kind };
            let about = Self { kind, ..*self }.bytes();
            let message = [&[3, 1, 0, 0, 0, 0, 0, 0], &about[14..42]].concat();
            return frame.protocol(IpProto::ICMP).payload(&message).to_vec().unwrap();
        }
        let frame = frame.payload(b"sixteen bytes...");
        let tcp = |flags| frame.tcp(from, to, flags).numbers(100, 100).to_vec().unwrap();
        match (protocol, kind.rest) {
            (IpProto::TCP, 1) => tcp(TcpFlags::SYN),
            (IpProto::TCP, 2) => tcp(TcpFlags::ACK | TcpFlags::PSH),
            (IpProto::TCP, 3) => tcp(TcpFlags::RST),
            (IpProto::TCP, _) => tcp(TcpFlags::ACK),
            (IpProto::ICMP, rest) => {
                let mut bytes = frame.echo(kind.is_reply, ports.0, 1).to_vec().unwrap();
                let code = bytes.len() - 16 - 8 + 1;
                bytes[code] = u8::from(rest == 2);
                bytes
            }
            (_, 1) => frame.fragment(7, 0, true).udp(from, to).to_vec().unwrap(),
            (_, 2) => frame.fragment(7, 24, false).protocol(IpProto::UDP).to_vec().unwrap(),
            _ => frame.udp(from, to).to_vec().unwrap(),
        }
    }

    /// The last byte of its source address.
    const fn sender(&self) -> u8 {
        if self.kind.is_reply { 5 } else { self.ends.inside }
    }

    /// The port that receives it, if the hosts have moved on by so many ports.
    fn port(&self, moved: u8) -> usize {
        usize::from(self.sender() + moved) % 3
    }
}

fn ends() -> impl Strategy<Value = Ends> {
    let ports = (1000..1002u16, select(vec![53u16, 80, 8080]));
    let protocol = select(vec![IpProto::TCP, IpProto::UDP, IpProto::UDP, IpProto::ICMP]);
    (0..3u8, prop::bool::weighted(0.2), protocol, ports, any::<bool>()).prop_map(
        |(inside, is_v6, protocol, ports, is_outside)| Ends { inside, is_v6, protocol, ports, is_outside },
    )
}

fn kind() -> impl Strategy<Value = Kind> {
    // The host that the packet is for, or another one.
    let to = prop_oneof![2 => Just(5u8), 1 => Just(2u8), 1 => 0..6u8];
    (any::<bool>(), to, 0..8u8, 0..6u8).prop_map(|(is_reply, to, marks, rest)| Kind {
        is_reply,
        to,
        marks,
        rest,
    })
}

/// Frames of few connections and few kinds, so that connections have several packets of each.
fn frames() -> impl Strategy<Value = Vec<Frame>> {
    let chosen = vec(any::<[prop::sample::Index; 2]>(), 10..50);
    (vec(ends(), 1..3), vec(kind(), 2..6), chosen).prop_map(|(ends, kinds, chosen)| {
        let frame = |[n, m]: &[prop::sample::Index; 2]| Frame { ends: *n.get(&ends), kind: *m.get(&kinds) };
        chosen.iter().map(frame).collect()
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let rules = || subsequence(RULES.to_vec(), 0..8);
    let step = prop_oneof![
        5 => (frames(), prop_oneof![4 => Just(0), 1 => 1..3u8])
            .prop_map(|(frames, moved)| Step::Frames(frames, moved)),
        1 => rules().prop_map(Step::Rules),
    ];
    (rules(), vec(step, 1..8))
        .prop_map(|(first, steps)| [Step::Rules(first)].into_iter().chain(steps).collect())
}

/// All that can be seen of a worker after a step.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    /// The frames that have left, by port.
    sent: Vec<Vec<Vec<u8>>>,
    /// By port, and reason.
    drops: Vec<u64>,
    connections: u32,
    begun: u64,
}

fn seen(rig: &Rig) -> Seen {
    let drops = |port: usize| DropReason::ALL.iter().map(move |reason| rig.dropped_at(port, *reason));
    let table = &rig.worker.dp.connections.as_ref().unwrap().table;
    Seen {
        sent: (0..3).map(|port| rig.sent(port)).collect(),
        drops: (0..3).flat_map(drops).collect(),
        connections: table.len(),
        begun: table.begun(),
    }
}

/// Packets of which the worker has found the decision in their connections.
fn decided(rig: &Rig) -> u64 {
    rig.worker.dp.connections.as_ref().unwrap().decided()
}

fn start(host: &Host) -> Rig {
    let mut rig = Rig::of(host);
    let table = WorkerConnections::new(&ConnectionsConfig::default(), Some(7)).unwrap();
    rig.command(Command::SetConnections(Some(Box::new(table))));
    rig
}

/// Two workers, of which the second one stores no decisions: a client watches its flows.
struct Both([Rig; 2]);

impl Both {
    fn start(host: &Host) -> Self {
        Self([start(host), start(host)])
    }

    /// Both do the same in one tick; what is seen of them is equal.
    fn agree(&mut self, tick: u64, step: impl Fn(&mut Rig)) -> bool {
        for (n, rig) in self.0.iter_mut().enumerate() {
            rig.tick(tick);
            if n == 1 {
                rig.worker.dp.flows.watch(rig.worker.dp.clock.tick);
            }
            step(rig);
        }
        seen(&self.0[0]) == seen(&self.0[1])
    }

    fn finish(&self) -> u64 {
        self.0.iter().for_each(Rig::assert_nothing_leaked);
        assert_eq!(decided(&self.0[1]), 0);
        decided(&self.0[0])
    }
}

/// Frames arrive in bursts of five: a connection begins with the first one, and stores in the second one.
fn receive(rig: &mut Rig, frames: &[Frame], moved: u8) {
    for frames in frames.chunks(5) {
        frames.iter().for_each(|frame| rig.receive(frame.port(moved), &frame.bytes()));
        while rig.turn() > 0 {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn workers_with_and_without_stored_decisions_do_the_same(
        ports in select(PORTS.to_vec()),
        has_nat in prop::bool::weighted(0.3),
        steps in steps(),
    ) {
        let host = |rules: &[&str]| with_rules(ports, rules, has_nat);
        let mut both = Both::start(&host(&[]));
        // More than a second passes between steps, so that addresses may move.
        for (tick, step) in (10..).step_by(13).zip(&steps) {
            let agree = both.agree(tick, |rig| match step {
                Step::Frames(frames, moved) => receive(rig, frames, *moved),
                Step::Rules(rules) => rig.apply(&host(rules)),
            });
            prop_assert!(agree, "{:?}", step);
        }
        both.finish();
    }
}

/// All kinds of packets of a connection.
fn all_kinds() -> impl Iterator<Item = Kind> {
    (0..5u8).flat_map(|marks| {
        let of = move |rest: u8| [5, 2].map(|to| Kind { is_reply: false, to, marks, rest });
        (0..5u8).flat_map(of).flat_map(|kind| [kind, Kind { is_reply: true, ..kind }])
    })
}

#[test]
fn each_field_that_a_rule_reads_decides_anew() {
    for rule in RULES {
        let mut both = Both::start(&with_rules(PORTS[0], &[rule], false));
        for (n, protocol) in (1..).zip([IpProto::TCP, IpProto::UDP, IpProto::ICMP]) {
            let ends = |inside, ports| Ends { inside, is_v6: false, protocol, ports, is_outside: false };
            for (m, ends) in (1..).zip([ends(0, (1000, 80)), ends(2, (1001, 53))]) {
                let agree = both.agree(100 * n + 20 * m, |rig| {
                    let frames = all_kinds().map(|kind| Frame { ends, kind });
                    for frame in frames {
                        // Whatever the first frame of its direction has stored.
                        let plain = Kind { marks: 7, rest: 5, to: 5, ..frame.kind };
                        let first = [Frame { kind: plain, ..frame }; 2];
                        [&first[..], &[frame], &[frame], &first].iter().for_each(|it| receive(rig, it, 0));
                    }
                });
                assert!(agree, "{protocol:?} {rule}");
            }
        }
        assert!(both.finish() > 500, "{rule}");
    }
}

#[test]
fn a_connection_stores_the_decision_of_each_direction_until_rules_change() {
    let mut rig = tracking(&client_and_server(), &ConnectionsConfig::default());
    let (query, answer) = (udp(1, 2, 53), back().udp(53, 1000).to_vec().unwrap());
    let both = |rig: &mut Rig| {
        let before = decided(rig);
        assert!(passes(rig, 0, &query) && passes(rig, 1, &answer));
        decided(rig) - before
    };
    // New, then established: the state matters to the rules.
    assert_eq!([(); 4].map(|()| both(&mut rig)), [0, 1, 2, 2]);
    let hits = rig.worker.dp.flows.cache.counters().hits;
    assert_eq!(both(&mut rig), 2);
    assert_eq!(rig.worker.dp.flows.cache.counters().hits, hits, "the flow cache is not asked");
    let denied = format!("{}[[rule]]\nfrom = \"p0\"\ndrop = true\n", client_and_server());
    rig.apply(&host(&denied));
    assert!(!passes(&mut rig, 0, &query));
    assert!(!passes(&mut rig, 0, &query));
    assert_eq!(rig.dropped_at(0, DropReason::Rule), 2);
    rig.apply(&host(&client_and_server()));
    assert_eq!([(); 2].map(|()| both(&mut rig)), [0, 2]);
    rig.assert_nothing_leaked();
}

#[test]
fn in_a_mixed_burst_each_packet_gets_its_own_decision() {
    let rules = "[[rule]]\nmatch = { protocol = \"udp\", destination_ports = \"2000-2999\" }\ndrop = true\n";
    let mut rig = tracking(&format!("{}{rules}", client_and_server()), &ConnectionsConfig::default());
    let known: Vec<_> = (0..10).map(|n| udp(1, 2, 1000 + n)).collect();
    for _ in 0..3 {
        known.iter().for_each(|frame| rig.receive(0, frame));
        rig.turn();
        assert_eq!(rig.sent(1), known);
    }
    let before = decided(&rig);
    for n in 0..10u16 {
        rig.receive(0, &udp(1, 2, 2000 + n));
        rig.receive(0, &known[usize::from(n)]);
        rig.receive(0, &udp(1, 2, 3000 + n));
    }
    rig.turn();
    let expected: Vec<_> = (0..10).flat_map(|n| [udp(1, 2, 1000 + n), udp(1, 2, 3000 + n)]).collect();
    assert_eq!(rig.sent(1), expected);
    assert_eq!((decided(&rig) - before, rig.dropped_at(0, DropReason::Rule)), (10, 10));
    rig.assert_nothing_leaked();
}

#[test]
fn a_moved_address_is_followed_by_connections_that_have_stored_where_it_was() {
    let host = with_rules(PORTS[0], &[], false);
    let mut rig = start(&host);
    let talk = |rig: &mut Rig, tick: u64, server: usize| {
        rig.tick(tick);
        rig.receive(server, &back().udp(53, 1000).to_vec().unwrap());
        rig.turn();
        rig.receive(0, &udp(1, 2, 53));
        rig.turn();
        let sent: Vec<_> = (0..3).map(|port| rig.sent(port).len()).collect();
        sent
    };
    // The first frame is flooded.
    assert_eq!(talk(&mut rig, 10, 1), [1, 1, 1]);
    (11..15).for_each(|tick| assert_eq!(talk(&mut rig, tick, 1), [1, 1, 0]));
    (15..20).for_each(|tick| assert_eq!(talk(&mut rig, tick, 2), [1, 0, 1]));
    // An address that has moved stays for a while.
    (100..102).for_each(|tick| assert_eq!(talk(&mut rig, tick, 1), [1, 1, 0]));
    assert!(decided(&rig) > 10);
    rig.assert_nothing_leaked();
}
