// SPDX-License-Identifier: Apache-2.0
//! Rules that apply at times, and while a role has a load.

use netvm_config::{Kind, parse_rules, to_toml};
use netvm_model::{Bound, LoadLimit, RoleId};

use super::AROUND;
use crate::{findings, found, host, is, planned};

/// A rule with these keys, behind two ports and a chain.
fn with(keys: &str) -> String {
    format!("{AROUND}\n[[rule]]\nname = \"r\"\n{keys}\nmatch = {{ protocol = \"tcp\" }}\ndrop = true\n")
}

#[test]
fn times_and_loads_are_read_and_written() {
    let keys = "time = [\"Mon-Fri 08:00-18:00\", \"Sat UTC\"]\n\
                load = { role = \"firewall\", above = 60, until = 10, for = 0 }";
    let host = host(&with(keys));
    let rule = &host.rules[1];
    let times: Vec<String> = rule.when().times.iter().map(ToString::to_string).collect();
    assert_eq!(times, ["Mon-Fri 08:00-18:00", "Sat UTC"]);
    let limit = |bound, until, seconds| Some(LoadLimit { role: RoleId(0), bound, until, seconds });
    assert_eq!(rule.when().load, limit(Bound::Above(60), 10, 0));
    assert!(!rule.is_active() && host.rules[0].is_active(), "it waits to be told that it applies");
    assert_eq!(crate::host(&to_toml(&host)).rules, host.rules);

    let read = |load: &str| parse_rules("rule", &format!("{load}\ndrop = true"), &host).unwrap().remove(0);
    let load = |load: &str| read(&format!("load = {{ role = \"firewall\", {load} }}")).when().load;
    assert_eq!(load("above = 61"), limit(Bound::Above(61), 30, 1));
    assert_eq!(load("below = 30, for = 9"), limit(Bound::Below(30), 60, 9));
    assert_eq!(load("below = 80"), limit(Bound::Below(80), 100, 1));
    assert!(read("time = \"22:00-06:00\"").when().load.is_none());
}

#[test]
fn what_is_wrong_has_a_remedy() {
    let load = |keys: &str| format!("load = {{ {keys} }}");
    let cases = [
        ("time = []".to_owned(), "bad_value", "give at least one"),
        ("time = \"Monday 08:00-18:00\"".to_owned(), "bad_value", "days are Mon, Tue"),
        ("time = \"08:00-08:00\"".to_owned(), "bad_value", "for the whole day"),
        ("time = \"8-18\"".to_owned(), "bad_value", "two digits each, not `8`"),
        ("time = \"Mon 08:00-18:00 CET\"".to_owned(), "bad_value", "\" UTC\" behind it"),
        ("time = 8".to_owned(), "wrong_type", "a string in quotes"),
        ("load = 5".to_owned(), "wrong_type", "a table"),
        (load("above = 5"), "missing_key", "name the role"),
        (load("role = \"firewal\", above = 5"), "unknown_name", "did you mean `firewall`?"),
        (load("role = \"firewall\""), "missing_key", "`above` or `below`, in percent"),
        (load("role = \"firewall\", above = 5, below = 3"), "conflict", "keep one"),
        (load("role = \"firewall\", above = 100"), "bad_value", "from 0 to 99"),
        (load("role = \"firewall\", above = 5, until = 6"), "conflict", "at most `above`"),
        (load("role = \"firewall\", below = 5, until = 4"), "conflict", "at least `below`"),
        (load("role = \"firewall\", below = 5, for = 3601"), "bad_value", "from 0 to 3600"),
    ];
    for (keys, code, remedy) in cases {
        let found = findings(&with(&keys));
        assert!(found.iter().any(|finding| is(finding, code, remedy)), "{keys}: {found:#?}");
    }
    // NAT rules always apply.
    let nat = format!("{AROUND}\n[[nat]]\nfrom = \"client\"\nkeep = true\ntime = \"Mon\"\n");
    assert!(found(&nat).iter().any(|(kind, _)| *kind == Kind::UnknownKey));
}

#[test]
fn rules_of_different_times_neither_contradict_nor_hide_each_other() {
    let two = |first: &str, second: &str| {
        let rule = |when: &str, action: &str| {
            format!("[[rule]]\n{when}\nmatch = {{ protocol = \"tcp\" }}\n{action}\n")
        };
        format!("{AROUND}\n{}{}", rule(first, "drop = true"), rule(second, "chain = \"web\""))
    };
    assert_eq!(found(&two("time = \"Mon-Fri\"", "time = \"Sat-Sun\"")), []);
    assert_eq!(found(&two("time = \"Mon-Fri\"", "")), []);
    let kinds = |text: String| found(&text).into_iter().map(|(kind, _)| kind).collect::<Vec<_>>();
    assert_eq!(kinds(two("time = \"Mon\"", "time = \"Mon\"")), [Kind::SameMatch]);
    assert_eq!(kinds(two("", "time = \"Mon\"")), [Kind::Shadowed]);
}

#[test]
fn a_plan_says_when_a_rule_applies() {
    let plan = planned(AROUND, &with("time = \"Mon\"\nload = { role = \"firewall\", above = 5 }"));
    assert!(plan.contains("at Mon while") && plan.contains("above=5"), "{plan}");
}
