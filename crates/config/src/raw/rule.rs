//! `[[rule]]`.

use toml::Spanned;

use super::{RawRule, RawVerdict, limits, matching, name};
use crate::field::Tag;
use crate::finding::Kind;
use crate::model::Verdict;
use crate::read::Reader;

/// Keys that say where packets go.
const VERDICTS: [&str; 7] = ["chain", "out", "router", "drop", "reject", "allow", "normal"];
/// What a rule can do.
const HOW: &str = "`chain = \"…\"`, `out = \"…\"` (a port), `router = \"…\"`, `drop = true`, `reject = true`, `allow = true` or `normal = true`";

pub(super) fn read(table: &Reader<'_>) -> RawRule {
    let name = if table.key_span("name").is_some() { name(table, "name", "web") } else { None };
    let from = ports(table, "from");
    let to = ports(table, "to");
    let condition = table.table("match", "match");
    let matches = condition.as_ref().map(matching::read).unwrap_or_default();
    let rule = RawRule {
        span: table.span.clone(),
        name,
        from,
        to,
        matches,
        matched: condition.map(|table| table.span),
        verdict: verdict(table),
        set_vlan: table.parsed("set_vlan", str::parse::<Tag>).map(|tag| tag.into_inner().0),
        mirror: table.text("mirror"),
        police: limits::read(table, "police"),
    };
    check_action(table);
    check_egress(table);
    table.finish(&[]);
    rule
}

/// Names of ports, one or several.
fn ports(table: &Reader<'_>, key: &'static str) -> Vec<Spanned<String>> {
    table.set(key, str::parse::<String>)
}

/// Where packets go, if it is said once.
fn verdict(table: &Reader<'_>) -> Option<RawVerdict> {
    let chain = table.text("chain").map(RawVerdict::Chain);
    let out = table.text("out").map(RawVerdict::Port);
    let router = table.text("router").map(RawVerdict::Router);
    let plain = [
        ("drop", Verdict::Drop),
        ("reject", Verdict::Reject),
        ("allow", Verdict::Allow),
        ("normal", Verdict::Normal),
    ];
    let mut verdict = chain.or(out).or(router);
    for (key, word) in plain {
        if yes(table, key) {
            verdict = verdict.or(Some(RawVerdict::Plain(word)));
        }
    }
    if let [first, second, ..] = given(table, &VERDICTS)[..] {
        table
            .findings
            .note(Kind::Conflict, format!("`{second}` and `{first}` in one [[rule]]"))
            .at(table.key_span(second).unwrap_or_default(), "this as well?")
            .at(table.key_span(first).unwrap_or_default(), "this is said already")
            .help(format!("keep one of {HOW}"))
            .keep();
    }
    verdict
}

fn given(table: &Reader<'_>, keys: &[&'static str]) -> Vec<&'static str> {
    keys.iter().copied().filter(|key| table.key_span(key).is_some()).collect()
}

/// A key that is there to be `true`.
pub(super) fn yes(table: &Reader<'_>, key: &'static str) -> bool {
    let flag = table.flag(key);
    if flag == Some(false) {
        table
            .bad_value(key, table.key_span(key).unwrap_or_default(), "is `false`, which says nothing")
            .help(format!("write `{key} = true`, or leave it out"))
            .keep();
    }
    flag == Some(true)
}

/// A rule that does nothing is a slip, unless it says that it only counts.
fn check_action(table: &Reader<'_>) {
    yes(table, "count");
    let does = given(table, &VERDICTS).len() + given(table, &["set_vlan", "mirror", "police", "count"]).len();
    if does == 0 {
        table
            .findings
            .note(Kind::MissingKey, "[[rule]] does not say what is done with the packets")
            .at(table.span.clone(), "nothing is done")
            .help(format!("add {HOW}; `count = true` for a rule that only counts"))
            .keep();
    }
}

/// Packets on their way out have found their way.
fn check_egress(table: &Reader<'_>) {
    let Some(to) = table.key_span("to") else { return };
    for key in given(table, &["chain", "out", "router", "normal"]) {
        table
            .findings
            .note(Kind::Conflict, format!("`{key}` in a [[rule]] with `to`"))
            .at(table.key_span(key).unwrap_or_default(), "too late for this")
            .at(to.clone(), "for packets on their way out")
            .help("such packets can be allowed, dropped or rejected: leave `to` out, or take another verdict")
            .keep();
    }
}
