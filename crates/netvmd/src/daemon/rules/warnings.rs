// SPDX-License-Identifier: Apache-2.0
//! Warnings about a rule that was added.

use netvm_model::{Host, Rule};
use netvm_policy::analyse::{Kind, Warning, about};

use crate::lookup::labels;

/// Most warnings reported for one rule.
const MAX_WARNINGS: usize = 5;

/// Warnings about the rule at `index` and the rules that it affects.
pub(super) fn warnings(host: &Host, index: usize) -> Vec<String> {
    let unmatched = host.rules.get(index).map(|rule| labels::problems_of(host, rule)).unwrap_or_default();
    [among(&host.rules, index), unmatched].concat()
}

/// Warnings about the rule and others.
fn among(rules: &[Rule], index: usize) -> Vec<String> {
    let named = |index: usize| match rules.get(index) {
        Some(rule) if !rule.name.is_empty() => format!("rule {} ({})", rule.id, rule.name),
        Some(rule) => format!("rule {}", rule.id),
        None => "a rule".to_owned(),
    };
    let text = |warning: &Warning| {
        let rule = named(warning.rule);
        let other = warning.other.map_or_else(String::new, named);
        match warning.kind {
            Kind::Shadowed | Kind::ShadowedTogether => {
                format!("{rule} never matches: {other}, which is earlier, matches all its packets")
            }
            Kind::Duplicate => format!("{rule} never matches: {other}, which is earlier, is identical"),
            Kind::Contradiction => {
                format!(
                    "{rule} never matches: {other}, which is earlier, matches the same packets and decides differently"
                )
            }
            Kind::Overlap => {
                format!("{rule} and {other}, which is earlier, decide differently on packets that match both")
            }
            Kind::Impossible(why) => format!("no packet can match {rule}: {why}"),
        }
    };
    let found = about(rules, index);
    let mut texts: Vec<String> = found.iter().take(MAX_WARNINGS).map(text).collect();
    if found.len() > MAX_WARNINGS {
        texts.push(format!("and {} more warnings", found.len() - MAX_WARNINGS));
    }
    texts
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn warnings_name_the_shadowing_rule() {
        let text = "[[rule]]\nname = \"all\"\ndrop = true\n[[rule]]\nallow = true\n\
                    [[rule]]\nmatch = { protocol = \"tcp\" }\nallow = true\n";
        let rules = netvm_config::parse_rules("rules", text, &Host::default()).unwrap();
        let texts = among(&rules, 0);
        let first = format!(
            "rule {} never matches: rule {} (all), which is earlier, matches the same packets and decides differently",
            rules[1].id, rules[0].id
        );
        let second = format!(
            "rule {} never matches: rule {} (all), which is earlier, matches all its packets",
            rules[2].id, rules[0].id
        );
        assert_eq!(texts, [first, second]);
        let many: Vec<Rule> = std::iter::repeat_n(rules[1].clone(), 9).collect();
        let texts = among(&many, 0);
        assert_eq!((texts.len(), texts[5].as_str()), (6, "and 3 more warnings"));
    }
}
