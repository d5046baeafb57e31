// SPDX-License-Identifier: Apache-2.0
//! Labels of rules that no port has now. Containers and guests bring theirs when they come, so this is no error; but
//! the label may be misspelt. In: a configuration with all ports. Out: each such label once, with the remedy.

use std::collections::{BTreeSet, HashSet};

use netvm_config::{Missing, MissingKind};
use netvm_model::words::nearest;
use netvm_model::{Host, Label, Rule, Selection};

/// Labels of ports that a message lists.
const MAX_LISTED: usize = 5;
/// Messages that a list of problems has about labels.
const MAX_PROBLEMS: usize = 3;

/// A label that selects no port.
struct Unmatched<'a> {
    /// Index of the first rule that names it.
    rule: usize,
    key: &'static str,
    label: &'a Label,
}

/// As warnings about a file, each at the first rule that names the label.
pub(super) fn missing(host: &Host) -> Vec<Missing> {
    let known = known(host);
    let missing = |it: Unmatched<'_>| {
        let (item, key, message) = (it.rule, it.key, message(host, it.label, &known));
        Missing { table: "rule", item, key, message, kind: MissingKind::Absent }
    };
    unmatched(host, host.rules.iter()).into_iter().map(missing).collect()
}

/// About one rule, a line for each label.
pub(crate) fn problems_of(host: &Host, rule: &Rule) -> Vec<String> {
    let found = unmatched(host, [rule]);
    if found.is_empty() {
        return Vec::new();
    }
    let known = known(host);
    found.iter().map(|it| format!("`{}`: {}", it.key, message(host, it.label, &known))).collect()
}

/// About all rules, shortened.
pub(crate) fn problems(host: &Host) -> Vec<String> {
    let found = unmatched(host, host.rules.iter());
    let known = if found.is_empty() { BTreeSet::new() } else { known(host) };
    let line = |it: &Unmatched<'_>| {
        let rule = host.rules.get(it.rule).map(|rule| crate::names::rule_name(host, rule.id));
        let rule = rule.unwrap_or_default();
        format!("rule {rule}, `{}`: {}", it.key, message(host, it.label, &known))
    };
    let mut lines: Vec<String> = found.iter().take(MAX_PROBLEMS).map(line).collect();
    if found.len() > MAX_PROBLEMS {
        let more = found.len() - MAX_PROBLEMS;
        lines.push(format!("rules: {more} more labels that no port has now: `netvm policy` lists them"));
    }
    lines
}

/// Each label of these rules that selects no port, once.
fn unmatched<'a>(host: &Host, rules: impl IntoIterator<Item = &'a Rule>) -> Vec<Unmatched<'a>> {
    let mut seen: HashSet<&Label> = HashSet::new();
    let mut found = Vec::new();
    for (number, rule) in rules.into_iter().enumerate() {
        for (key, label) in rule.selection().into_iter().flat_map(Selection::labels) {
            if seen.insert(label) && !has_port(host, label) {
                found.push(Unmatched { rule: number, key, label });
            }
        }
    }
    found
}

fn has_port(host: &Host, label: &Label) -> bool {
    host.ports.iter().any(|port| label.fits(&port.policy.labels))
}

/// All labels of ports, as rules name them.
fn known(host: &Host) -> BTreeSet<String> {
    let labels = host.ports.iter().flat_map(|port| port.policy.labels.iter());
    labels.map(|(key, value)| format!("{key}={value}")).collect()
}

fn message(host: &Host, label: &Label, known: &BTreeSet<String>) -> String {
    let wrong = label.parts().find(|part| !has_port(host, part));
    let what = wrong.as_ref().unwrap_or(label).to_string();
    let near = wrong.and_then(|_| nearest(&what, known.iter().map(String::as_str)));
    let near = near.map(|near| format!("did you mean `{near}`? ")).unwrap_or_default();
    // Those with the same key first.
    let key = what.trim_start_matches('!').split(['=', '!', ',']).next().unwrap_or_default();
    let of_key = |text: &&String| text.split('=').next() == Some(key);
    let mut listed: Vec<&str> = known
        .iter()
        .filter(of_key)
        .chain(known.iter().filter(|text| !of_key(text)))
        .map(String::as_str)
        .collect();
    let more = listed.len().saturating_sub(MAX_LISTED);
    listed.truncate(MAX_LISTED);
    let others = match (listed.is_empty(), more) {
        (true, _) => "no port has a label".to_owned(),
        (false, 0) => format!("ports have {}", listed.join(", ")),
        (false, more) => format!("ports have {} and {more} more", listed.join(", ")),
    };
    format!(
        "no port has the label `{what}` now: {near}{others}. The rule applies to a port with the label as soon as it comes; \
         `netvm port` lists the labels"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORTS: &str = "[[port]]\nname = \"a\"\nkind = \"sink\"\nlabels = { app = \"web\", tier = \"front\" }\n\
                         [[port]]\nname = \"b\"\nkind = \"sink\"\nlabels = { app = \"db\" }\n";

    fn host(rules: &[&str]) -> Host {
        let rules: Vec<String> = rules
            .iter()
            .map(|from| format!("[[rule]]\nfrom = {{ label = \"{from}\" }}\ndrop = true\n"))
            .collect();
        netvm_config::parse("file", &format!("{PORTS}{}", rules.concat())).unwrap().host
    }

    #[test]
    fn a_label_that_no_port_has_is_named_with_those_that_ports_have() {
        let says = |label: &str| problems(&host(&[label])).concat();
        assert_eq!(says("app=web"), "");
        assert_eq!(says("app!=web,!tier"), "");
        let text = says("app=wbe");
        assert!(text.contains("no port has the label `app=wbe` now: did you mean `app=web`?"), "{text}");
        assert!(text.contains("ports have app=db, app=web, tier=front."), "{text}");
        // Each part of it is there, but of no port all of them.
        let text = says("app=db,tier=front");
        assert!(text.contains("no port has the label `app=db,tier=front` now: ports have"), "{text}");
        let text = says("app=db,teir=front");
        assert!(
            text.contains("label `teir=front` now: did you mean `tier=front`? ports have app=db"),
            "{text}"
        );
        let none = netvm_config::parse("file", "[[rule]]\nto = { label = \"a\" }\ndrop = true").unwrap().host;
        let text = problems(&none).concat();
        assert!(text.contains("`to`: no port has the label `a` now: no port has a label."), "{text}");
    }

    #[test]
    fn each_label_is_named_once_and_many_are_counted() {
        let same = host(&["x=1", "x=1", "app=db"]);
        assert_eq!((problems(&same).len(), missing(&same).len()), (1, 1));
        let many = host(&["x=1", "x=2", "x=3", "x=4", "x=5"]);
        assert_eq!(problems(&many).len(), MAX_PROBLEMS + 1);
        assert!(problems(&many)[MAX_PROBLEMS].contains("2 more labels"), "{:?}", problems(&many));
        let of: Vec<usize> = missing(&many).iter().map(|missing| missing.item).collect();
        assert_eq!(of, [0, 1, 2, 3, 4]);
        assert_eq!(problems_of(&many, &many.rules[4]).len(), 1);
    }
}
