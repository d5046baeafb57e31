//! `nft -j list ruleset`: every field and comparison, sets, chains, what has no equivalent, wrong input.

#![allow(clippy::unwrap_used, clippy::panic, clippy::needless_pass_by_value, reason = "tests")]

use netvm_policy::import::nft::{NftError, parse};
use netvm_policy::import::{Imported, ImportedRule, Interfaces, Why};
use netvm_policy::{Masked, Match, Police, PortId, Rate, Span, Verdict};
use netvm_wire::{EtherType, Fragment, IpProto, PortRange};
use proptest::prelude::*;
use serde_json::{Value, json};

fn interfaces() -> Interfaces {
    Interfaces::new([("eth0", PortId(0)), ("eth1", PortId(1)), ("tap0", PortId(2))])
}

fn ruleset(objects: Vec<Value>) -> String {
    let metainfo = json!({"metainfo": {"version": "1.0.6", "json_schema_version": 1}});
    let all = [vec![metainfo], objects].concat();
    json!({"nftables": all}).to_string()
}

fn read(objects: Vec<Value>) -> Imported {
    parse(&ruleset(objects), &interfaces()).unwrap_or_else(|error| panic!("{error}"))
}

fn base(family: &str, policy: &str) -> Value {
    json!({"chain": {"family": family, "table": "t", "name": "forward", "handle": 1, "type": "filter", "hook": "forward",
        "prio": 0, "policy": policy}})
}

fn chain(family: &str, name: &str) -> Value {
    json!({"chain": {"family": family, "table": "t", "name": name, "handle": 2}})
}

fn rule(family: &str, chain: &str, statements: Value) -> Value {
    json!({"rule": {"family": family, "table": "t", "chain": chain, "handle": 7, "expr": statements}})
}

/// A table of a family whose chain has one rule that drops; sets and limits for it.
fn one_rule(family: &str, statements: Vec<Value>) -> Imported {
    let set = |name: &str, kind: &str, elements: Value| json!({"set": {"family": family, "table": "t", "name": name, "type": kind, "handle": 3, "elem": elements}});
    read(vec![
        json!({"table": {"family": family, "name": "t", "handle": 1}}),
        set(
            "ports",
            "inet_service",
            json!([22, {"range": [80, 90]}, {"elem": {"val": 443, "comment": "tls"}}]),
        ),
        set("nets", "ipv4_addr", json!([{"prefix": {"addr": "10.0.0.0", "len": 8}}, "192.0.2.1"])),
        json!({"set": {"family": family, "table": "t", "name": "seen", "type": "ipv4_addr", "handle": 4, "timeout": 60}}),
        json!({"set": {"family": family, "table": "t", "name": "empty", "type": "ipv4_addr", "handle": 4}}),
        json!({"limit": {"family": family, "table": "t", "name": "lim", "handle": 4, "rate": 10, "per": "second", "burst": 5}}),
        base(family, "accept"),
        chain(family, "web"),
        rule(family, "web", json!([compare("==", payload("tcp", "dport"), json!(80)), {"drop": null}])),
        rule(family, "forward", Value::Array(statements)),
    ])
}

/// The matches of a rule that drops, without a note.
fn all(family: &str, matches: &[Value]) -> Vec<Match> {
    let statements = matches.iter().cloned().chain([json!({"drop": null})]).collect();
    let imported = one_rule(family, statements);
    let said: Vec<_> =
        imported.notes.iter().filter(|note| note.why != Why::Egress && note.why != Why::Unreached).collect();
    assert!(said.is_empty(), "{said:?}");
    let dropped = |rule: &ImportedRule| rule.actions.verdict == Some(Verdict::Drop);
    imported.rules.into_iter().filter(dropped).map(|rule| rule.matches).collect()
}

fn one(family: &str, matches: &[Value]) -> Match {
    let [matches] = &all(family, matches)[..] else { panic!("{:?}", all(family, matches)) };
    matches.clone()
}

/// Why the rule is left out.
fn why(family: &str, statements: Vec<Value>) -> (String, Why) {
    let imported = one_rule(family, statements);
    assert!(imported.rules.iter().all(|rule| rule.name == "policy of forward"), "{:?}", imported.rules);
    let note = imported.notes.iter().find(|note| note.why != Why::Unreached).unwrap();
    let what = note.what.replace(&format!("rule 7 of chain {family} t forward: "), "");
    (what, note.why)
}

fn compare(op: &str, left: Value, right: Value) -> Value {
    json!({"match": {"op": op, "left": left, "right": right}})
}

fn equal(left: Value, right: Value) -> Value {
    compare("==", left, right)
}

fn payload(protocol: &str, field: &str) -> Value {
    json!({"payload": {"protocol": protocol, "field": field}})
}

fn meta(key: &str) -> Value {
    json!({"meta": {"key": key}})
}

fn nets(list: &[&str]) -> Vec<netvm_wire::IpNet> {
    list.iter().map(|net| net.parse().unwrap()).collect()
}

fn ports(list: &[(u16, u16)]) -> Vec<PortRange> {
    list.iter().map(|(first, last)| PortRange::new(*first, *last).unwrap()).collect()
}

fn ip() -> Match {
    Match { ether_type: vec![EtherType::IPV4, EtherType::IPV6], ..Match::default() }
}

fn v4() -> Match {
    Match { ether_type: vec![EtherType::IPV4], ..Match::default() }
}

fn tcp() -> Match {
    Match { protocol: vec![IpProto::TCP], ..ip() }
}

fn span<T>(first: T, last: T) -> Span<T> {
    Span { first, last }
}

const NOT_LATER: [Fragment; 2] = [Fragment::Whole, Fragment::First];

#[test]
fn addresses() {
    let source = |op, right| one("inet", &[compare(op, payload("ip", "saddr"), right)]);
    assert_eq!(source("==", json!("10.0.0.1")), Match { source: nets(&["10.0.0.1"]), ..v4() });
    assert_eq!(source("==", json!({"prefix": {"addr": "10.0.0.0", "len": 8}})).source, nets(&["10.0.0.0/8"]));
    assert_eq!(
        source("!=", json!({"prefix": {"addr": "128.0.0.0", "len": 1}})),
        Match { source: nets(&["0.0.0.0/1"]), ..v4() }
    );
    assert_eq!(
        source("==", json!({"range": ["10.0.0.1", "10.0.0.3"]})).source,
        nets(&["10.0.0.1", "10.0.0.2/31"])
    );
    assert_eq!(
        source("==", json!({"set": ["10.0.0.1", {"prefix": {"addr": "10.1.0.0", "len": 16}}]})).source,
        nets(&["10.0.0.1", "10.1.0.0/16"])
    );
    assert_eq!(source("==", json!("@nets")).source, nets(&["10.0.0.0/8", "192.0.2.1"]));
    let others = source("!=", json!("@nets")).source;
    let has = |text: &str| others.iter().any(|net| net.contains(text.parse::<std::net::IpAddr>().unwrap()));
    assert_eq!(["10.0.0.0", "192.0.2.1", "192.0.2.0", "11.0.0.0"].map(has), [false, false, true, true]);
    assert_eq!(source("!=", json!("@empty")), v4());
    let masked = json!({"&": [payload("ip", "saddr"), "255.255.0.0"]});
    assert_eq!(one("inet", &[equal(masked, json!("10.1.0.0"))]).source, nets(&["10.1.0.0/16"]));
    let masked = json!({"&": [payload("ip", "saddr"), "255.0.0.255"]});
    assert_eq!(
        why("inet", vec![equal(masked, json!("10.0.0.1")), json!({"drop": null})]),
        ("ip saddr".into(), Why::Mask)
    );
    let six =
        one("inet", &[equal(payload("ip6", "daddr"), json!({"prefix": {"addr": "fe80::", "len": 10}}))]);
    assert_eq!((six.destination, six.ether_type), (nets(&["fe80::/10"]), vec![EtherType::IPV6]));
    let arp = one("bridge", &[equal(payload("arp", "saddr ip"), json!("10.0.0.1"))]);
    assert_eq!((arp.source, arp.ether_type), (nets(&["10.0.0.1"]), vec![EtherType::ARP]));
    // The family of a table says it as well.
    assert_eq!(one("ip", &[]), v4());
    assert_eq!(one("inet", &[]), ip());
    assert_eq!(one("bridge", &[]), Match::default());
}

#[test]
fn ports_and_protocols() {
    let dport = |op, right| one("inet", &[compare(op, payload("tcp", "dport"), right)]);
    assert_eq!(dport("==", json!(80)), Match { destination_ports: ports(&[(80, 80)]), ..tcp() });
    assert_eq!(
        dport("==", json!({"set": [22, {"range": [80, 90]}]})).destination_ports,
        ports(&[(22, 22), (80, 90)])
    );
    assert_eq!(dport("==", json!("@ports")).destination_ports, ports(&[(22, 22), (80, 90), (443, 443)]));
    let low = Match { destination_ports: ports(&[(0, 1023)]), fragment: NOT_LATER.into(), ..tcp() };
    assert_eq!(dport("<", json!(1024)), low);
    assert_eq!(dport("<=", json!(1023)), low);
    assert_eq!(dport(">=", json!(1024)).destination_ports, ports(&[(1024, 65535)]));
    assert_eq!(dport(">", json!(1023)).destination_ports, ports(&[(1024, 65535)]));
    assert_eq!(
        dport("!=", json!("@ports")).destination_ports,
        ports(&[(0, 21), (23, 79), (91, 442), (444, 65535)])
    );
    assert_eq!(
        one("ip", &[equal(payload("udp", "sport"), json!(53))]),
        Match { source_ports: ports(&[(53, 53)]), protocol: vec![IpProto::UDP], ..v4() }
    );
    let both = json!({"set": ["tcp", "udp"]});
    let th = one("inet", &[equal(meta("l4proto"), both), equal(payload("th", "dport"), json!(53))]);
    assert_eq!(th.protocol, [IpProto::TCP, IpProto::UDP]);
    let alone = one_rule("inet", vec![equal(payload("th", "dport"), json!(53)), json!({"drop": null})]);
    assert_eq!(alone.rules[0].matches.protocol, [IpProto::TCP, IpProto::UDP, IpProto::SCTP]);
    assert!(alone.notes.iter().any(|note| note.why == Why::SomePorts));
    assert_eq!(one("inet", &[equal(meta("l4proto"), json!(200))]).protocol, [IpProto(200)]);
    assert_eq!(one("inet", &[compare("!=", payload("ip", "protocol"), json!("tcp"))]).protocol.len(), 255);
    let next = one_rule("inet", vec![equal(payload("ip6", "nexthdr"), json!("tcp")), json!({"drop": null})]);
    assert_eq!(next.rules[0].matches, Match { ether_type: vec![EtherType::IPV6], ..tcp() });
    assert!(next.notes.iter().any(|note| note.why == Why::FirstHeader));
    assert_eq!(
        why("inet", vec![equal(payload("dccp", "dport"), json!(4)), json!({"drop": null})]).1,
        Why::NoPorts
    );
}

#[test]
fn flags_types_and_fragments() {
    let flags = |op, left, right| {
        let fits = all("inet", &[compare(op, left, right)]);
        fits.into_iter()
            .map(|fit| fit.tcp_flags.map(|flags| (flags.value, flags.mask)).unwrap_or_default())
            .collect::<Vec<_>>()
    };
    let field = || payload("tcp", "flags");
    let masked = json!({"&": [field(), ["fin", "syn", "rst", "ack"]]});
    assert_eq!(flags("==", masked.clone(), json!("syn")), [(2, 0x17)]);
    assert_eq!(
        flags("==", json!({"&": [field(), {"|": ["syn", "ack"]}]}), json!({"|": ["syn", "ack"]})),
        [(0x12, 0x12)]
    );
    assert_eq!(flags("!=", json!({"&": [field(), ["syn", "ack"]]}), json!("syn")), [(0x10, 0x10), (0, 0x12)]);
    assert_eq!(flags("in", field(), json!(["syn", "ack"])), [(2, 2), (0x10, 0x10)]);
    assert_eq!(flags("in", field(), json!("syn")), [(2, 2)]);
    assert_eq!(flags("!", field(), json!(["syn", "ack"])), [(0, 0x12)]);
    assert_eq!(flags("==", field(), json!("syn")), [(2, 0xff)]);
    assert_eq!(flags("==", field(), json!({"set": ["syn", ["syn", "ack"]]})), [(2, 0xff), (0x12, 0xff)]);
    assert_eq!(flags("!=", field(), json!("syn")).len(), 8);
    let icmp = |protocol, field, right| one("inet", &[equal(payload(protocol, field), right)]);
    let echo = icmp("icmp", "type", json!("echo-request"));
    assert_eq!(echo, Match { protocol: vec![IpProto::ICMP], icmp_type: vec![span(8, 8)], ..v4() });
    let reply = icmp("icmp", "type", json!({"set": ["echo-reply", "echo-request"]}));
    assert_eq!((reply.icmp_type, reply.fragment), (vec![span(0, 0), span(8, 8)], NOT_LATER.into()));
    assert_eq!(icmp("icmp", "code", json!("frag-needed")).icmp_code, [span(4, 4)]);
    let six = icmp("icmpv6", "code", json!({"range": ["admin-prohibited", "addr-unreachable"]}));
    assert_eq!((six.icmp_code, six.ether_type), (vec![span(1, 3)], vec![EtherType::IPV6]));
    assert_eq!(icmp("icmpv6", "type", json!("nd-neighbor-solicit")).icmp_type, [span(135, 135)]);
    let offset = |op, mask: u32| compare(op, json!({"&": [payload("ip", "frag-off"), mask]}), json!(0));
    assert_eq!(one("ip", &[offset("!=", 8191)]).fragment, [Fragment::Later]);
    assert_eq!(one("ip", &[offset("==", 8191)]).fragment, NOT_LATER);
    assert_eq!(
        why("ip", vec![offset("!=", 8192), json!({"drop": null})]),
        ("ip frag-off".into(), Why::Match)
    );
    let dscp = |op, right| one("ip", &[compare(op, payload("ip", "dscp"), right)]).dscp;
    assert_eq!(dscp("==", json!("ef")), [span(46, 46)]);
    assert_eq!(dscp("!=", json!({"set": ["cs1", 9]})), [span(0, 7), span(10, 63)]);
}

#[test]
fn layer_two() {
    let bridge = |matches: &[Value]| one("bridge", matches);
    let arp = bridge(&[equal(payload("ether", "type"), json!("arp"))]);
    assert_eq!(arp, Match { ether_type: vec![EtherType::ARP], vlan: vec![span(0, 0)], ..Match::default() });
    assert_eq!(bridge(&[equal(meta("protocol"), json!("ip"))]), v4());
    let tagged = bridge(&[equal(payload("vlan", "id"), json!({"set": [5, {"range": [7, 9]}]}))]);
    assert_eq!(tagged, Match { vlan: vec![span(5, 5), span(7, 9)], ..Match::default() });
    assert_eq!(bridge(&[compare("!=", payload("vlan", "id"), json!(5))]).vlan, [span(1, 4), span(6, 4094)]);
    let inner =
        bridge(&[equal(payload("vlan", "id"), json!(5)), equal(payload("vlan", "type"), json!("ip"))]);
    assert_eq!(inner, Match { vlan: vec![span(5, 5)], ..v4() });
    let tag =
        bridge(&[equal(payload("ether", "type"), json!("8021q")), equal(payload("vlan", "id"), json!(5))]);
    assert_eq!(tag, Match { vlan: vec![span(5, 5)], ..Match::default() });
    let mac = |op, left, right| bridge(&[compare(op, left, right)]).source_mac;
    let saddr = || payload("ether", "saddr");
    assert_eq!(
        mac("==", saddr(), json!("00:11:22:33:44:55")),
        [Masked::<u64>::new(0x0011_2233_4455, 0xffff_ffff_ffff)]
    );
    assert_eq!(
        mac("==", saddr(), json!({"range": ["00:11:22:33:44:00", "00:11:22:33:44:ff"]})),
        [Masked::<u64>::new(0x0011_2233_4400, 0xffff_ffff_ff00)]
    );
    assert_eq!(mac("!=", saddr(), json!("00:11:22:33:44:55")).len(), 48);
    let group = json!({"&": [saddr(), "01:00:00:00:00:00"]});
    assert_eq!(mac("==", group.clone(), json!("01:00:00:00:00:00")), [Masked::<u64>::new(1 << 40, 1 << 40)]);
    assert_eq!(mac("!=", group, json!("01:00:00:00:00:00")), [Masked::<u64>::new(0, 1 << 40)]);
    let broadcast = bridge(&[equal(payload("ether", "daddr"), json!("ff:ff:ff:ff:ff:ff"))]);
    assert_eq!(broadcast.destination_mac, [Masked::<u64>::new(0xffff_ffff_ffff, 0xffff_ffff_ffff)]);
    let operation = bridge(&[equal(payload("arp", "operation"), json!("reply"))]);
    assert_eq!((operation.arp_operation, operation.ether_type), (vec![span(2, 2)], vec![EtherType::ARP]));
    let drop = || json!({"drop": null});
    assert_eq!(
        why("bridge", vec![compare("!=", payload("ether", "type"), json!("arp")), drop()]).1,
        Why::Opposite
    );
    assert_eq!(why("bridge", vec![equal(payload("ether", "type"), json!("8021ad")), drop()]).1, Why::Match);
    // In IP tables, what is not IPv4 is IPv6.
    assert_eq!(one("inet", &[compare("!=", meta("protocol"), json!("ip"))]).ether_type, [EtherType::IPV6]);
    assert_eq!(one("inet", &[compare("!=", meta("nfproto"), json!("ipv6"))]).ether_type, [EtherType::IPV4]);
}

#[test]
fn interfaces_are_ports() {
    let places = |matches: &[Value]| {
        let matches = one("inet", matches);
        (
            matches.from.iter().map(|port| port.0).collect::<Vec<_>>(),
            matches.to.iter().map(|port| port.0).collect::<Vec<_>>(),
        )
    };
    assert_eq!(places(&[equal(meta("iifname"), json!("eth0"))]), (vec![0], vec![]));
    assert_eq!(places(&[equal(meta("iif"), json!("eth0"))]), (vec![0], vec![]));
    assert_eq!(places(&[equal(meta("iifname"), json!("eth*"))]), (vec![0, 1], vec![]));
    assert_eq!(
        places(&[compare("!=", meta("iifname"), json!({"set": ["eth0", "eth1"]}))]),
        (vec![2], vec![])
    );
    assert_eq!(places(&[equal(meta("oifname"), json!("eth1"))]), (vec![], vec![1]));
    let drop = || json!({"drop": null});
    assert_eq!(
        why("inet", vec![equal(meta("iifname"), json!("wan")), drop()]),
        ("meta iifname wan".into(), Why::Interface)
    );
    let some = one_rule("inet", vec![equal(meta("iifname"), json!({"set": ["wan", "eth0"]})), drop()]);
    assert_eq!(some.rules[0].matches.from, [PortId(0)]);
    assert!(
        some.notes
            .iter()
            .any(|note| note.why == Why::SomeInterfaces && note.what.ends_with("meta iifname wan"))
    );
}

#[test]
fn concatenations_and_verdict_maps() {
    let fields = || json!({"concat": [payload("ip", "saddr"), payload("tcp", "dport")]});
    let set = json!({"set": [{"concat": ["10.0.0.1", 80]}, {"concat": ["10.0.0.2", {"range": [81, 82]}]}]});
    let fits = |op| all("inet", &[compare(op, fields(), set.clone())]);
    let web = |address: &str, first, last| Match {
        source: nets(&[address]),
        destination_ports: ports(&[(first, last)]),
        protocol: vec![IpProto::TCP],
        ..v4()
    };
    assert_eq!(fits("=="), [web("10.0.0.1", 80, 80), web("10.0.0.2", 81, 82)]);
    let others = fits("!=");
    assert!(
        others.iter().all(|other| other.protocol == [IpProto::TCP] && other.ether_type == [EtherType::IPV4])
    );
    assert!(others.iter().any(|other| other.source == nets(&["10.0.0.1"])
        && other.destination_ports == ports(&[(0, 79), (81, 65535)])));
    let map = json!({"set": [[22, {"accept": null}], [{"range": [80, 90]}, {"jump": {"target": "web"}}], ["*", {"drop": null}]]});
    let imported = one_rule("inet", vec![json!({"vmap": {"key": payload("tcp", "dport"), "data": map}})]);
    assert!(imported.notes.is_empty(), "{:?}", imported.notes);
    let short: Vec<_> = imported
        .rules
        .iter()
        .map(|rule| (rule.matches.destination_ports.clone(), rule.actions.verdict.unwrap()))
        .collect();
    assert_eq!(
        short,
        [
            (ports(&[(22, 22)]), Verdict::Allow),
            (ports(&[(80, 80)]), Verdict::Drop),
            (ports(&[(0, 21), (23, 79), (91, 65535)]), Verdict::Drop),
            (vec![], Verdict::Allow),
        ]
    );
}

#[test]
fn statements() {
    let actions = |statements: Vec<Value>| {
        let imported = one_rule("ip", statements);
        let notes: Vec<_> =
            imported.notes.iter().map(|note| note.why).filter(|why| *why != Why::Unreached).collect();
        (imported.rules[0].actions, notes)
    };
    let verdict = |statements: Vec<Value>| {
        let (actions, notes) = actions(statements);
        (actions.verdict, notes)
    };
    assert_eq!(
        verdict(vec![json!({"counter": {"packets": 1, "bytes": 2}}), json!({"drop": null})]),
        (Some(Verdict::Drop), vec![])
    );
    assert_eq!(verdict(vec![json!({"counter": null})]), (None, vec![]));
    assert_eq!(
        verdict(vec![json!({"log": {"prefix": "x"}}), json!({"drop": null})]),
        (Some(Verdict::Drop), vec![Why::Log])
    );
    assert_eq!(verdict(vec![json!({"reject": null})]), (Some(Verdict::Reject), vec![Why::Answer]));
    let reset = vec![equal(meta("l4proto"), json!("tcp")), json!({"reject": {"type": "tcp reset"}})];
    assert_eq!(verdict(reset), (Some(Verdict::Reject), vec![]));
    let prohibited = vec![
        equal(meta("l4proto"), json!("udp")),
        json!({"reject": {"type": "icmpx", "expr": "admin-prohibited"}}),
    ];
    assert_eq!(verdict(prohibited), (Some(Verdict::Reject), vec![]));
    let rate = |per_second, burst| Some(Rate { per_second, burst });
    let limit = |limit: Value, end: &str| actions(vec![json!({"limit": limit}), json!({end: null})]);
    let (limited, notes) = limit(json!({"rate": 10, "burst": 5, "per": "second"}), "accept");
    assert_eq!(
        (limited.police, limited.verdict),
        (Some(Police { packets: rate(10, 5), bits: None }), Some(Verdict::Allow))
    );
    assert_eq!(notes, [Why::LimitDrops]);
    let over = json!({"rate": 10, "burst": 100, "per": "second", "inv": true, "rate_unit": "mbytes", "burst_unit": "kbytes"});
    let (limited, notes) = limit(over, "drop");
    let (bits, burst) = (8 * 10 * (1 << 20), 8 * (10 * (1 << 20) + 100 * 1024));
    assert_eq!(
        (limited.police, limited.verdict),
        (Some(Police { packets: None, bits: rate(bits, burst) }), None)
    );
    assert_eq!(notes, [Why::LimitBytes]);
    assert_eq!(limit(json!("lim"), "accept").0.police, Some(Police { packets: rate(10, 5), bits: None }));
    let behind = vec![json!({"limit": "lim"}), equal(meta("l4proto"), json!("tcp")), json!({"accept": null})];
    assert_eq!(actions(behind).1, [Why::LimitOrder, Why::LimitDrops]);
    let stopped = |statement: Value| why("ip", vec![statement, json!({"accept": null})]);
    assert_eq!(stopped(json!({"limit": {"rate": 5, "per": "minute"}})).1, Why::SlowRate);
    assert_eq!(stopped(json!({"limit": "none"})), ("limit none".into(), Why::Missing));
    assert_eq!(why("ip", vec![json!({"limit": "lim"}), json!({"drop": null})]).1, Why::LimitUse);
    let state =
        json!({"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": ["established", "related"]}});
    assert_eq!(stopped(state), ("ct state".into(), Why::ConnectionState));
    assert_eq!(stopped(equal(meta("mark"), json!(1))), ("meta mark".into(), Why::Match));
    assert_eq!(stopped(equal(payload("ip", "ttl"), json!(1))), ("ip ttl".into(), Why::Match));
    assert_eq!(
        stopped(json!({"xt": {"type": "match", "name": "multiport"}})),
        ("xt multiport".into(), Why::Xtables)
    );
    assert_eq!(stopped(json!({"mangle": {"key": meta("mark"), "value": 5}})), ("mangle".into(), Why::Action));
    assert_eq!(stopped(equal(payload("ip", "saddr"), json!("@seen"))), ("@seen".into(), Why::DynamicSet));
    assert_eq!(stopped(equal(payload("ip", "saddr"), json!("@none"))), ("@none".into(), Why::Missing));
    assert_eq!(stopped(equal(payload("ip", "saddr"), json!("@empty"))).1, Why::NeverFits);
    assert_eq!(stopped(equal(payload("ip6", "saddr"), json!("::1"))).1, Why::NeverFits);
    let add = json!({"set": {"op": "add", "elem": payload("ip", "saddr"), "set": "@nets"}});
    assert_eq!(stopped(add).1, Why::Action);
}

#[test]
fn base_chains_follow_each_other() {
    let hooked = |family: &str, table: &str, hook: &str, prio: i32, policy: &str| {
        let mut chain = json!({"family": family, "table": table, "name": format!("c{prio}"), "handle": 1, "type": "filter",
            "hook": hook, "prio": prio, "policy": policy});
        if hook == "ingress" {
            chain["dev"] = json!("eth0");
        }
        json!({"chain": chain})
    };
    let rule = |family: &str, table: &str, prio: i32, left, right: Value, end: &str| {
        json!({"rule": {"family": family, "table": table, "chain": format!("c{prio}"), "handle": 9,
            "expr": [compare("==", left, right), {end: null}]}})
    };
    let imported = read(vec![
        hooked("ip", "a", "forward", 10, "drop"),
        hooked("inet", "b", "forward", -5, "accept"),
        hooked("netdev", "c", "ingress", 0, "accept"),
        hooked("inet", "d", "input", 7, "drop"),
        rule("ip", "a", 10, payload("tcp", "dport"), json!(80), "accept"),
        rule("inet", "b", -5, payload("ip", "saddr"), json!("10.0.0.1"), "drop"),
        rule("netdev", "c", 0, meta("protocol"), json!("arp"), "drop"),
        rule("inet", "d", 7, meta("l4proto"), json!("tcp"), "drop"),
    ]);
    let notes: Vec<_> = imported.notes.iter().map(|note| (note.what.as_str(), note.why)).collect();
    assert_eq!(notes, [("chain c7", Why::Hook)]);
    let short: Vec<_> = imported
        .rules
        .iter()
        .map(|rule| {
            let Match { from, ether_type, source, destination_ports, .. } = &rule.matches;
            (
                from.len(),
                ether_type.clone(),
                source.len() + destination_ports.len(),
                rule.actions.verdict.unwrap(),
            )
        })
        .collect();
    let (v4, v6) = (EtherType::IPV4, EtherType::IPV6);
    assert_eq!(
        short,
        [
            (1, vec![EtherType::ARP], 0, Verdict::Drop),
            // What the device lets in meets the chains behind.
            (1, vec![v4], 1, Verdict::Drop),
            (1, vec![v4], 1, Verdict::Allow),
            (1, vec![v4], 0, Verdict::Drop),
            (1, vec![v4, v6], 0, Verdict::Allow),
            (1, vec![], 0, Verdict::Allow),
            // And so does what comes by other ports.
            (0, vec![v4], 1, Verdict::Drop),
            (0, vec![v4], 1, Verdict::Allow),
            (0, vec![v4], 0, Verdict::Drop),
            (0, vec![v4, v6], 0, Verdict::Allow),
        ]
    );
    let both =
        read(vec![hooked("bridge", "a", "forward", 0, "accept"), hooked("ip", "b", "forward", 1, "accept")]);
    assert_eq!(both.notes[0].why, Why::BridgeAndIp);
    let lost = json!({"chain": {"family": "netdev", "table": "x", "name": "y", "handle": 1, "type": "filter", "hook": "ingress",
        "dev": ["wan"], "prio": 0, "policy": "drop"}});
    let lost = read(vec![lost]);
    assert_eq!((lost.rules.len(), lost.notes[0].why), (0, Why::NoDevice));
    let silent = json!({"chain": {"family": "netdev", "table": "x", "name": "y", "handle": 1, "hook": "ingress", "prio": 0}});
    let silent = read(vec![
        silent,
        json!({"rule": {"family": "netdev", "table": "x", "chain": "y", "expr": [{"drop": null}]}}),
    ]);
    let notes: Vec<_> = silent.notes.iter().map(ToString::to_string).collect();
    assert_eq!(
        notes,
        ["line 1: chain netdev x y: nft does not say for which device this chain is; it is left out"]
    );
    let dormant = read(vec![
        json!({"table": {"family": "ip", "name": "t", "handle": 1, "flags": "dormant"}}),
        base("ip", "drop"),
        rule("ip", "t", 0, meta("l4proto"), json!("tcp"), "drop"),
    ]);
    assert_eq!((dormant.rules.len(), dormant.notes[0].why), (0, Why::Dormant));
}

#[test]
fn rules_have_names_and_lines() {
    let text = ruleset(vec![
        base("ip", "drop"),
        rule("ip", "forward", json!([{"drop": null}])),
        json!({"rule": {"family": "ip", "table": "t", "chain": "forward", "handle": 8, "comment": "hello", "expr": [{"drop": null}]}}),
    ]);
    let pretty = serde_json::to_string_pretty(&serde_json::from_str::<Value>(&text).unwrap()).unwrap();
    let lines: Vec<_> = pretty.lines().collect();
    let imported = parse(&pretty, &interfaces()).unwrap();
    let names: Vec<_> = imported.rules.iter().map(|rule| rule.name.as_str()).collect();
    assert_eq!(names, ["rule 7 of chain ip t forward", "hello"]);
    for rule in &imported.rules {
        // The line is the one where the object starts, as an element of the array.
        assert!(lines[rule.line as usize].contains("\"rule\""), "{}", rule.line);
    }
}

#[test]
fn wrong_input_is_named() {
    let error = |text: &str| parse(text, &interfaces()).unwrap_err().to_string();
    assert!(error("").starts_with("not the JSON that `nft -j list ruleset` prints: EOF"));
    assert!(error("table ip filter {").contains("line 1 column"));
    assert!(error("{\"nftables\": 5}").contains("expected a sequence"));
    assert!(error(&"[".repeat(100_000)).contains("line 1"));
    let objects = |objects: Vec<Value>| error(&ruleset(objects));
    assert_eq!(
        objects(vec![json!({"add": {}})]),
        "line 1: `add` is a command: give what `nft -j list ruleset` prints"
    );
    assert_eq!(
        objects(vec![json!({"metainfo": {"json_schema_version": 2}})]),
        "line 1: the schema is version 2, of which this netvm knows version 1 only"
    );
    assert_eq!(objects(vec![json!(5)]), "line 1, object: expected an object with one member, found 5");
    assert_eq!(
        objects(vec![base("ip", "drop"), base("ip", "drop")]),
        "line 1: chain ip t forward is there twice: import one ruleset at a time"
    );
    assert_eq!(
        objects(vec![rule("ip", "none", json!([]))]),
        "line 1, rule 7 of chain ip t none: there is no chain none in this table"
    );
    let bad = |statement: Value| objects(vec![base("ip", "drop"), rule("ip", "forward", json!([statement]))]);
    let place = "line 1, rule 7 of chain ip t forward: ";
    let expect = |statement: Value, text: &str| assert_eq!(bad(statement), format!("{place}{text}"));
    expect(equal(payload("ip", "saddr"), json!("::1")), "expected IPv4 addresses, found \"::1\"");
    expect(
        equal(payload("ip", "saddr"), json!({"prefix": {"addr": "10.0.0.0", "len": 33}})),
        "expected IPv4 addresses, found {\"prefix\":{\"addr\":\"10.0.0.0\",\"len\":33}}",
    );
    expect(equal(payload("tcp", "dport"), json!("http")), "expected ports as numbers, found \"http\"");
    expect(
        equal(payload("tcp", "dport"), json!({"range": [90, 80]})),
        "expected ports as numbers, found {\"range\":[90,80]}",
    );
    expect(
        compare("<", payload("tcp", "dport"), json!({"set": [1, 9]})),
        "expected one value to compare with, found {\"set\":[1,9]}",
    );
    expect(compare("~", payload("tcp", "dport"), json!(1)), "expected an operator, found \"~\"");
    expect(json!({"match": {"op": "=="}}), "expected op, left and right, found {\"op\":\"==\"}");
    expect(json!({"limit": {"rate": "fast"}}), "expected a rate, found {\"rate\":\"fast\"}");
    expect(json!({"jump": null}), "expected the target of a jump, found null");
    expect(json!({"a": 1, "b": 2}), "expected a statement, found {\"a\":1,\"b\":2}");
    assert_eq!(
        bad(json!({"jump": {"target": "x"}})),
        "line 1, rule 7 of chain ip t forward: there is no chain x in this table"
    );
    let looped = vec![
        base("ip", "drop"),
        chain("ip", "web"),
        rule("ip", "forward", json!([{"jump": {"target": "web"}}])),
        rule("ip", "web", json!([{"jump": {"target": "web"}}])),
    ];
    assert!(matches!(parse(&ruleset(looped), &interfaces()), Err(NftError::Expand(_))));
}

/// JSON made of words that nft uses.
fn nearly() -> impl Strategy<Value = Value> {
    let words = prop::sample::select(
        &[
            "ip", "ip6", "tcp", "saddr", "dport", "flags", "type", "10.0.0.1", "::1", "syn", "@nets",
            "@ports", "*", "==", "!=", "in", "iifname", "eth0", "web", "set",
        ][..],
    );
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0u32..70000).prop_map(Value::from),
        words.prop_map(Value::from),
        Just(payload("tcp", "dport")),
        Just(payload("ip", "saddr")),
        Just(payload("tcp", "flags")),
        Just(meta("l4proto")),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let keys = prop::sample::select(
            &[
                "match", "op", "left", "right", "set", "range", "prefix", "addr", "len", "concat", "&", "|",
                "payload", "meta", "key", "protocol", "field", "elem", "val", "vmap", "data", "limit",
                "rate", "accept", "drop", "jump", "target", "reject",
            ][..],
        );
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            (keys.clone(), inner.clone()).prop_map(|(key, value)| json!({key: value})),
            (inner.clone(), inner.clone()).prop_map(|(left, right)| equal(left, right)),
            prop::collection::btree_map(keys.prop_map(str::to_owned), inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text: String) {
        let _ = parse(&text, &interfaces());
        let _ = parse(&format!("{{\"nftables\":[{text}]}}"), &interfaces());
    }

    #[test]
    fn what_is_nearly_a_ruleset_is_read_or_refused(objects in prop::collection::vec(nearly(), 0..4), statements in prop::collection::vec(nearly(), 0..4)) {
        let _ = parse(&ruleset(objects), &interfaces());
        let whole = vec![base("inet", "drop"), chain("inet", "web"), rule("inet", "forward", Value::Array(statements))];
        let _ = parse(&ruleset(whole), &interfaces());
    }

    /// Ports by any comparison, against comparing.
    #[test]
    fn comparisons_are_those_of_numbers(op in prop::sample::select(&["==", "!=", "<", "<=", ">", ">="][..]), value: u16, port: u16) {
        let imported = one_rule("inet", vec![compare(op, payload("udp", "dport"), json!(value)), json!({"drop": null})]);
        let fits = imported.rules.iter().filter(|rule| rule.actions.verdict == Some(Verdict::Drop)).any(|rule| {
            let ports = &rule.matches.destination_ports;
            ports.is_empty() || ports.iter().any(|ports| ports.contains(port))
        });
        let expected = match op {
            "==" => port == value,
            "!=" => port != value,
            "<" => port < value,
            "<=" => port <= value,
            ">" => port > value,
            _ => port >= value,
        };
        prop_assert_eq!(fits, expected);
    }
}
