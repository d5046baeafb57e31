// SPDX-License-Identifier: Apache-2.0
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::*;
use clap::Parser;
use netlib::sim::Simulator;
use netvm_nf_common::testing::{self, base, built};
use netvm_nf_common::{Lines, Live};
use netvm_wire::{FiveTuple, IpProto, MacAddr, TcpFlags};
use proptest::prelude::*;

const LAN: PortId = PortId(0);
const WAN: PortId = PortId(1);

struct Bench {
    simulator: Simulator,
    nf: Firewall,
    text: Arc<Mutex<String>>,
    live: Arc<Live<Rules>>,
}

impl Bench {
    fn new(rules: &str, args: &[&str]) -> Self {
        let text = Arc::new(Mutex::new(rules.to_owned()));
        let source = Arc::clone(&text);
        let read =
            move || Rules::from_lines(&Lines::from_text(Path::new("r"), source.lock().unwrap().as_str()));
        let live = Live::new(read).unwrap();
        let simulator = Simulator::new(&["lan", "wan"], &[]).unwrap();
        let args = Args::try_parse_from([&["nf", "--rules", "r"], args].concat()).unwrap();
        let states = args.stateful.then(|| States::new(args.flows as usize, args.timeout));
        let nf = Firewall::new(args, live.view(), states, &simulator.context());
        Self { simulator, nf, text, live }
    }

    fn passes(&mut self, ingress: PortId, frame: &[u8]) -> bool {
        let outcome = self.simulator.inject(&mut self.nf, ingress, frame);
        assert_eq!(outcome.bytes, frame, "a firewall changes nothing");
        match outcome.verdict {
            Verdict::Next => true,
            Verdict::Drop => false,
            other => panic!("{other:?}"),
        }
    }

    fn counter(&self, name: &str) -> u64 {
        let mut counters = [0; MAX_COUNTERS];
        self.nf.report(&mut counters);
        counters[COUNTERS.iter().position(|counter| *counter == name).unwrap()]
    }

    /// Replaces the rules, as SIGHUP does.
    fn reload(&mut self, rules: &str) {
        *self.text.lock().unwrap() = rules.to_owned();
        let before = self.live.view().generation();
        self.live.request().store(true, std::sync::atomic::Ordering::Relaxed);
        self.nf.tick();
        testing::until("the rules are read again", || self.live.view().generation() != before);
    }
}

#[test]
fn the_first_rule_that_matches_counts() {
    let rules = "deny tcp from any to 10.0.0.2 port 80\n\
                 allow tcp from 10.0.0.0/24 to any\n\
                 allow udp from any to any port 53 in wan\n";
    let mut bench = Bench::new(rules, &[]);
    assert!(!bench.passes(LAN, &testing::tcp("10.0.0.1:9", "10.0.0.2:80", b"")));
    assert!(bench.passes(LAN, &testing::tcp("10.0.0.1:9", "10.0.0.2:81", b"")));
    assert!(bench.passes(LAN, &testing::tcp("10.0.0.1:9", "10.0.0.2:81", b"again")));
    assert!(!bench.passes(LAN, &testing::tcp("10.0.1.1:9", "10.0.0.2:81", b"")), "by default");
    let dns = testing::udp("10.0.0.1:9", "10.0.0.2:53", b"");
    assert!(bench.passes(WAN, &dns) && !bench.passes(LAN, &dns));
    let counted = ["allowed", "denied", "decided", "rules"].map(|name| bench.counter(name));
    assert_eq!(counted, [3, 3, 5, 3]);
    assert!(
        Bench::new(rules, &["--default", "allow"]).passes(LAN, &testing::echo("10.0.1.1:0", "10.0.0.2:0"))
    );
}

#[test]
fn other_traffic_has_separate_options() {
    let arp = built(
        &netvm_wire::FrameBuilder::new(testing::ALICE, MacAddr::BROADCAST)
            .arp_request([10, 0, 0, 1].into(), [10, 0, 0, 2].into()),
    );
    let lldp = built(
        &netvm_wire::FrameBuilder::new(testing::ALICE, testing::BOB)
            .ether_type(EtherType(0x88cc))
            .payload(&[0; 46]),
    );
    let discovery = |kind: u8, hop_limit: u8| {
        let mut message = [0; 24];
        message[0] = kind;
        let base = base("[fe80::1]:0", "[ff02::1]:0");
        built(&base.protocol(IpProto::ICMPV6).ttl(hop_limit).payload(&message))
    };
    let (solicitation, redirect, far) = (discovery(135, 255), discovery(137, 255), discovery(135, 64));
    let runt = vec![0; 13];
    let mut bench = Bench::new("", &[]);
    let frames = [&arp, &solicitation, &redirect, &far, &lldp, &runt];
    let passed: Vec<_> = frames.iter().map(|frame| bench.passes(LAN, frame)).collect();
    assert_eq!(passed, [true, true, false, false, false, false]);
    let counted = ["neighbours", "denied", "other", "malformed"].map(|name| bench.counter(name));
    assert_eq!(counted, [2, 2, 1, 1]);
    let mut bench = Bench::new("", &["--neighbours", "drop", "--other", "pass", "--malformed", "pass"]);
    let passed: Vec<_> = frames.iter().map(|frame| bench.passes(LAN, frame)).collect();
    assert_eq!(passed, [false, false, false, false, true, true]);
}

#[test]
fn only_with_state_does_return_traffic_pass() {
    let rules = "allow tcp from 10.0.0.0/24 to any port 80";
    let there = testing::tcp("10.0.0.1:999", "192.0.2.1:80", b"GET");
    let back = testing::tcp("192.0.2.1:80", "10.0.0.1:999", b"200");
    let forged = testing::tcp("192.0.2.1:80", "10.0.0.1:998", b"200");
    let mut bench = Bench::new(rules, &[]);
    assert!(bench.passes(LAN, &there) && !bench.passes(WAN, &back));
    let mut bench = Bench::new(rules, &["--stateful"]);
    assert!(!bench.passes(WAN, &back), "before the flow exists");
    assert!(bench.passes(LAN, &there) && bench.passes(WAN, &back) && bench.passes(LAN, &there));
    assert!(!bench.passes(WAN, &forged));
    bench.nf.tick();
    let counted = ["allowed", "established", "denied", "states"].map(|name| bench.counter(name));
    assert_eq!(counted, [1, 2, 2, 1]);
}

#[test]
fn a_silent_flow_loses_its_state() {
    let mut bench = Bench::new("allow any from 10.0.0.1 to any", &["--stateful", "--timeout", "1"]);
    let there = testing::echo("10.0.0.1:0", "10.0.0.2:0");
    let back = testing::echo("10.0.0.2:0", "10.0.0.1:0");
    assert!(bench.passes(LAN, &there) && bench.passes(WAN, &back));
    bench.simulator.advance(&mut bench.nf, Duration::from_millis(1100));
    assert!(!bench.passes(WAN, &back));
}

#[test]
fn states_are_shared_by_threads() {
    let mut bench = Bench::new("allow any from 10.0.0.1 to any", &["--stateful"]);
    let context = bench.simulator.context();
    let mut second =
        Firewall::new(bench.nf.args.clone(), bench.live.view(), bench.nf.states.clone(), &context);
    assert!(bench.passes(LAN, &testing::echo("10.0.0.1:0", "10.0.0.2:0")));
    let back = testing::echo("10.0.0.2:0", "10.0.0.1:0");
    assert_eq!(bench.simulator.inject(&mut second, WAN, &back).verdict, Verdict::Next);
}

#[test]
fn new_rules_end_what_they_deny_and_keep_the_rest() {
    let mut bench = Bench::new("allow tcp from any to any port 80-81", &["--stateful"]);
    let there = |port: u16| testing::tcp("10.0.0.1:999", &format!("10.0.0.2:{port}"), b"");
    let back = |port: u16| testing::tcp(&format!("10.0.0.2:{port}"), "10.0.0.1:999", b"");
    for port in [80, 81] {
        assert!(bench.passes(LAN, &there(port)) && bench.passes(WAN, &back(port)));
    }
    bench.reload("allow tcp from any to any port 81");
    assert!(!bench.passes(WAN, &back(80)) && !bench.passes(LAN, &there(80)));
    assert!(bench.passes(WAN, &back(81)) && bench.passes(LAN, &there(81)));
}

#[test]
fn fragments_follow_their_rules() {
    let mut bench = Bench::new("allow udp from any to 10.0.0.2 port 53", &[]);
    let fragment = |to: &str, offset| {
        built(&base("10.0.0.1:0", to).udp(9, 53).payload(&[0; 64]).fragment(7, offset, true))
    };
    assert!(bench.passes(LAN, &fragment("10.0.0.2:0", 0)) && bench.passes(LAN, &fragment("10.0.0.2:0", 64)));
    assert!(
        !bench.passes(LAN, &fragment("10.0.0.3:0", 0)) && !bench.passes(LAN, &fragment("10.0.0.3:0", 64))
    );
}

/// A frame of the tuple; `None` for one that is not of one of the kinds below.
fn frame_of(tuple: &FiveTuple) -> Vec<u8> {
    let text = |address: std::net::IpAddr, port| std::net::SocketAddr::new(address, port).to_string();
    let from = text(tuple.source.to_ip(), tuple.source_port);
    let to = text(tuple.destination.to_ip(), tuple.destination_port);
    match tuple.protocol {
        IpProto::TCP => testing::tcp(&from, &to, b""),
        IpProto::UDP => testing::udp(&from, &to, b""),
        other => built(&base(&from, &to).protocol(other).payload(&[0; 20])),
    }
}

fn tuple() -> impl Strategy<Value = FiveTuple> {
    let address = |last: u8| std::net::IpAddr::from([10, 0, last % 3, last]);
    let protocol = prop::sample::select(vec![IpProto::TCP, IpProto::UDP, IpProto::GRE]);
    (any::<u8>(), any::<u8>(), 1u16..6, 1u16..6, protocol).prop_map(move |(a, b, from, to, protocol)| {
        let ports = if protocol.has_ports() { (from, to) } else { (0, 0) };
        FiveTuple::new((address(a), ports.0), (address(b), ports.1), protocol)
    })
}

fn rule() -> impl Strategy<Value = String> {
    let net = prop::sample::select(vec![
        "any",
        "10.0.0.0/8",
        "10.0.1.0/24",
        "10.0.2.128/25",
        "10.0.0.3",
        "10.0.1.7",
    ]);
    let ports = prop::sample::select(vec!["", " port 1", " port 2-3", " port 5-9"]);
    let ported = (prop::sample::select(vec!["tcp", "udp"]), ports.clone(), ports)
        .prop_map(|(protocol, a, b)| (protocol, a, b));
    let any =
        prop_oneof![3 => ported, 1 => prop::sample::select(vec!["any", "gre"]).prop_map(|p| (p, "", ""))];
    let action = prop::sample::select(vec!["allow", "deny"]);
    let ingress = prop::sample::select(vec!["", " in lan", " in wan", " in gone"]);
    (action, any, net.clone(), net, ingress).prop_map(|(action, (protocol, a, b), from, to, ingress)| {
        format!("{action} {protocol} from {from}{a} to {to}{b}{ingress}")
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Compares small caches with a scan of all rules for each packet.
    #[test]
    fn the_cache_changes_no_decision(
        rules in prop::collection::vec(rule(), 0..12),
        packets in prop::collection::vec((tuple(), any::<bool>()), 1..80),
    ) {
        let mut bench = Bench::new(&rules.join("\n"), &["--flows", "8"]);
        let rules: Vec<crate::Rule> = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        for (tuple, wan) in packets {
            let (ingress, name) = if wan { (WAN, "wan") } else { (LAN, "lan") };
            let subject = Subject::new(tuple, netvm_wire::Fragment::Whole, ingress.0);
            let first = rules.iter().find(|rule| rule.matches(&subject, rule.ingress.as_deref() == Some(name)));
            let expected = first.is_some_and(|rule| rule.action == Action::Allow);
            prop_assert_eq!(bench.passes(ingress, &frame_of(&tuple)), expected, "{} by {}", tuple, name);
        }
    }

    #[test]
    fn no_bytes_harm_it(frames in testing::hostile()) {
        let mut bench = Bench::new("allow tcp from 10.0.0.0/8 to any in lan\nallow icmp from any to any", &["--stateful"]);
        let outcomes = testing::survives(&mut bench.simulator, &mut bench.nf, &frames);
        prop_assert!(outcomes.iter().zip(&frames).all(|(outcome, frame)| outcome.bytes == *frame));
    }
}

#[test]
fn states_of_echoes_go_by_identifier_and_only_requests_begin_them() {
    let mut bench = Bench::new(
        "allow icmp from 10.0.0.0/24 to any in lan\nallow udp from any to any in lan\n",
        &["--stateful"],
    );
    let echo = |from: &str, to: &str, reply, id| built(&base(from, to).echo(reply, id, 1));
    let (inside, outside) = ("10.0.0.1:0", "192.0.2.1:0");
    assert!(!bench.passes(WAN, &echo(outside, inside, true, 7)), "nobody asked");
    assert!(bench.passes(LAN, &echo(inside, outside, true, 7)), "a rule allows it");
    assert!(!bench.passes(WAN, &echo(outside, inside, true, 7)), "an answer is no question");
    assert!(bench.passes(LAN, &echo(inside, outside, false, 7)));
    assert!(bench.passes(WAN, &echo(outside, inside, true, 7)));
    assert!(!bench.passes(WAN, &echo(outside, inside, true, 8)), "another identifier");
    // A redirect (type 5) between the same addresses.
    let redirect = |from: &str, to: &str| {
        let message = [5, 1, 0, 0, 192, 0, 2, 9, 0, 0, 0, 0];
        built(&base(from, to).protocol(IpProto::ICMP).payload(&message))
    };
    assert!(!bench.passes(WAN, &redirect(outside, inside)));
    // An error about an allowed flow comes from any router on its way; one about an unknown flow does not pass.
    let about = |port: u16| {
        let quoted = testing::udp(&format!("10.0.0.1:{port}"), "192.0.2.1:53", b"");
        let mut message = vec![3, 4, 0, 0, 0, 0, 5, 0];
        message.extend_from_slice(&quoted[14..14 + 28]);
        built(&base("198.51.100.1:0", inside).protocol(IpProto::ICMP).payload(&message))
    };
    assert!(bench.passes(LAN, &testing::udp("10.0.0.1:4000", "192.0.2.1:53", b"")));
    assert!(bench.passes(WAN, &about(4000)) && !bench.passes(WAN, &about(4001)));
}

#[test]
fn tcp_without_a_beginning_does_not_pass() {
    let mut bench = Bench::new("allow tcp from any to 10.0.0.1 port 80\n", &["--stateful"]);
    let (outside, inside) = ("192.0.2.1:9", "10.0.0.1:80");
    let with = |flags| built(&base(outside, inside).tcp(9, 80, flags));
    let flags = |bits: u8| TcpFlags::from_bits_retain(bits);
    let (fin, syn, rst, psh, ack, urg) = (1, 2, 4, 8, 16, 32);
    // Scans: FIN, none, all but ACK, and two that no TCP sends.
    for bits in [fin, 0, fin | psh | urg, syn | fin, syn | rst] {
        assert!(!bench.passes(WAN, &with(flags(bits))), "{bits:#x}");
    }
    // Ends and answers of connections that nobody knows.
    for bits in [fin | ack, rst, rst | ack, syn | ack] {
        assert!(!bench.passes(WAN, &with(flags(bits))), "{bits:#x}");
    }
    assert_eq!(bench.counter("invalid"), 9);
    for bits in [syn, ack, fin | ack] {
        assert!(bench.passes(WAN, &with(flags(bits))), "{bits:#x}");
    }
    assert!(!bench.passes(WAN, &with(flags(fin))), "not even in a connection");
}

#[test]
fn states_of_the_engine_are_used_where_it_tracks() {
    let mut bench = Bench::new("allow tcp from any to any in lan\n", &["--stateful"]);
    let request = testing::tcp("10.0.0.1:9", "10.0.0.2:80", b"request");
    let answer = testing::tcp("10.0.0.2:80", "10.0.0.1:9", b"answer");
    assert!(!bench.passes(WAN, &answer), "without the engine, it answers nothing");
    for (state, passes) in [
        (ConnState::New, false),
        (ConnState::Established, true),
        (ConnState::Related, true),
        (ConnState::Invalid, false),
    ] {
        bench.simulator.set_state(state);
        assert_eq!(bench.passes(WAN, &answer), passes, "{state:?}");
    }
    bench.simulator.set_state(ConnState::New);
    assert!(bench.passes(LAN, &request));
    bench.nf.tick();
    let counted = ["allowed", "established", "invalid", "states"].map(|name| bench.counter(name));
    assert_eq!(counted, [1, 2, 1, 0], "the NF keeps no state of its own");
}

#[test]
fn senders_of_rejected_packets_get_resets_or_errors_at_a_bounded_rate() {
    let rules = "reject tcp from any to any port 25\nreject udp from any to any\nallow any from any to any\n";
    for args in [&[][..], &["--stateful"]] {
        let mut bench = Bench::new(rules, args);
        let syn = built(&base("10.0.0.1:9", "10.0.0.2:25").tcp(9, 25, TcpFlags::SYN));
        let datagram = testing::udp("[fd00::1]:9", "[fd00::2]:53", b"who?");
        for (frame, protocol) in [(&syn, IpProto::TCP), (&datagram, IpProto::ICMPV6)] {
            let sent = bench.simulator.exchange(&mut bench.nf, &[(WAN, frame)]);
            let [answer, dropped] = &sent[..] else { panic!("{sent:?}") };
            assert_eq!((dropped.verdict, &dropped.bytes), (Verdict::Drop, frame));
            let (asked, headers) =
                (netvm_wire::parse(frame).unwrap(), netvm_wire::parse(&answer.bytes).unwrap());
            assert_eq!((answer.verdict, headers.key().protocol), (Verdict::Port(WAN), protocol));
            assert_eq!(headers.key().destination, asked.key().source);
            assert_eq!(netvm_wire::checksum::verify(&answer.bytes, &headers), Ok(()));
        }
        assert_eq!(bench.simulator.exchange(&mut bench.nf, &vec![(WAN, &syn[..]); 200]).len(), 200 + 98);
        bench.simulator.advance(&mut bench.nf, Duration::from_millis(100));
        assert_eq!(bench.simulator.exchange(&mut bench.nf, &[(WAN, &syn[..])]).len(), 2);
        assert_eq!((bench.counter("denied"), bench.counter("answered")), (203, 101));
    }
}
