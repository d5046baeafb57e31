// SPDX-License-Identifier: Apache-2.0
//! Wrong and arbitrary input.

use netvm_policy::Action;
use netvm_policy_import::nft::{NftError, parse};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{base, chain, compare, equal, interfaces, meta, one_rule, payload, rule, ruleset};

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
        "line 1: `add` is a command: provide output of `nft -j list ruleset`"
    );
    assert_eq!(
        objects(vec![json!({"metainfo": {"json_schema_version": 2}})]),
        "line 1: unsupported schema version 2: this netvm supports version 1"
    );
    assert_eq!(objects(vec![json!(5)]), "line 1, object: expected an object with one member, found 5");
    assert_eq!(
        objects(vec![base("ip", "drop"), base("ip", "drop")]),
        "line 1: chain ip t forward occurs twice: import one ruleset at a time"
    );
    assert_eq!(
        objects(vec![rule("ip", "none", json!([]))]),
        "line 1, rule 7 of chain ip t none: no chain none in this table"
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
        "line 1, rule 7 of chain ip t forward: no chain x in this table"
    );
    let looped = vec![
        base("ip", "drop"),
        chain("ip", "web"),
        rule("ip", "forward", json!([{"jump": {"target": "web"}}])),
        rule("ip", "web", json!([{"jump": {"target": "web"}}])),
    ];
    assert!(matches!(parse(&ruleset(looped), &interfaces()), Err(NftError::Expand(_))));
}

/// JSON of words from nft.
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
    fn any_text_is_parsed_or_refused(text: String) {
        let _ = parse(&text, &interfaces());
        let _ = parse(&format!("{{\"nftables\":[{text}]}}"), &interfaces());
    }

    #[test]
    fn almost_rulesets_are_parsed_or_refused(objects in prop::collection::vec(nearly(), 0..4), statements in prop::collection::vec(nearly(), 0..4)) {
        let _ = parse(&ruleset(objects), &interfaces());
        let whole = vec![base("inet", "drop"), chain("inet", "web"), rule("inet", "forward", Value::Array(statements))];
        let _ = parse(&ruleset(whole), &interfaces());
    }

    /// Comparisons of ports agree with comparing numbers.
    #[test]
    fn comparisons_are_those_of_numbers(op in prop::sample::select(&["==", "!=", "<", "<=", ">", ">="][..]), value: u16, port: u16) {
        let imported = one_rule("inet", vec![compare(op, payload("udp", "dport"), json!(value)), json!({"drop": null})]);
        let fits = imported.rules.iter().filter(|rule| rule.actions.terminal == Some(Action::Drop)).any(|rule| {
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
