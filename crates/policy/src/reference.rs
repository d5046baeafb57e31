//! What rules mean, by the plainest means.

use netvm_wire::FlowKey;

use crate::decision::Decision;
use crate::ids::PortId;
use crate::rule::Rule;

/// What the rules say of a packet that came in by `from` (and is to leave by `to`): a linear scan, which classifiers and
/// flattened rules are held against.
#[must_use]
pub fn decide(rules: &[Rule], from: PortId, to: Option<PortId>, key: &FlowKey) -> Decision {
    let mut decision = Decision::default();
    for rule in rules.iter().filter(|rule| rule.matches.fits(from, to, key)) {
        decision = decision.then(&Decision::of(rule));
        if decision.actions.terminal.is_some() {
            break;
        }
    }
    decision
}
