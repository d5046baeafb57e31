//! Rules and what ports do with packets: every field as it is read, what is wrong in it, and how long many of them take.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use netvm_config::model::{
    AclDefault, Action, Actions, ChainId, Eviction, FlowCacheConfig, Forward, Guard, Host, Masked, Match,
    Police, PolicyConfig, PortId, PortPolicy, Rate, Rule, RuleId, RuleParts, SetVlan, Span, SwitchConfig,
    VlanMode,
};
use netvm_config::{Finding, Kind, assign_ids, parse, parse_rules};
use netvm_policy_import::{ImportedRule, classbench};
use netvm_wire::{EtherType, Fragment, IpProto, MacAddr, PortRange, VlanId};

/// Two ports and a chain; rules go behind.
const AROUND: &str = r#"
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

fn host(text: &str) -> Host {
    parse("host.toml", text).unwrap_or_else(|error| panic!("{}", error.render(false))).host
}

fn findings(text: &str) -> Vec<Finding> {
    match parse("host.toml", text) {
        Ok(loaded) => loaded.warnings,
        Err(error) => error.findings().to_vec(),
    }
}

fn rule(text: &str) -> Rule {
    let rules = parse_rules("rule", text, &host(AROUND));
    rules.unwrap_or_else(|error| panic!("{text}\n{}", error.render(false))).remove(0)
}

fn matches(text: &str) -> Match {
    rule(&format!("match = {{ {text} }}\ndrop = true")).matches.clone()
}

#[test]
fn every_field_is_what_is_written() {
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
            "dscp = [\"cs6\", 46, \"8-15\"], fragment = [\"first\", \"later\"]",
            Match {
                dscp: vec![Span::single(48), Span::single(46), Span { first: 8, last: 15 }],
                fragment: vec![Fragment::First, Fragment::Later],
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
fn every_action_is_what_is_written() {
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

#[test]
fn what_is_wrong_in_a_rule_is_told() {
    let running = host(AROUND);
    let cases: &[(&str, Kind, &str)] = &[
        ("match = { protocol = \"tcp\" }", Kind::MissingKey, "add `chain"),
        ("", Kind::MissingKey, "`count = true` for a rule that only counts"),
        ("drop = true\nout = \"server\"", Kind::Conflict, "keep one of"),
        ("allow = false", Kind::BadValue, "write `allow = true`, or leave it out"),
        ("drop = true\nfrom = []", Kind::BadValue, "at least one"),
        ("drop = true\nfrom = \"clinet\"", Kind::UnknownName, "did you mean `client`?"),
        ("drop = true\nto = [\"client\", \"sever\"]", Kind::UnknownName, "did you mean `server`?"),
        ("mirror = \"tap\"", Kind::UnknownName, "the ports are `client`, `server`"),
        ("chain = \"wep\"", Kind::UnknownName, "did you mean `web`?"),
        ("to = \"client\"\nnormal = true", Kind::Conflict, "can be allowed, dropped or rejected"),
        ("drop = true\nname = \"a b\"", Kind::BadName, "1 to 32"),
        ("drop = true\nport = \"client\"", Kind::UnknownKey, "keys of [[rule]]"),
        ("drop = true\nmatch = { vlan = [] }", Kind::BadValue, "at least one"),
        ("drop = true\nmatch = { vlan = 0 }", Kind::BadValue, "from 1 to 4094"),
        ("drop = true\nmatch = { vlan = 1.5 }", Kind::WrongType, "a number, or a list of them"),
        ("drop = true\nmatch = { vlan = [[1]] }", Kind::WrongType, "a text in quotes, or a number"),
        ("drop = true\nmatch = { destinations = 1 }", Kind::UnknownKey, "did you mean `destination`?"),
        ("drop = true\nmatch = { source_mac = \"02:00\" }", Kind::BadValue, "six bytes"),
        ("drop = true\nmatch = { ether_type = \"ip\" }", Kind::BadValue, "ipv4, ipv6, arp"),
        ("drop = true\nmatch = { protocol = \"tcp\", tcp_flags = \"sin\" }", Kind::BadValue, "fin, syn, rst"),
        ("drop = true\nmatch = { tcp_flags = \"syn\" }", Kind::Conflict, "add `protocol = \"tcp\"`"),
        ("drop = true\nmatch = { icmp_type = 0 }", Kind::Conflict, "add `protocol = \"icmp\"`"),
        ("drop = true\nmatch = { arp_operation = 1 }", Kind::Conflict, "add `ether_type = \"arp\"`"),
        (
            "drop = true\nmatch = { protocol = [\"icmp\", \"icmpv6\"], icmp_type = \"redirect\" }",
            Kind::BadValue,
            "a different number in each",
        ),
        ("set_vlan = 4095", Kind::BadValue, "from 1 to 4094"),
        ("police = { }", Kind::MissingKey, "limit `packets`, `bits`, or both"),
        ("police = { packets = 1, bit_burst = 1 }", Kind::Conflict, "add `bits`, or remove `bit_burst`"),
        ("police = { packets = 0 }", Kind::BadValue, "from 1 to"),
        ("police = { packet = 1 }", Kind::UnknownKey, "did you mean `packets`?"),
    ];
    for (text, kind, remedy) in cases {
        let error = parse_rules("rule", text, &running).unwrap_err();
        let [finding] = error.findings() else { panic!("{text}\n{}", error.render(false)) };
        let right = finding.kind() == *kind && finding.remedy().unwrap_or_default().contains(remedy);
        assert!(right, "{text}\n{}", error.render(false));
    }
    let error = parse_rules("rule", "[[rule]]\ndrop = true\n[[port]]\nname = \"x\"", &running).unwrap_err();
    assert_eq!(error.findings()[0].kind(), Kind::UnknownKey);
    assert_eq!(
        parse_rules("rule", "[[rule]]\ndrop = true\n[[rule]]\ncount = true", &running).unwrap().len(),
        2
    );
}

#[test]
fn what_ports_do_is_what_is_written() {
    let text = AROUND.replacen(
        "forward = { normal = true }",
        r#"forward = { chain = "web" }
acl_in = "deny"
acl_out = "deny"
vlan = { trunk = [10, "20-30"], native = 1 }
mac_limit = 7
split_horizon = "guests"
guard = { macs = "02:00:00:00:00:05", addresses = ["10.0.0.5", "2001:db8::/64"] }
police_in = { packets = 10_000 }
police_out = { bits = 10_000_000 }"#,
        1,
    );
    let whole = "[engine]\nflow_cache = { entries = 1024, eviction = \"lru\", idle = 5 }\n[switch]\nmac_age = 10\n[policy]\nmemory = 9\n";
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
        split_horizon: Some("guests".to_owned()),
        guard: Some(Guard {
            macs: vec![MacAddr([2, 0, 0, 0, 0, 5])],
            addresses: vec!["10.0.0.5".parse().unwrap(), "2001:db8::/64".parse().unwrap()],
        }),
        police_in: Some(Police { packets: rate(10_000, 1000), bits: None }),
        police_out: Some(Police { packets: None, bits: rate(10_000_000, 1_000_000) }),
    };
    assert_eq!(host.ports[0].policy, expected);
    assert_eq!(host.ports[1].policy, PortPolicy { forward: Forward::Normal, ..PortPolicy::default() });
    assert_eq!(host.engine.flow_cache, FlowCacheConfig { entries: 1024, eviction: Eviction::Lru, idle: 5 });
    assert_eq!(
        (host.switch, host.policy),
        (SwitchConfig { macs: 32_768, mac_age: 10 }, PolicyConfig { memory: 9 })
    );
}

#[test]
fn what_is_wrong_in_a_port_is_told() {
    let cases: &[(&str, Kind, &str)] = &[
        ("forward = { }", Kind::MissingKey, "{ normal = true }"),
        ("forward = { normal = true, out = \"server\" }", Kind::Conflict, "keep one of them"),
        ("forward = { out = \"sever\" }", Kind::UnknownName, "did you mean `server`?"),
        ("forward = \"normal\"", Kind::WrongType, "a table: forward"),
        ("acl_in = \"reject\"", Kind::BadValue, "possible values are `allow`, `deny`"),
        ("vlan = 10", Kind::WrongType, "a table: vlan"),
        ("vlan = { native = 1 }", Kind::MissingKey, "{ trunk = [10, \"20-30\"] }"),
        ("vlan = { access = 1, trunk = 2 }", Kind::Conflict, "remove it"),
        ("vlan = { trunk = \"none\" }", Kind::BadValue, "a VLAN such as 10"),
        ("vlan = { trunk = [] }", Kind::BadValue, "at least one"),
        ("split_horizon = \"a b\"", Kind::BadName, "1 to 32"),
        ("guard = { }", Kind::MissingKey, "MAC addresses"),
        ("guard = { macs = \"ff:ff:ff:ff:ff:ff\" }", Kind::BadValue, "the address of one network card"),
        ("guard = { addresses = \"10.0.0.1/8\" }", Kind::BadValue, "write 10.0.0.0/8"),
        ("mac_limit = -1", Kind::BadValue, "from 0 to 1048576"),
    ];
    for (text, kind, remedy) in cases {
        let found = findings(&AROUND.replacen("forward = { normal = true }", text, 1));
        let [finding] = &found[..] else { panic!("{text}: {found:#?}") };
        let right = finding.kind() == *kind && finding.remedy().unwrap_or_default().contains(remedy);
        assert!(right, "{text}\n{}", finding.render(false));
        assert!(
            (5..=6).contains(&finding.position().0) || *kind == Kind::MissingKey,
            "{}",
            finding.render(false)
        );
    }
}

#[test]
fn doubtful_rules_name_both_lines() {
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
fn what_is_allowed_needs_a_way() {
    let silent = AROUND.replacen("forward = { normal = true }\n", "", 1);
    let rule = |from: &str| format!("[[rule]]\n{from}allow = true\nmatch = {{ dscp = 1 }}\n");
    let kinds = |text: &str| findings(text).iter().map(Finding::kind).collect::<Vec<_>>();
    assert_eq!(kinds(&format!("{silent}{}", rule("from = \"client\"\n"))), [Kind::NoForward]);
    assert_eq!(kinds(&format!("{silent}{}", rule(""))), []);
    let silent = silent.replace("forward = { normal = true }\n", "");
    assert_eq!(kinds(&format!("{silent}{}", rule(""))), [Kind::NoForward]);
    // Once for each port.
    let twice = format!("{}{}", rule(""), rule("").replace("dscp = 1", "dscp = 2"));
    assert_eq!(kinds(&format!("{silent}{twice}")), [Kind::NoForward]);
    assert_eq!(kinds(&format!("{silent}{}", rule("to = \"client\"\n"))), []);
}

/// A rule of five fields for each number.
fn many(count: usize) -> String {
    let mut text = AROUND.to_owned();
    for n in 0..count {
        let (a, b, c) = (n >> 8 & 255, n & 255, n % 1000);
        writeln!(
            text,
            "\n[[rule]]\nname = \"rule{n}\"\nfrom = [\"client\", \"server\"]\nmatch = {{ protocol = \"tcp\", source = \"10.{a}.{b}.0/24\", \
             destination = [\"192.0.2.0/24\", \"198.51.100.0/24\"], source_ports = \"1024-65535\", destination_ports = {c} }}\n\
             drop = true"
        )
        .unwrap();
    }
    text
}

/// Well under a second where tests are optimised; more than twenty times that is a loop in a loop.
const SLOW: Duration = Duration::from_secs(20);

#[test]
fn ten_thousand_rules_are_read_planned_and_written_quickly() {
    let text = many(10_000);
    let begin = Instant::now();
    let loaded = parse("host.toml", &text).unwrap();
    let read = begin.elapsed();
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let mut new = host(&text.replace("192.0.2.0/24", "192.0.2.0/25"));
    let begin = Instant::now();
    assign_ids(&mut new, Some(&loaded.host));
    let plan = netvm_config::plan(&loaded.host, &new);
    let planned = begin.elapsed();
    assert_eq!(plan.changes.len(), 10_000);
    assert!(plan.effects().next().is_none());
    let begin = Instant::now();
    let written = loaded.host.to_toml();
    let wrote = begin.elapsed();
    assert_eq!(written.matches("[[rule]]").count(), 10_001);
    println!("10,000 rules: read {read:?}, numbered and planned {planned:?}, written {wrote:?}");
    assert!(read + planned + wrote < SLOW);
}

/// What is imported can be written, and read again.
#[test]
fn filter_sets_survive_the_way_through_a_file() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/acl");
    let Ok(files) = std::fs::read_dir(&folder) else {
        println!("SKIP: no filter sets in {}", folder.display());
        return;
    };
    let drop = Actions { terminal: Some(Action::Drop), ..Actions::default() };
    let files = files.map(|file| file.unwrap().path());
    for file in files.filter(|file| file.extension().is_some_and(|extension| extension == "rules")) {
        let text = std::fs::read_to_string(&file).unwrap();
        let imported = classbench::parse(&text, drop, classbench::Flags::Ignore).unwrap();
        let mut with = Host { rules: Vec::new(), ..host(AROUND) };
        for (id, rule) in (0..).zip(imported.rules) {
            let ImportedRule { name, matches, actions, .. } = rule;
            with.rules.push(Rule::from(RuleParts { id: RuleId(id), name, matches, actions }));
        }
        let written = with.to_toml();
        let rules = parse_rules("rules", &written[written.find("[[rule]]").unwrap()..], &with);
        let rules = rules.unwrap_or_else(|error| panic!("{}: {}", file.display(), error.render(false)));
        assert_eq!(rules, with.rules);
    }
}

#[test]
fn ten_thousand_wrong_rules_are_told_quickly() {
    // All the same twice: 10,000 contradictions.
    let text = many(10_000);
    let rules = &text[AROUND.len()..];
    let again = rules.replace("\"rule", "\"again").replace("drop = true", "normal = true");
    let begin = Instant::now();
    let error = parse("host.toml", &format!("{text}{again}")).unwrap_err();
    assert!(begin.elapsed() < SLOW);
    assert_eq!(error.to_string(), "host.toml has 10000 errors");
    assert_eq!(error.findings().len(), 50);
    let last = error.findings().last().unwrap().remedy().unwrap().to_owned();
    assert!(last.ends_with("; and 9950 more like this"), "{last}");
    assert!(error.render(false).len() < 1 << 20);
}

#[test]
fn there_is_a_most_of_rules_and_of_elements() {
    let rules = |count: usize| "[[rule]]\ncount = true\n".repeat(count);
    let running = Host::default();
    assert_eq!(parse_rules("rules", &rules(65_536), &running).unwrap().len(), 65_536);
    let error = parse_rules("rules", &rules(65_537), &running).unwrap_err();
    assert_eq!(error.findings()[0].remedy().unwrap(), "a host can have 65536 rules");
    let ports =
        |count: usize| format!("count = true\nmatch = {{ source_ports = {:?} }}", Vec::from_iter(0..count));
    assert_eq!(parse_rules("rules", &ports(1024), &running).unwrap()[0].matches.source_ports.len(), 1024);
    let error = parse_rules("rules", &ports(1025), &running).unwrap_err();
    assert_eq!(error.findings()[0].kind(), Kind::TooMany);
}

#[test]
fn rules_keep_their_numbers_by_name_or_by_what_they_say() {
    let with = |rules: &[&str]| {
        let rules: Vec<String> = rules.iter().map(|rule| format!("[[rule]]\n{rule}\n")).collect();
        host(&format!("{AROUND}{}", rules.concat()))
    };
    let named = |text: &str| format!("name = \"a\"\nmatch = {{ {text} }}\ndrop = true");
    let (tcp, udp) =
        ("match = { protocol = \"tcp\" }\ncount = true", "match = { protocol = \"udp\" }\ncount = true");
    let old = with(&[&named("dscp = 1"), tcp, udp, tcp]);
    let mut new = with(&[tcp, "match = { dscp = 3 }\ncount = true", &named("dscp = 2"), tcp, tcp]);
    assign_ids(&mut new, Some(&old));
    let ids: Vec<RuleId> = new.rules.iter().map(|rule| rule.id).collect();
    // The first of AROUND; tcp; new; named, though it says something else; the second tcp; a third, which is new.
    assert_eq!(ids, [0, 2, 5, 1, 4, 6].map(RuleId));
}
