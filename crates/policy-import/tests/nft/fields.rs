// SPDX-License-Identifier: Apache-2.0
//! Fields, comparisons and values.

use netvm_policy::{Masked, Match, PortId};
use netvm_policy_import::NoteReason;
use netvm_wire::{EtherType, Fragment, IpProto};
use serde_json::{Value, json};

use super::{
    NOT_LATER, all, compare, equal, ip, meta, nets, one, one_rule, payload, ports, span, tcp, v4, why,
};

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
        ("ip saddr".into(), NoteReason::Mask)
    );
    let six =
        one("inet", &[equal(payload("ip6", "daddr"), json!({"prefix": {"addr": "fe80::", "len": 10}}))]);
    assert_eq!((six.destination, six.ether_type), (nets(&["fe80::/10"]), vec![EtherType::IPV6]));
    let arp = one("bridge", &[equal(payload("arp", "saddr ip"), json!("10.0.0.1"))]);
    assert_eq!((arp.source, arp.ether_type), (nets(&["10.0.0.1"]), vec![EtherType::ARP]));
    // The table's family implies it, too.
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
    // Other protocols have ports there, too.
    let alone = why("inet", vec![equal(payload("th", "dport"), json!(53)), json!({"drop": null})]);
    assert_eq!(alone, ("th dport".into(), NoteReason::SomePorts));
    assert_eq!(one("inet", &[equal(meta("l4proto"), json!(200))]).protocol, [IpProto(200)]);
    assert_eq!(one("inet", &[compare("!=", payload("ip", "protocol"), json!("tcp"))]).protocol.len(), 255);
    let next = why("inet", vec![equal(payload("ip6", "nexthdr"), json!("tcp")), json!({"drop": null})]);
    assert_eq!(next, ("ip6 nexthdr".into(), NoteReason::FirstHeader));
    assert_eq!(
        why("inet", vec![equal(payload("dccp", "dport"), json!(4)), json!({"drop": null})]).1,
        NoteReason::NoPorts
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
        ("ip frag-off".into(), NoteReason::Match)
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
        NoteReason::Opposite
    );
    assert_eq!(
        why("bridge", vec![equal(payload("ether", "type"), json!("8021ad")), drop()]).1,
        NoteReason::Match
    );
    // In IP tables, not IPv4 means IPv6.
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
        ("meta iifname wan".into(), NoteReason::Interface)
    );
    let some = one_rule("inet", vec![equal(meta("iifname"), json!({"set": ["wan", "eth0"]})), drop()]);
    assert_eq!(some.rules[0].matches.from, [PortId(0)]);
    assert!(
        some.notes
            .iter()
            .any(|note| note.why == NoteReason::SomeInterfaces && note.what.ends_with("meta iifname wan"))
    );
}
