// SPDX-License-Identifier: Apache-2.0
//! Chains of type nat.

use netvm_model::{DestinationNat, NatAction, NatAddresses, NatTarget, SourceNat, pool_ports};
use netvm_policy::PortId;
use netvm_policy_import::{Effect, Imported, ImportedNat, NoteReason};
use netvm_wire::{EtherType, PortRange};
use serde_json::{Value, json};

use super::{base, compare, equal, meta, nets, payload, ports, read, rule};

/// A table with a rule in a chain of type nat with this hook.
fn table(hook: &str, statements: Value) -> Imported {
    let priority = if hook == "prerouting" { -100 } else { 100 };
    let chain = json!({"chain": {"family": "inet", "table": "t", "name": "nat", "handle": 9, "type": "nat",
        "hook": hook, "prio": priority, "policy": "accept"}});
    let map = json!({"map": {"family": "inet", "table": "t", "name": "web", "type": "inet_service", "handle": 8,
        "map": "ipv4_addr", "elem": [[80, "10.0.0.2"], [443, "10.0.0.3"]]}});
    read(vec![map, chain, rule("inet", "nat", statements)])
}

fn rules(hook: &str, statements: Value) -> Vec<ImportedNat> {
    let imported = table(hook, statements);
    assert_eq!(imported.effect(), Effect::Same, "{:?}", imported.notes);
    imported.nat
}

fn one(hook: &str, statements: Value) -> ImportedNat {
    let rules = rules(hook, statements);
    let [rule] = &rules[..] else { panic!("{rules:?}") };
    rule.clone()
}

fn why(hook: &str, statements: Value) -> NoteReason {
    let imported = table(hook, statements);
    assert_eq!((imported.effect(), imported.nat.len()), (Effect::Wider, 0), "{:?}", imported.notes);
    imported.notes.iter().find(|note| note.effect == Effect::Wider).unwrap().why
}

fn source(statement: Value) -> SourceNat {
    let rule = one("postrouting", json!([equal(meta("oifname"), json!("eth1")), statement]));
    assert_eq!(rule.matches.to, [PortId(1)]);
    let NatAction::Source(source) = rule.action else { panic!("{rule:?}") };
    source
}

fn tcp(port: u16) -> Value {
    equal(payload("tcp", "dport"), json!(port))
}

fn targets(nat: &ImportedNat) -> Vec<(String, Option<u16>, u16)> {
    let NatAction::Destination(DestinationNat { targets, .. }) = &nat.action else { panic!("{nat:?}") };
    let text = |target: &NatTarget| target.address.map_or(String::new(), |address| address.to_string());
    targets.iter().map(|target| (text(target), target.port, target.weight)).collect()
}

fn end(address: &str, port: Option<u16>, weight: u16) -> (String, Option<u16>, u16) {
    (address.to_owned(), port, weight)
}

#[test]
fn sources_are_translated() {
    assert_eq!(source(json!({"masquerade": null})), SourceNat::default());
    assert_eq!(
        source(json!({"masquerade": {"port": {"range": [2000, 3000]}}})).ports,
        PortRange::new(2000, 3000).unwrap()
    );
    for (addresses, text) in [
        (json!("203.0.113.8"), "203.0.113.8"),
        (json!({"range": ["203.0.113.8", "203.0.113.15"]}), "203.0.113.8-203.0.113.15"),
        (json!({"prefix": {"addr": "203.0.113.16", "len": 28}}), "203.0.113.16-203.0.113.31"),
        (json!("2001:db8::1"), "2001:db8::1"),
    ] {
        let pool = source(json!({"snat": {"addr": addresses, "flags": ["persistent"]}}));
        let NatAddresses::Ranges(ranges) = &pool.addresses else { panic!() };
        assert_eq!((ranges[0].to_string().as_str(), ranges.len(), pool.ports), (text, 1, pool_ports()));
    }
    let four = one("postrouting", json!([{"snat": {"family": "ip", "addr": "203.0.113.8"}}]));
    assert_eq!((four.matches.ether_type, four.matches.to.len()), (vec![EtherType::IPV4], 3));
    let by_network = json!({"map": {"key": payload("ip", "saddr"), "data": {"set": [
        [{"prefix": {"addr": "10.0.0.0", "len": 24}}, "203.0.113.1"],
        [{"prefix": {"addr": "10.0.1.0", "len": 24}}, {"range": ["203.0.113.2", "203.0.113.3"]}]]}}});
    let by_network = rules("postrouting", json!([{"snat": {"family": "ip", "addr": by_network}}]));
    let sources: Vec<_> = by_network.iter().map(|nat| nat.matches.source.clone()).collect();
    assert_eq!(sources, [nets(&["10.0.0.0/24"]), nets(&["10.0.1.0/24"])]);
}

#[test]
fn destinations_are_translated() {
    let dnat = |to: Value| targets(&one("prerouting", json!([tcp(8080), {"dnat": to}])));
    assert_eq!(dnat(json!({"family": "ip", "addr": "10.0.0.2", "port": 80})), [end("10.0.0.2", Some(80), 1)]);
    assert_eq!(dnat(json!({"addr": "fd00::2", "family": "ip6"})), [end("fd00::2", None, 1)]);
    let two = dnat(json!({"addr": {"range": ["10.0.0.2", "10.0.0.3"]}}));
    assert_eq!(two, [end("10.0.0.2", None, 1), end("10.0.0.3", None, 1)]);
    let redirect = one("prerouting", json!([tcp(80), {"redirect": {"port": 3128}}]));
    assert_eq!(targets(&redirect), [end("", Some(3128), 1)]);
    let local = json!({"fib": {"result": "type", "flags": ["daddr"]}});
    let local =
        one("prerouting", json!([equal(local, json!("local")), tcp(80), {"dnat": {"addr": "10.0.0.2"}}]));
    assert!(local.is_local && !redirect.is_local);
}

#[test]
fn maps_become_rules_or_targets() {
    let map = |key: Value, data: Value| json!({"dnat": {"family": "ip", "addr": {"map": {"key": key, "data": data}}}});
    let by_port = |data| rules("prerouting", json!([map(payload("tcp", "dport"), data)]));
    for data in [json!("@web"), json!({"set": [[80, "10.0.0.2"], [443, "10.0.0.3"]]})] {
        let found: Vec<_> =
            by_port(data).iter().map(|nat| (nat.matches.destination_ports.clone(), targets(nat))).collect();
        let first = (ports(&[(80, 80)]), vec![end("10.0.0.2", None, 1)]);
        assert_eq!(found, [first, (ports(&[(443, 443)]), vec![end("10.0.0.3", None, 1)])]);
    }
    let with_ports = by_port(json!({"set": [[80, {"concat": ["10.0.0.2", 8080]}]]}));
    assert_eq!(targets(&with_ports[0]), [end("10.0.0.2", Some(8080), 1)]);
    // Load balancing, by weights.
    for generator in [
        json!({"numgen": {"mode": "random", "mod": 4, "offset": 0}}),
        json!({"jhash": {"mod": 4, "expr": payload("ip", "saddr")}}),
    ] {
        let data = json!({"set": [[0, "10.0.0.2"], [{"range": [1, 3]}, "10.0.0.3"]]});
        let both = one("prerouting", json!([tcp(80), map(generator, data)]));
        assert_eq!(targets(&both), [end("10.0.0.2", None, 1), end("10.0.0.3", None, 3)]);
    }
    // Networks.
    let network = |addr: &str| json!({"prefix": {"addr": addr, "len": 28}});
    let set = json!({"set": [[network("203.0.113.0"), network("10.0.0.16")]]});
    let prefix = json!({"dnat": {"family": "ip", "addr": {"map": {"key": payload("ip", "daddr"), "data": set}},
        "type_flags": "prefix"}});
    assert_eq!(one("prerouting", json!([prefix])).action, NatAction::Network(nets(&["10.0.0.16/28"])[0]));
}

#[test]
fn what_netvm_does_not_have_is_refused() {
    let map = |key: Value, set: Value| json!({"addr": {"map": {"key": key, "data": {"set": set}}}});
    let some = map(json!({"numgen": {"mode": "inc", "mod": 3, "offset": 0}}), json!([[0, "10.0.0.2"]]));
    assert_eq!(why("prerouting", json!([{"dnat": some}])), NoteReason::Translation);
    let pool = map(json!({"numgen": {"mode": "inc", "mod": 1, "offset": 0}}), json!([[0, "10.0.0.2"]]));
    assert_eq!(why("postrouting", json!([{"snat": pool}])), NoteReason::Translation);
    assert_eq!(why("prerouting", json!([tcp(80), {"dnat": {"port": 81}}])), NoteReason::Translation);
    assert_eq!(
        why("prerouting", json!([{"dnat": {"addr": "10.0.0.2", "port": 81}}])),
        NoteReason::TranslatedPorts
    );
    assert_eq!(why("prerouting", json!([{"masquerade": null}])), NoteReason::Action);
    assert_eq!(why("prerouting", json!([{"drop": null}])), NoteReason::TranslationDrops);
    assert_eq!(
        why("postrouting", json!([equal(meta("mark"), json!(1)), {"masquerade": null}])),
        NoteReason::Match
    );
}

#[test]
fn the_first_chain_that_translates_decides() {
    let chain = |name: &str, priority: i64| {
        json!({"chain": {"family": "ip", "table": "t", "name": name, "type": "nat", "hook": "prerouting",
            "prio": priority, "policy": "accept"}})
    };
    let to = |chain: &str, last: Value| rule("ip", chain, json!([tcp(80), last]));
    let found = read(vec![
        chain("late", -90),
        chain("early", -110),
        to("late", json!({"dnat": {"addr": "10.0.0.2"}})),
        to("early", json!({"accept": null})),
        to("early", json!({"dnat": {"addr": "10.0.0.3"}})),
    ]);
    assert_eq!(targets(&found.nat[0]), [end("10.0.0.2", None, 1)]);
}

#[test]
fn translated_connections_are_known_only_where_there_are_none() {
    let status = || compare("in", json!({"ct": {"key": "status"}}), json!("dnat"));
    let filter = || rule("inet", "forward", json!([status(), {"accept": null}]));
    let without = read(vec![base("inet", "drop"), filter()]);
    assert_eq!(without.effect(), Effect::Same, "{:?}", without.notes);
    let chain = json!({"chain": {"family": "inet", "table": "t", "name": "nat", "type": "nat", "hook": "prerouting",
        "prio": -100, "policy": "accept"}});
    let dnat = rule("inet", "nat", json!([tcp(80), {"dnat": {"addr": "10.0.0.2", "family": "ip"}}]));
    let with = read(vec![base("inet", "drop"), filter(), chain, dnat]);
    assert_eq!(with.effect(), Effect::Stricter, "{:?}", with.notes);
    assert!(with.notes.iter().any(|note| note.why == NoteReason::TranslatedStatus));
}
