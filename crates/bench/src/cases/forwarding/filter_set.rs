// SPDX-License-Identifier: Apache-2.0
//! A filter set of drop rules that no packet of the benchmarks matches, for netvm and for its peers.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use netvm_model::{Action, Actions, Match, Rule, RuleId, RuleParts};
use netvm_policy_import::classbench::{self, Flags};
use netvm_wire::{IpNet, IpProto, PortRange};
use netvm_workload::rules;

use crate::error::{BenchError, RulesError};
use crate::peers::ovs::drops;

/// The rules, and the same as OpenFlow flows.
pub struct FilterSet {
    matches: Vec<Match>,
    flows: Vec<String>,
}

impl FilterSet {
    /// The set of a file (ClassBench's format), or a generated one of so many rules.
    ///
    /// # Errors
    /// [`BenchError::Rules`] names the file.
    pub fn load(path: Option<&Path>, count: usize) -> Result<Self, BenchError> {
        let read = || -> Result<Self, RulesError> {
            let text = match path {
                Some(path) => fs::read_to_string(path)?,
                None => rules::filter_set(&rules::ACL1, count, rules::SEED),
            };
            let imported = classbench::parse(&text, Actions::default(), Flags::Ignore)?;
            let matches: Vec<Match> = imported.rules.into_iter().map(|rule| rule.matches).collect();
            let flows = drops(&matches, 1)?;
            Ok(Self { matches, flows })
        };
        read().map_err(|source| BenchError::Rules {
            path: path.unwrap_or(Path::new("generated")).to_owned(),
            source,
        })
    }

    /// The rules of netvm.
    pub fn rules(&self) -> Vec<Rule> {
        let actions = Actions { terminal: Some(Action::Drop), ..Actions::default() };
        let numbered = (0..).map(RuleId).zip(self.matches.clone());
        numbered
            .map(|(id, matches)| Rule::from(RuleParts { id, name: String::new(), matches, actions }))
            .collect()
    }

    /// The flows of OpenFlow. Port ranges take several, and rules that differ only in TCP flags take one.
    pub fn flows(&self) -> &[String] {
        &self.flows
    }

    /// The rules for nft, in `chain`.
    pub fn nft(&self, chain: &str) -> String {
        self.matches.iter().flat_map(nft_rules).fold(String::new(), |mut text, rule| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "add rule {chain} ether type ip {rule} drop");
            text
        })
    }
}

/// One rule for each protocol, as nft knows sets of addresses and ports, but ports only of a protocol.
fn nft_rules(matches: &Match) -> impl Iterator<Item = String> {
    let networks =
        |name: &str, list: &[IpNet]| set(&format!("ip {name}"), list.iter().map(ToString::to_string));
    let ports = |name: &str, list: &[PortRange]| {
        let ranges = list.iter().filter(|range| **range != PortRange::ANY);
        set(&format!("th {name}"), ranges.map(|range| format!("{}-{}", range.first(), range.last())))
    };
    let addresses = networks("saddr", &matches.source) + &networks("daddr", &matches.destination);
    let ports = ports("sport", &matches.source_ports) + &ports("dport", &matches.destination_ports);
    let with = |protocol: Option<IpProto>| {
        let protocol = protocol.map_or(String::new(), |protocol| format!("ip protocol {} ", protocol.0));
        format!("{addresses}{protocol}{ports}")
    };
    let protocols: Vec<_> = matches.protocol.iter().copied().map(Some).collect();
    let protocols = if protocols.is_empty() { vec![None] } else { protocols };
    protocols.into_iter().map(with).collect::<Vec<_>>().into_iter()
}

fn set(field: &str, values: impl Iterator<Item = String>) -> String {
    let values: Vec<String> = values.collect();
    if values.is_empty() { String::new() } else { format!("{field} {{ {} }} ", values.join(", ")) }
}

#[cfg(test)]
mod tests {
    use netvm_wire::FlowKey;

    use super::*;
    use crate::setup::traffic::frame;

    #[test]
    fn no_flow_matches_the_filter_sets() {
        for count in [971, 1000] {
            let set = FilterSet::load(None, count).unwrap();
            assert_eq!(set.matches.len(), count);
            assert!(set.flows.len() > count, "{} flows", set.flows.len());
            assert!(set.nft("bridge b forward").lines().count() >= count);
            for flow in (0..20_000).chain(1 << 40..(1 << 40) + 20_000) {
                let frame = frame(flow, flow % 2 == 0);
                let key = FlowKey::of_frame(&frame[..60], 60).unwrap();
                let rule = set.matches.iter().position(|rule| rule.fits_key(&key));
                assert_eq!(rule, None, "flow {flow}: {key:?}");
            }
        }
    }
}
