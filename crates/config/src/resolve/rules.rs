//! Rules, whose ports, chains and routers have numbers by now.

use toml::Spanned;

use super::names::Names;
use crate::finding::{Findings, Kind};
use crate::model::{Actions, ChainId, MAX_RULES, Match, PortId, RouterId, Rule, RuleId, RuleParts, Verdict};
use crate::raw::{RawRule, RawVerdict};

/// Rules need no names, but no two can have the same.
pub(super) fn resolve(
    findings: &Findings,
    raw: &[RawRule],
    port: impl Fn(&Spanned<String>) -> Option<PortId>,
    chain: impl Fn(&Spanned<String>) -> Option<ChainId>,
    router: impl Fn(&Spanned<String>) -> Option<RouterId>,
) -> Vec<Rule> {
    let named = raw.iter().map(|rule| &rule.name).filter(|name| name.is_some());
    Names::new(findings, "rule", usize::MAX, named);
    if let Some(extra) = raw.get(MAX_RULES) {
        findings
            .note(Kind::TooMany, format!("more than {MAX_RULES} rules"))
            .at(extra.span.clone(), "one too many")
            .help(format!("a host can have {MAX_RULES} rules"))
            .keep();
    }
    let resolve = |(number, item): (u32, &RawRule)| {
        let ports = |names: &[Spanned<String>]| names.iter().filter_map(&port).collect();
        let verdict = item.verdict.as_ref().and_then(|verdict| match verdict {
            RawVerdict::Chain(name) => chain(name).map(Verdict::Chain),
            RawVerdict::Port(name) => port(name).map(Verdict::Port),
            RawVerdict::Router(name) => router(name).map(Verdict::Router),
            RawVerdict::Plain(verdict) => Some(*verdict),
        });
        Rule::from(RuleParts {
            id: RuleId(number),
            name: item.name.as_ref().map(|name| name.get_ref().clone()).unwrap_or_default(),
            matches: Match { from: ports(&item.from), to: ports(&item.to), ..item.matches.clone() },
            actions: Actions {
                verdict,
                set_vlan: item.set_vlan,
                mirror: item.mirror.as_ref().and_then(&port),
                police: item.police,
            },
        })
    };
    (0..).zip(raw).map(resolve).collect()
}
