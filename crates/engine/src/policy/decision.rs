//! What is done with packets.

use std::ops::Deref;
use std::sync::Arc;

use netvm_config::model::SetVlan;
use netvm_policy::{RouterId, RuleId};
use netvm_switch::Meter;

use crate::drop_reason::DropReason;
use crate::ids::{ChainId, PortId};

/// Number of the decision for packets that no rule decides on, at ports that deny them.
pub(crate) const DENY: u32 = 0;
/// Number of the decision for packets that no rule decides on, at ports that allow them.
pub(crate) const ALLOW: u32 = 1;
/// Number of the decision for packets that a port's guest may not send as itself.
pub(crate) const SPOOFED: u32 = 2;

/// Where packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nowhere.
    Drop(DropReason),
    /// Nowhere, and the sender is told.
    Reject,
    /// Out of a port.
    Port(PortId),
    /// Into a chain.
    Chain(ChainId),
    /// Where L2 switching says.
    Normal,
    /// To a virtual router.
    Router(RouterId),
    /// Where the ingress port's `forward` says; on the way out: out.
    Allow,
    /// What the port says of packets that no rule decides on.
    Undecided,
}

impl Outcome {
    /// What it comes to at a port.
    #[inline(always)]
    pub(crate) const fn resolved(self, forward: Self, undecided: Self) -> Self {
        match self {
            Self::Allow => forward,
            Self::Undecided => undecided,
            other => other,
        }
    }
}

/// What is done besides.
#[derive(Debug)]
pub(crate) struct Extras {
    /// All must admit a packet.
    pub(crate) meters: Box<[Arc<Meter>]>,
    /// Changes of the outer tag, each of what the one before left.
    pub(crate) set_vlan: Box<[SetVlan]>,
    /// Ports that get a copy each.
    pub(crate) mirrors: Box<[PortId]>,
}

/// What is done with packets, and which rules say so.
#[derive(Debug)]
pub(crate) struct Decision {
    pub(crate) outcome: Outcome,
    /// Rare: most decisions have none.
    pub(crate) extras: Option<Box<Extras>>,
    /// The rules, in order, the deciding one last.
    pub(crate) rules: RuleIds,
}

/// Numbers of rules: of one, as a rule.
#[derive(Clone, Debug)]
pub(crate) enum RuleIds {
    None,
    One(RuleId),
    More(Arc<[RuleId]>),
}

impl RuleIds {
    pub(super) fn of(rules: &[RuleId]) -> Self {
        match rules {
            [] => Self::None,
            [rule] => Self::One(*rule),
            more => Self::More(more.into()),
        }
    }
}

impl Deref for RuleIds {
    type Target = [RuleId];

    fn deref(&self) -> &[RuleId] {
        match self {
            Self::None => &[],
            Self::One(rule) => std::slice::from_ref(rule),
            Self::More(more) => more,
        }
    }
}

/// That of a number which there is not.
pub(super) static DENIED: Decision =
    Decision { outcome: Outcome::Drop(DropReason::Denied), extras: None, rules: RuleIds::None };

impl Decision {
    /// A default, by no rule.
    pub(super) const fn default_of(outcome: Outcome) -> Self {
        Self { outcome, extras: None, rules: RuleIds::None }
    }

    /// The same for another policy, where that depends on nothing but the rules: token buckets are looked for anew.
    pub(super) fn carried(&self) -> Option<Self> {
        let plain = self.extras.is_none();
        plain.then(|| Self { outcome: self.outcome, extras: None, rules: self.rules.clone() })
    }
}
