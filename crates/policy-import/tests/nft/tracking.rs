// SPDX-License-Identifier: Apache-2.0
//! States of connections, and what chains with hook prerouting change of them.

use netvm_policy::PortId;
use netvm_policy_import::{Effect, Imported, NoteReason};
use netvm_wire::ConnState::{self, Established, Invalid, New, Related, Untracked};
use serde_json::{Value, json};

use super::{base, compare, equal, ip, meta, one, one_rule, payload, read, rule, why};

fn state() -> Value {
    json!({"ct": {"key": "state"}})
}

#[test]
fn states_are_matched() {
    let states = |op, right| one("inet", &[compare(op, state(), right)]).state;
    assert_eq!(states("in", json!(["established", "related"])), [Established, Related]);
    assert_eq!(states("in", json!("invalid")), [Invalid]);
    assert_eq!(states("==", json!({"set": ["new", "untracked"]})), [Untracked, New]);
    assert_eq!(states("!=", json!("invalid")), [Untracked, New, Established, Related]);
    assert_eq!(states("!", json!(["new", "invalid"])), [Untracked, Established, Related]);
    let masked = json!({"&": [state(), {"|": ["established", "related"]}]});
    assert_eq!(one("ip", &[compare("!=", masked, json!(0))]).state, [Established, Related]);
    assert_eq!(one("inet", &[compare("in", state(), json!("new"))]).ether_type, ip().ether_type);
    let pair = json!({"concat": [state(), meta("iifname")]});
    let pair = one("inet", &[equal(pair, json!({"set": [{"concat": ["new", "eth1"]}]}))]);
    assert_eq!((pair.state, pair.from), (vec![New], vec![PortId(1)]));
}

#[test]
fn states_have_verdicts() {
    let verdicts = json!([["established", {"accept": null}], ["related", {"accept": null}], ["invalid", {"drop": null}]]);
    let imported = one_rule("inet", vec![json!({"vmap": {"key": state(), "data": {"set": verdicts}}})]);
    let states: Vec<_> = imported.rules.iter().map(|rule| rule.matches.state.clone()).collect();
    assert_eq!(states, [vec![Established], vec![Related], vec![Invalid], vec![]]);
    assert_eq!(imported.effect(), Effect::Same);
}

#[test]
fn what_has_no_state_is_refused() {
    let drop = || json!({"drop": null});
    let status = json!({"ct": {"key": "status"}});
    let stopped = |family, left, right| why(family, vec![compare("in", left, json!(right)), drop()]).1;
    assert_eq!(stopped("ip", status, "assured"), NoteReason::ConnectionState);
    // ARP is untracked there.
    assert_eq!(stopped("bridge", state(), "untracked"), NoteReason::Opposite);
    assert_eq!(one("bridge", &[compare("in", state(), json!("new"))]).state, [New]);
}

/// A chain with these statements that packets pass before, and one that accepts `states`.
fn imported(priority: i64, before: &[Value], states: &str) -> Imported {
    let chain = json!({"chain": {"family": "inet", "table": "t", "name": "raw", "handle": 9, "type": "filter",
        "hook": "prerouting", "prio": priority, "policy": "accept"}});
    let accept = json!([compare("in", state(), json!(states)), {"accept": null}]);
    let rules = before.iter().map(|statements| rule("inet", "raw", statements.clone()));
    let objects = [vec![base("inet", "drop"), chain], rules.collect(), vec![rule("inet", "forward", accept)]];
    read(objects.concat())
}

fn allowed(imported: &Imported) -> Vec<(Vec<ConnState>, usize)> {
    let rules = imported.rules.iter().filter(|rule| rule.name != "policy of forward");
    rules.map(|rule| (rule.matches.state.clone(), rule.matches.protocol.len())).collect()
}

#[test]
fn packets_that_are_not_tracked_are_untracked() {
    let notrack = [json!([equal(meta("l4proto"), json!("udp")), {"notrack": null}])];
    let established = imported(-300, &notrack, "established");
    assert_eq!((established.effect(), allowed(&established)), (Effect::Same, vec![(vec![Established], 255)]));
    assert!(established.notes.is_empty(), "{:?}", established.notes);
    let untracked = imported(-300, &notrack, "untracked");
    assert_eq!(allowed(&untracked), [(vec![Untracked], 255), (vec![], 1)]);
    // Their connections have been looked up there.
    assert_eq!(allowed(&imported(-150, &notrack, "established")), [(vec![Established], 0)]);
}

#[test]
fn zones_of_ports_are_kept_and_helpers_refused() {
    let zone = |value: Value| json!({"mangle": {"key": {"ct": {"key": "zone"}}, "value": value}});
    let zoned = imported(-300, &[json!([equal(meta("iifname"), json!("eth1")), zone(json!(7))])], "new");
    assert_eq!((zoned.effect(), &zoned.zones[..]), (Effect::Same, &[(PortId(1), 7)][..]));
    let refused = |priority, statements: Value| {
        let imported = imported(priority, &[statements], "new");
        assert_eq!(imported.effect(), Effect::Wider, "{:?}", imported.notes);
        imported.notes.iter().find(|note| note.effect == Effect::Wider).unwrap().why
    };
    let map = json!({"map": {"key": meta("iifname"), "data": {"set": [["eth0", 1]]}}});
    assert_eq!(refused(-300, json!([zone(map)])), NoteReason::Zone);
    assert_eq!(
        refused(-300, json!([equal(payload("ip", "ttl"), json!(1)), {"notrack": null}])),
        NoteReason::Untracked
    );
    let ftp = json!([equal(payload("tcp", "dport"), json!(21)), {"ct helper": "ftp"}]);
    assert_eq!(refused(-150, ftp), NoteReason::Helper);
}
