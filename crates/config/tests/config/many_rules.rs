// SPDX-License-Identifier: Apache-2.0
//! Many rules: how long they take, how many there can be, and which numbers they keep.

use std::fmt::Write;
use std::time::{Duration, Instant};

use netvm_config::{Finding, Kind, parse, parse_rules, to_toml};
use netvm_model::{Action, Actions, Host, Rule, RuleId, RuleParts, assign_ids};
use netvm_policy_import::{ImportedRule, classbench};

use crate::host;
use crate::rules::AROUND;

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
    let written = to_toml(&loaded.host);
    let wrote = begin.elapsed();
    assert_eq!(written.matches("[[rule]]").count(), 10_001);
    println!("10,000 rules: read {read:?}, numbered and planned {planned:?}, written {wrote:?}");
    assert!(read + planned + wrote < SLOW);
}

#[test]
fn imported_filter_sets_can_be_written_and_read_again() {
    let drop = Actions { terminal: Some(Action::Drop), ..Actions::default() };
    for (name, text) in netvm_workload::data::filter_sets().unwrap() {
        let imported = classbench::parse(&text, drop, classbench::Flags::Ignore).unwrap();
        let mut with = Host { rules: Vec::new(), ..host(AROUND) };
        for (id, rule) in (0..).zip(imported.rules) {
            let ImportedRule { name, matches, actions, .. } = rule;
            with.rules.push(Rule::from(RuleParts { id: RuleId(id), name, matches, actions }));
        }
        let written = to_toml(&with);
        let rules = parse_rules("rules", &written[written.find("[[rule]]").unwrap()..], &with);
        let rules = rules.unwrap_or_else(|error| panic!("{name}: {}", error.render(false)));
        assert_eq!(rules, with.rules);
    }
}

#[test]
fn ten_thousand_wrong_rules_are_reported_quickly() {
    // All the same twice: 10,000 contradictions.
    let text = many(10_000);
    let rules = &text[AROUND.len()..];
    let again = rules.replace("\"rule", "\"again").replace("drop = true", "normal = true");
    let begin = Instant::now();
    let loaded = parse("host.toml", &format!("{text}{again}")).unwrap_or_else(|error| panic!("{error}"));
    assert!(begin.elapsed() < SLOW);
    let same = |finding: &&Finding| finding.kind() == Kind::SameMatch;
    assert_eq!(loaded.warnings.iter().filter(same).count(), 50);
    let last = loaded.warnings.iter().rfind(same).unwrap().remedy().unwrap().to_owned();
    assert!(last.ends_with("; and 9950 more like this"), "{last}");
    assert!(loaded.warnings.iter().map(|finding| finding.render(false).len()).sum::<usize>() < 1 << 20);
}

#[test]
fn rules_and_their_elements_have_limits() {
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
