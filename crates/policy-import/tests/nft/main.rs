// SPDX-License-Identifier: Apache-2.0
//! `nft -j list ruleset`: every field and comparison, sets, chains, rules without equivalent, wrong input.

#![allow(clippy::unwrap_used, clippy::panic, clippy::needless_pass_by_value, reason = "tests")]

mod fields;
mod meaning;
mod nat;
mod statements;
mod tracking;
mod wrong;

use netvm_policy::{Action, Match, PortId, Span};
use netvm_policy_import::nft::parse;
use netvm_policy_import::{Imported, ImportedRule, Interfaces, NoteReason};
use netvm_wire::{EtherType, Fragment, IpProto, PortRange};
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

/// A table whose chain has one rule that drops, with sets and limits.
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

/// The matches of a rule that drops and has no note.
fn all(family: &str, matches: &[Value]) -> Vec<Match> {
    let statements = matches.iter().cloned().chain([json!({"drop": null})]).collect();
    let imported = one_rule(family, statements);
    let said: Vec<_> = imported
        .notes
        .iter()
        .filter(|note| note.why != NoteReason::Egress && note.why != NoteReason::Unreached)
        .collect();
    assert!(said.is_empty(), "{said:?}");
    let dropped = |rule: &ImportedRule| rule.actions.terminal == Some(Action::Drop);
    imported.rules.into_iter().filter(dropped).map(|rule| rule.matches).collect()
}

fn one(family: &str, matches: &[Value]) -> Match {
    let [matches] = &all(family, matches)[..] else { panic!("{:?}", all(family, matches)) };
    matches.clone()
}

/// The note of a skipped rule.
fn why(family: &str, statements: Vec<Value>) -> (String, NoteReason) {
    let imported = one_rule(family, statements);
    assert!(imported.rules.iter().all(|rule| rule.name == "policy of forward"), "{:?}", imported.rules);
    let note = imported.notes.iter().find(|note| note.why != NoteReason::Unreached).unwrap();
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
