// SPDX-License-Identifier: Apache-2.0
//! The reference semantics of rules: a linear scan.

use netvm_ids::PortId;
use netvm_wire::FlowKey;

use crate::decision::Decision;
use crate::rule::Rule;

/// The decision for a packet received on `from` (and to be sent on `to`). The reference for classifiers and flattened
/// rules.
#[must_use]
pub fn decide(rules: &[Rule], from: PortId, to: Option<PortId>, key: &FlowKey) -> Decision {
    let mut decision = Decision::default();
    for rule in rules.iter().filter(|rule| rule.is_active() && rule.matches.fits(from, to, key)) {
        decision = decision.then(&Decision::of(rule));
        if decision.actions.terminal.is_some() {
            break;
        }
    }
    decision
}
