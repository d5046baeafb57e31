// SPDX-License-Identifier: Apache-2.0
//! Statements, chains and names.

use netvm_policy::{Action, Match, Police, Rate};
use netvm_policy_import::nft::parse;
use netvm_policy_import::{Effect, NoteReason};
use netvm_wire::{EtherType, IpProto};
use serde_json::{Value, json};

use super::{
    all, base, compare, equal, interfaces, meta, nets, one_rule, payload, ports, read, rule, ruleset, v4, why,
};

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
        .map(|rule| (rule.matches.destination_ports.clone(), rule.actions.terminal.unwrap()))
        .collect();
    assert_eq!(
        short,
        [
            (ports(&[(22, 22)]), Action::Allow),
            (ports(&[(80, 80)]), Action::Drop),
            (ports(&[(0, 21), (23, 79), (91, 65535)]), Action::Drop),
            (vec![], Action::Allow),
        ]
    );
}

#[test]
fn statements() {
    let actions = |statements: Vec<Value>| {
        let imported = one_rule("ip", statements);
        let notes: Vec<_> =
            imported.notes.iter().map(|note| note.why).filter(|why| *why != NoteReason::Unreached).collect();
        (imported.rules[0].actions, notes)
    };
    let terminal = |statements: Vec<Value>| {
        let (actions, notes) = actions(statements);
        (actions.terminal, notes)
    };
    assert_eq!(
        terminal(vec![json!({"counter": {"packets": 1, "bytes": 2}}), json!({"drop": null})]),
        (Some(Action::Drop), vec![])
    );
    assert_eq!(terminal(vec![json!({"counter": null})]), (None, vec![]));
    assert_eq!(
        terminal(vec![json!({"log": {"prefix": "x"}}), json!({"drop": null})]),
        (Some(Action::Drop), vec![NoteReason::Log])
    );
    assert_eq!(terminal(vec![json!({"reject": null})]), (Some(Action::Reject), vec![NoteReason::Answer]));
    let reset = vec![equal(meta("l4proto"), json!("tcp")), json!({"reject": {"type": "tcp reset"}})];
    assert_eq!(terminal(reset), (Some(Action::Reject), vec![]));
    let prohibited = vec![
        equal(meta("l4proto"), json!("udp")),
        json!({"reject": {"type": "icmpx", "expr": "admin-prohibited"}}),
    ];
    assert_eq!(terminal(prohibited), (Some(Action::Reject), vec![]));
    let rate = |per_second, burst| Some(Rate { per_second, burst });
    let limit = |limit: Value, end: &str| actions(vec![json!({"limit": limit}), json!({end: null})]);
    let (limited, notes) = limit(json!({"rate": 10, "burst": 5, "per": "second"}), "accept");
    assert_eq!(
        (limited.police, limited.terminal),
        (Some(Police { packets: rate(10, 5), bits: None }), Some(Action::Allow))
    );
    assert_eq!(notes, [NoteReason::LimitDrops]);
    let over = json!({"rate": 10, "burst": 100, "per": "second", "inv": true, "rate_unit": "mbytes", "burst_unit": "kbytes"});
    let (limited, notes) = limit(over, "drop");
    let (bits, burst) = (8 * 10 * (1 << 20), 8 * (10 * (1 << 20) + 100 * 1024));
    assert_eq!(
        (limited.police, limited.terminal),
        (Some(Police { packets: None, bits: rate(bits, burst) }), None)
    );
    assert_eq!(notes, [NoteReason::LimitBytes]);
    assert_eq!(limit(json!("lim"), "accept").0.police, Some(Police { packets: rate(10, 5), bits: None }));
    let behind = vec![json!({"limit": "lim"}), equal(meta("l4proto"), json!("tcp")), json!({"accept": null})];
    assert_eq!(actions(behind).1, [NoteReason::LimitOrder, NoteReason::LimitDrops]);
    let stopped = |statement: Value| why("ip", vec![statement, json!({"accept": null})]);
    assert_eq!(stopped(json!({"limit": {"rate": 5, "per": "minute"}})).1, NoteReason::SlowRate);
    assert_eq!(stopped(json!({"limit": "none"})), ("limit none".into(), NoteReason::Missing));
    assert_eq!(why("ip", vec![json!({"limit": "lim"}), json!({"drop": null})]).1, NoteReason::LimitUse);
    let status = json!({"match": {"op": "in", "left": {"ct": {"key": "status"}}, "right": "assured"}});
    assert_eq!(stopped(status), ("ct status".into(), NoteReason::ConnectionState));
    assert_eq!(stopped(equal(meta("mark"), json!(1))), ("meta mark".into(), NoteReason::Match));
    assert_eq!(stopped(equal(payload("ip", "ttl"), json!(1))), ("ip ttl".into(), NoteReason::Match));
    assert_eq!(
        stopped(json!({"xt": {"type": "match", "name": "multiport"}})),
        ("xt multiport".into(), NoteReason::Xtables)
    );
    let dscp = json!({"mangle": {"key": payload("ip", "dscp"), "value": 5}});
    assert_eq!(stopped(dscp), ("mangle".into(), NoteReason::Action));
    assert_eq!(stopped(json!({"queue": null})), ("queue".into(), NoteReason::Action));
    // What neither matches nor decides is left out, and the verdict stays.
    let marks = json!({"mangle": {"key": meta("mark"), "value": 5}});
    assert_eq!(terminal(vec![marks, json!({"drop": null})]), (Some(Action::Drop), vec![NoteReason::Undone]));
    assert_eq!(
        stopped(equal(payload("ip", "saddr"), json!("@seen"))),
        ("@seen".into(), NoteReason::DynamicSet)
    );
    assert_eq!(stopped(equal(payload("ip", "saddr"), json!("@none"))), ("@none".into(), NoteReason::Missing));
    assert_eq!(stopped(equal(payload("ip", "saddr"), json!("@empty"))).1, NoteReason::NeverFits);
    assert_eq!(stopped(equal(payload("ip6", "saddr"), json!("::1"))).1, NoteReason::NeverFits);
    let add = json!({"set": {"op": "add", "elem": payload("ip", "saddr"), "set": "@nets"}});
    assert_eq!(terminal(vec![add, json!({"drop": null})]), (Some(Action::Drop), vec![NoteReason::Undone]));
}

#[test]
fn what_is_left_out_has_an_effect() {
    let drop = || json!({"drop": null});
    let effect = |statements: Vec<Value>| one_rule("ip", statements).effect();
    assert_eq!(effect(vec![equal(meta("mark"), json!(1)), drop()]), Effect::Wider);
    assert_eq!(
        effect(vec![equal(meta("mark"), json!(1)), json!({"jump": {"target": "web"}})]),
        Effect::Wider
    );
    assert_eq!(effect(vec![json!({"queue": {"num": 0}})]), Effect::Wider);
    assert_eq!(effect(vec![equal(meta("mark"), json!(1)), json!({"log": null})]), Effect::Same);
    // The policy accepts.
    assert_eq!(effect(vec![equal(meta("mark"), json!(1)), json!({"accept": null})]), Effect::Same);
    assert_eq!(effect(vec![equal(meta("mark"), json!(1)), json!({"return": null})]), Effect::Same);
    assert_eq!(effect(vec![equal(meta("iifname"), json!("wan")), drop()]), Effect::Wider);
    assert_eq!(effect(vec![compare("!=", meta("iifname"), json!("wan")), drop()]), Effect::Wider);
    let some = equal(meta("iifname"), json!({"set": ["wan", "eth0"]}));
    assert_eq!(effect(vec![some, drop()]), Effect::Wider);
    // Forwarded packets pass these chains, too.
    let hooked = |kind: &str, hook: &str, statement: Value| {
        let chain = json!({"chain": {"family": "ip", "table": "t", "name": "c", "type": kind, "hook": hook, "prio": 0, "policy": "accept"}});
        let rule =
            json!({"rule": {"family": "ip", "table": "t", "chain": "c", "handle": 7, "expr": [statement]}});
        read(vec![base("ip", "accept"), chain, rule]).effect()
    };
    assert_eq!(hooked("filter", "prerouting", drop()), Effect::Wider);
    assert_eq!(hooked("filter", "prerouting", json!({"accept": null})), Effect::Same);
    assert_eq!(hooked("filter", "input", drop()), Effect::Same);
    assert_eq!(hooked("nat", "prerouting", json!({"dnat": {"addr": "10.0.0.1"}})), Effect::Same);
    assert_eq!(hooked("nat", "prerouting", drop()), Effect::Wider);
    assert_eq!(hooked("nat", "postrouting", json!({"masquerade": null})), Effect::Same);
    let all_ports = read(vec![
        base("inet", "accept"),
        rule_of("inet", vec![equal(meta("iifname"), json!("wan")), drop()]),
    ]);
    assert_eq!(all_ports.effect(), Effect::Wider);
    let text = ruleset(vec![
        base("inet", "accept"),
        rule_of("inet", vec![equal(meta("iifname"), json!("wan")), drop()]),
    ]);
    assert_eq!(parse(&text, &interfaces().complete()).unwrap().effect(), Effect::Same);
}

fn rule_of(family: &str, statements: Vec<Value>) -> Value {
    rule(family, "forward", Value::Array(statements))
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
    assert_eq!(notes, [("chain c7", NoteReason::Hook)]);
    let short: Vec<_> = imported
        .rules
        .iter()
        .map(|rule| {
            let Match { from, ether_type, source, destination_ports, .. } = &rule.matches;
            (
                from.len(),
                ether_type.clone(),
                source.len() + destination_ports.len(),
                rule.actions.terminal.unwrap(),
            )
        })
        .collect();
    let (v4, v6) = (EtherType::IPV4, EtherType::IPV6);
    assert_eq!(
        short,
        [
            (1, vec![EtherType::ARP], 0, Action::Drop),
            // Packets that the device's chain accepts enter later chains.
            (1, vec![v4], 1, Action::Drop),
            (1, vec![v4], 1, Action::Allow),
            (1, vec![v4], 0, Action::Drop),
            (1, vec![v4, v6], 0, Action::Allow),
            (1, vec![], 0, Action::Allow),
            // So do packets from other ports.
            (0, vec![v4], 1, Action::Drop),
            (0, vec![v4], 1, Action::Allow),
            (0, vec![v4], 0, Action::Drop),
            (0, vec![v4, v6], 0, Action::Allow),
        ]
    );
    let both =
        read(vec![hooked("bridge", "a", "forward", 0, "accept"), hooked("ip", "b", "forward", 1, "accept")]);
    assert_eq!(both.notes[0].why, NoteReason::BridgeAndIp);
    let lost = json!({"chain": {"family": "netdev", "table": "x", "name": "y", "handle": 1, "type": "filter", "hook": "ingress",
        "dev": ["wan"], "prio": 0, "policy": "drop"}});
    let lost = read(vec![lost]);
    assert_eq!((lost.rules.len(), lost.notes[0].why), (0, NoteReason::NoDevice));
    let silent = json!({"chain": {"family": "netdev", "table": "x", "name": "y", "handle": 1, "hook": "ingress", "prio": 0}});
    let silent = read(vec![
        silent,
        json!({"rule": {"family": "netdev", "table": "x", "chain": "y", "expr": [{"drop": null}]}}),
    ]);
    let notes: Vec<_> = silent.notes.iter().map(ToString::to_string).collect();
    assert_eq!(notes, ["line 1: chain y: nft does not print the device of this chain; it is skipped"]);
    let dormant = read(vec![
        json!({"table": {"family": "ip", "name": "t", "handle": 1, "flags": "dormant"}}),
        base("ip", "drop"),
        rule("ip", "t", 0, meta("l4proto"), json!("tcp"), "drop"),
    ]);
    assert_eq!((dormant.rules.len(), dormant.notes[0].why), (0, NoteReason::Dormant));
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
        // The line where the object starts as an element of the array.
        assert!(lines[rule.line as usize].contains("\"rule\""), "{}", rule.line);
    }
}
