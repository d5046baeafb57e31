// SPDX-License-Identifier: Apache-2.0
//! The combined result of all rules that match a packet.

use netvm_ids::{PortId, QueueId, RuleId};

use crate::rule::{Action, Police, Rule, SetVlan};

/// The actions for a packet, and the rules behind them.
#[derive(Clone, Debug, PartialEq, Eq, Default, Hash)]
pub struct Decision {
    /// The rules that match, in order: those without a terminal action that come before the deciding one, and that one
    /// last.
    pub rules: Vec<RuleId>,
    /// Their combined actions.
    pub actions: Merged,
}

/// The actions of several rules. All parts are done: all of `polices`, then `set_vlan` and `queue`, then `mirrors`
/// (whose copies have the new VLAN and queue), then the terminal action.
#[derive(Clone, Debug, PartialEq, Eq, Default, Hash)]
pub struct Merged {
    /// Where packets go; `None` when no rule decides, and the port's default does.
    pub terminal: Option<Action>,
    /// Changes of the outer tag, each of what the one before left.
    pub set_vlan: Vec<SetVlan>,
    /// Queue at the ports that packets leave by: that of the last rule that names one.
    pub queue: Option<QueueId>,
    /// Ports that get a copy each.
    pub mirrors: Vec<PortId>,
    /// The token buckets, each that of its rule; what exceeds one is dropped.
    pub polices: Vec<(RuleId, Police)>,
    /// Whether clients of TCP prove their addresses, which the rule with the terminal action says.
    pub syn_proxy: bool,
}

impl Decision {
    /// The decision of a single rule.
    #[must_use]
    pub fn of(rule: &Rule) -> Self {
        let actions = &rule.actions;
        Self {
            rules: vec![rule.id],
            actions: Merged {
                terminal: actions.terminal,
                set_vlan: actions.set_vlan.into_iter().collect(),
                queue: actions.queue,
                mirrors: actions.mirror.into_iter().collect(),
                polices: actions.police.into_iter().map(|police| (rule.id, police)).collect(),
                syn_proxy: actions.syn_proxy,
            },
        }
    }

    /// Combines this one, which has no terminal action, with the decision of later rules.
    #[must_use]
    pub(crate) fn then(&self, later: &Self) -> Self {
        let (first, second) = (&self.actions, &later.actions);
        Self {
            rules: joined(&self.rules, &later.rules),
            actions: Merged {
                terminal: second.terminal,
                set_vlan: joined(&first.set_vlan, &second.set_vlan),
                queue: second.queue.or(first.queue),
                mirrors: joined(&first.mirrors, &second.mirrors),
                polices: joined(&first.polices, &second.polices),
                syn_proxy: second.syn_proxy,
            },
        }
    }
}

fn joined<T: Copy>(first: &[T], second: &[T]) -> Vec<T> {
    [first, second].concat()
}
