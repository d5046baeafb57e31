// SPDX-License-Identifier: Apache-2.0
//! Rules, and the keys of ports about packets: how every field is read, and which errors and warnings there are.

use netvm_config::{Finding, Kind, parse_rules};
use netvm_model::{
    AclDefault, Action, Actions, ChainId, Eviction, FlowCacheConfig, FlowMonitorConfig, Forward, Guard,
    Masked, Match, McastRouter, MonitorTable, Police, PolicyConfig, PortId, PortPolicy, PortSnooping, Rate,
    Rule, SetVlan, SnoopingConfig, Span, StormLimits, SwitchConfig, VlanMode,
};
use netvm_wire::{ConnState, EtherType, Fragment, IpProto, MacAddr, PortRange, VlanId};

use crate::{cases, findings, host, is};

mod connections;
mod labels;
mod nat;
mod ports;
mod when;

/// Two ports and a chain; rules go behind.
pub const AROUND: &str = r#"
[[port]]
name = "client"
kind = "source"
forward = { normal = true }

[[port]]
name = "server"
kind = "pcap"
input = "in"
forward = { normal = true }

[[nf]]
role = "firewall"

[[chain]]
name = "web"
hops = ["firewall"]

[[rule]]
chain = "web"
match = { ether_type = 0x88cc }
"#;

fn rule(text: &str) -> Rule {
    let rules = parse_rules("rule", text, &host(AROUND));
    rules.unwrap_or_else(|error| panic!("{text}\n{}", error.render(false))).remove(0)
}

fn matches(text: &str) -> Match {
    rule(&format!("match = {{ {text} }}\ndrop = true")).matches.clone()
}

#[test]
fn every_field_of_a_match_is_read() {
    let macs = |value, mask| vec![Masked::<u64>::new(value, mask)];
    let cases = [
        ("protocol = \"tcp\"", Match { protocol: vec![IpProto::TCP], ..Match::default() }),
        (
            "protocol = [17, \"icmp\"]",
            Match { protocol: vec![IpProto::UDP, IpProto::ICMP], ..Match::default() },
        ),
        (
            "source = \"10.0.0.0/8\", destination = [\"10.0.0.1\", \"2001:db8::/32\"]",
            Match {
                source: vec!["10.0.0.0/8".parse().unwrap()],
                destination: vec!["10.0.0.1/32".parse().unwrap(), "2001:db8::/32".parse().unwrap()],
                ..Match::default()
            },
        ),
        (
            "source_ports = 80, destination_ports = [443, \"8000-8080\"]",
            Match {
                source_ports: vec![PortRange::single(80)],
                destination_ports: vec![PortRange::single(443), PortRange::new(8000, 8080).unwrap()],
                ..Match::default()
            },
        ),
        (
            "protocol = \"tcp\", tcp_flags = \"syn, !ack\"",
            Match {
                protocol: vec![IpProto::TCP],
                tcp_flags: Some(Masked::<u8>::new(2, 0x12)),
                ..Match::default()
            },
        ),
        (
            "protocol = \"icmpv6\", icmp_type = [\"echo-request\", \"133-137\"], icmp_code = 0",
            Match {
                protocol: vec![IpProto::ICMPV6],
                icmp_type: vec![Span::single(128), Span { first: 133, last: 137 }],
                icmp_code: vec![Span::single(0)],
                ..Match::default()
            },
        ),
        (
            "dscp = [\"cs6\", 46, \"8-15\"], fragment = [\"first\", \"later\"], state = [\"untracked\", \"new\"]",
            Match {
                dscp: vec![Span::single(48), Span::single(46), Span { first: 8, last: 15 }],
                fragment: vec![Fragment::First, Fragment::Later],
                state: vec![ConnState::Untracked, ConnState::New],
                ..Match::default()
            },
        ),
        (
            "vlan = [10, \"20-30\", \"none\"], inner_vlan = \"none\"",
            Match {
                vlan: vec![Span::single(10), Span { first: 20, last: 30 }, Span::single(0)],
                inner_vlan: vec![Span::single(0)],
                ..Match::default()
            },
        ),
        (
            "source_mac = \"02:00:00:00:00:00/ff:00:00:00:00:00\"",
            Match { source_mac: macs(0x0200_0000_0000, 0xff00_0000_0000), ..Match::default() },
        ),
        (
            "destination_mac = \"02-00-00-00-00-01\"",
            Match { destination_mac: macs(0x0200_0000_0001, 0xffff_ffff_ffff), ..Match::default() },
        ),
        (
            "ether_type = [0x88cc, \"0x88cc\", \"ipv6\"]",
            Match {
                ether_type: vec![EtherType(0x88cc), EtherType(0x88cc), EtherType::IPV6],
                ..Match::default()
            },
        ),
        (
            "ether_type = \"arp\", arp_operation = [\"reply\", \"3-4\"], source = \"10.0.0.1\"",
            Match {
                ether_type: vec![EtherType::ARP],
                arp_operation: vec![Span::single(2), Span { first: 3, last: 4 }],
                source: vec!["10.0.0.1/32".parse().unwrap()],
                ..Match::default()
            },
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(matches(text), expected, "{text}");
    }
}

#[test]
fn every_action_is_read() {
    let terminal = |terminal| Actions { terminal: Some(terminal), ..Actions::default() };
    let police = |packets, bits| {
        let rate = |rate: Option<(u64, u64)>| rate.map(|(per_second, burst)| Rate { per_second, burst });
        Actions { police: Some(Police { packets: rate(packets), bits: rate(bits) }), ..Actions::default() }
    };
    let cases = [
        ("chain = \"web\"", terminal(Action::Chain(ChainId(0)))),
        ("out = \"server\"", terminal(Action::Port(PortId(1)))),
        ("drop = true", terminal(Action::Drop)),
        ("reject = true", terminal(Action::Reject)),
        ("allow = true", terminal(Action::Allow)),
        ("normal = true", terminal(Action::Normal)),
        ("count = true", Actions::default()),
        ("mirror = \"server\"", Actions { mirror: Some(PortId(1)), ..Actions::default() }),
        (
            "set_vlan = 10",
            Actions { set_vlan: Some(SetVlan::Tag(VlanId::new(10).unwrap())), ..Actions::default() },
        ),
        ("set_vlan = \"none\"", Actions { set_vlan: Some(SetVlan::Strip), ..Actions::default() }),
        ("police = { packets = 1000, packet_burst = 5 }", police(Some((1000, 5)), None)),
        (
            "police = { packets = 1000, bits = 10_000_000 }",
            police(Some((1000, 100)), Some((10_000_000, 1_000_000))),
        ),
        ("police = { packets = 1, bits = 1 }", police(Some((1, 64)), Some((1, 600_000)))),
    ];
    for (text, actions) in cases {
        assert_eq!(rule(text).actions, actions, "{text}");
    }
    let both = rule("from = [\"server\", \"client\"]\nto = \"client\"\nallow = true").matches.clone();
    assert_eq!((both.from, both.to), (vec![PortId(1), PortId(0)], vec![PortId(0)]));
}

/// A rule, code of the error, part of the remedy.
const RULES: &str = r#"
match = { protocol = "tcp" } | missing_key | add `chain
 | missing_key | `count = true` for a rule that only counts
drop = true⏎out = "server" | conflict | keep one of
allow = false | bad_value | write `allow = true`, or leave it out
drop = true⏎from = [] | bad_value | at least one
drop = true⏎from = "clinet" | unknown_name | did you mean `client`?
drop = true⏎to = ["client", "sever"] | unknown_name | did you mean `server`?
mirror = "tap" | unknown_name | the ports are `client`, `server`
chain = "wep" | unknown_name | did you mean `web`?
to = "client"⏎normal = true | conflict | can be allowed, dropped or rejected
drop = true⏎name = "a b" | bad_name | 1 to 32
drop = true⏎port = "client" | unknown_key | keys of [[rule]]
drop = true⏎match = { vlan = [] } | bad_value | at least one
drop = true⏎match = { vlan = 0 } | bad_value | from 1 to 4094
drop = true⏎match = { vlan = 1.5 } | wrong_type | a number, or a list of them
drop = true⏎match = { vlan = [[1]] } | wrong_type | a string in quotes, or a number
drop = true⏎match = { destinations = 1 } | unknown_key | did you mean `destination`?
drop = true⏎match = { source_mac = "02:00" } | bad_value | six bytes
drop = true⏎match = { ether_type = "ip" } | bad_value | ipv4, ipv6, arp
drop = true⏎match = { protocol = "tcp", tcp_flags = "sin" } | bad_value | fin, syn, rst
drop = true⏎match = { tcp_flags = "syn" } | conflict | add `protocol = "tcp"`
drop = true⏎match = { icmp_type = 0 } | conflict | add `protocol = "icmp"`
drop = true⏎match = { arp_operation = 1 } | conflict | add `ether_type = "arp"`
drop = true⏎match = { protocol = ["icmp", "icmpv6"], icmp_type = "redirect" } | bad_value | a different number in each
set_vlan = 4095 | bad_value | from 1 to 4094
police = { } | missing_key | limit `packets`, `bits`, or both
police = { packets = 1, bit_burst = 1 } | conflict | add `bits`, or remove `bit_burst`
police = { packets = 0 } | bad_value | from 1 to
police = { packet = 1 } | unknown_key | did you mean `packets`?
"#;

#[test]
fn errors_in_rules_have_remedies() {
    let running = host(AROUND);
    for [text, code, remedy] in &cases(RULES) {
        let error = parse_rules("rule", text, &running).unwrap_err();
        let [finding] = error.findings() else { panic!("{text}\n{}", error.render(false)) };
        assert!(is(finding, code, remedy), "{text}\n{}", error.render(false));
    }
    let error = parse_rules("rule", "[[rule]]\ndrop = true\n[[port]]\nname = \"x\"", &running).unwrap_err();
    assert_eq!(error.findings()[0].kind(), Kind::UnknownKey);
    assert_eq!(
        parse_rules("rule", "[[rule]]\ndrop = true\n[[rule]]\ncount = true", &running).unwrap().len(),
        2
    );
}

#[test]
fn every_key_of_a_port_about_packets_is_read() {
    let text = AROUND.replacen(
        "forward = { normal = true }",
        r#"forward = { chain = "web" }
acl_in = "deny"
acl_out = "deny"
vlan = { trunk = [10, "20-30"], native = 1 }
mac_limit = 7
storm_control = { broadcast = 100, unknown_unicast = 0 }
mcast_router = "on"
mcast_fast_leave = true
mcast_max_groups = 9
mcast_groups = ["239.1.2.3", "ff15::1 vlan 20"]
split_horizon = "guests"
guard = { macs = "02:00:00:00:00:05", addresses = ["10.0.0.5", "2001:db8::/64"] }
police_in = { packets = 10_000 }
police_out = { bits = 10_000_000 }
monitor = false
weight = 3
reserve = 25"#,
        1,
    );
    let whole = "[engine]\nflow_cache = { entries = 1024, eviction = \"lru\", idle = 5 }\nflow_monitor = { table = \"d-left\", flows = 100, export = \"ipfix:tcp:192.0.2.1:4739\", eve = \"/tmp/eve\" }\n[switch]\nmac_age = 10\nmac_hold = 2\nforward_bpdu = true\nmcast_snooping = true\nmcast_querier = true\nmcast_querier_address = \"10.0.0.1\"\nmcast_query_interval = 20\nmcast_query_response_interval = 5\nmcast_last_member_interval = 2\nmcast_flood_unregistered = false\n[policy]\nmemory = 9\n";
    let host = host(&format!("{whole}{text}"));
    let rate = |per_second, burst| Some(Rate { per_second, burst });
    let expected = PortPolicy {
        forward: Forward::Chain(ChainId(0)),
        acl_in: AclDefault::Deny,
        acl_out: AclDefault::Deny,
        vlan: VlanMode::Trunk {
            vlans: vec![Span::single(10), Span { first: 20, last: 30 }],
            native: VlanId::new(1).ok(),
        },
        mac_limit: 7,
        storm_control: StormLimits { broadcast: 100, unknown_unicast: 0, ..StormLimits::default() },
        multicast: PortSnooping {
            router: McastRouter::On,
            fast_leave: true,
            max_groups: 9,
            groups: ["239.1.2.3", "ff15::1 vlan 20"].map(|text| text.parse().unwrap()).to_vec(),
        },
        split_horizon: Some("guests".to_owned()),
        guard: Some(Guard {
            macs: vec![MacAddr([2, 0, 0, 0, 0, 5])],
            addresses: vec!["10.0.0.5".parse().unwrap(), "2001:db8::/64".parse().unwrap()],
        }),
        police_in: Some(Police { packets: rate(10_000, 1000), bits: None }),
        police_out: Some(Police { packets: None, bits: rate(10_000_000, 1_000_000) }),
        monitor: false,
        weight: 3,
        reserve: 25,
        ..PortPolicy::default()
    };
    assert_eq!(host.ports[0].policy, expected);
    assert_eq!(host.ports[1].policy, PortPolicy { forward: Forward::Normal, ..PortPolicy::default() });
    assert_eq!(host.engine.flow_cache, FlowCacheConfig { entries: 1024, eviction: Eviction::Lru, idle: 5 });
    let monitor = FlowMonitorConfig {
        table: MonitorTable::DLeft,
        flows: 100,
        export: Some("ipfix:tcp:192.0.2.1:4739".parse().unwrap()),
        eve: Some("/tmp/eve".into()),
        ..FlowMonitorConfig::default()
    };
    assert_eq!(host.engine.flow_monitor, Some(monitor));
    let multicast = SnoopingConfig {
        snooping: true,
        querier: true,
        querier_address: [10, 0, 0, 1].into(),
        query_interval: 20,
        query_response_interval: 5,
        last_member_interval: 2,
        flood_unregistered: false,
    };
    assert_eq!(
        (host.switch, host.policy),
        (
            SwitchConfig { macs: 32_768, mac_age: 10, mac_hold: 2, forward_bpdu: true, multicast },
            PolicyConfig { memory: 9 }
        )
    );
}

#[test]
fn warnings_about_rules_name_both_lines() {
    let first = AROUND.lines().count() + 1;
    let shadowed = |line| format!("the one in line {line} takes all of its packets");
    let (tcp, web) = ("protocol = \"tcp\"", "protocol = \"tcp\", destination_ports = [80, 443]");
    let halves = "[[rule]]\nmatch = { source = \"0.0.0.0/1\" }\ndrop = true\n[[rule]]\nmatch = { source = \"128.0.0.0/1\" }\ndrop = true\n";
    let two = |a: &str, b: &str| {
        format!("[[rule]]\nmatch = {{ {a} }}\ndrop = true\n[[rule]]\nmatch = {{ {b} }}\nnormal = true\n")
    };
    for (rules, kind, message, line) in [
        (two(tcp, web), Kind::Shadowed, shadowed(first), first + 4),
        (
            two("source = \"10.0.0.0/8\"", "destination = \"10.0.0.0/8\""),
            Kind::Overlap,
            format!("the one in line {first} decide differently"),
            first + 4,
        ),
        (
            format!("{halves}[[rule]]\nmatch = {{ ether_type = \"ipv4\" }}\ndrop = true\n"),
            Kind::Shadowed,
            format!("the one in line {first} and others"),
            first + 7,
        ),
        (
            two("source = \"0.0.0.0/0\"", "ether_type = \"ipv4\""),
            Kind::Shadowed,
            format!("the one in line {first} is for the same packets"),
            first + 4,
        ),
        (
            "[[rule]]\nmatch = { fragment = \"later\", source_ports = 1 }\ndrop = true\n".to_owned(),
            Kind::Impossible,
            "no packet can match".to_owned(),
            first + 1,
        ),
        (
            "[[rule]]\nmatch = { protocol = \"icmp\", source_ports = 1 }\ndrop = true\n".to_owned(),
            Kind::Impossible,
            "no packet can match".to_owned(),
            first + 1,
        ),
        (
            "[[rule]]\nmatch = { source = \"10.0.0.1\", destination = \"::1\" }\ndrop = true\n".to_owned(),
            Kind::Impossible,
            "no packet can match".to_owned(),
            first + 1,
        ),
    ] {
        let found = findings(&format!("{AROUND}{rules}"));
        let [finding] = &found[..] else { panic!("{rules}: {found:#?}") };
        assert_eq!((finding.kind(), finding.position().0), (kind, line), "{}", finding.render(false));
        assert!(finding.is_warning() && finding.message().contains(&message), "{}", finding.render(false));
    }
    assert!(findings(&format!("{AROUND}{}", two(web, tcp))).is_empty());
}

#[test]
fn allowed_packets_need_a_forward() {
    let silent = AROUND.replacen("forward = { normal = true }\n", "", 1);
    let rule = |from: &str| format!("[[rule]]\n{from}allow = true\nmatch = {{ dscp = 1 }}\n");
    let kinds = |text: &str| findings(text).iter().map(Finding::kind).collect::<Vec<_>>();
    assert_eq!(kinds(&format!("{silent}{}", rule("from = \"client\"\n"))), [Kind::NoForward]);
    assert_eq!(kinds(&format!("{silent}{}", rule(""))), []);
    let silent = silent.replace("forward = { normal = true }\n", "");
    assert_eq!(kinds(&format!("{silent}{}", rule(""))), [Kind::NoForward]);
    let twice = format!("{}{}", rule(""), rule("").replace("dscp = 1", "dscp = 2"));
    assert_eq!(kinds(&format!("{silent}{twice}")), [Kind::NoForward]);
    assert_eq!(kinds(&format!("{silent}{}", rule("to = \"client\"\n"))), []);
}
