// SPDX-License-Identifier: Apache-2.0
//! Decisions: the result of a rule lookup.

use std::ops::Deref;
use std::sync::Arc;

use netvm_model::{Action, Forward, SetVlan};
use netvm_policy::{QueueId, RouterId, RuleId};
use netvm_switch::Meter;

use crate::drop_reason::DropReason;
use crate::ids::{ChainId, PortId};

/// Decision for packets without a matching rule at ports that deny them.
pub(crate) const DENY: u32 = 0;
/// Decision for packets without a matching rule at ports that allow them.
pub(crate) const ALLOW: u32 = 1;
/// Decision for packets with a spoofed source.
pub(crate) const SPOOFED: u32 = 2;

/// Decision for packets that would begin a connection for which there is no room.
pub(crate) const NO_ROOM: u32 = 3;
/// Decision for packets that would begin a connection beyond a quota.
pub(crate) const OVER_QUOTA: u32 = 4;
/// Decision for packets of connections that NAT has no port for.
pub(crate) const NO_NAT_PORT: u32 = 5;
/// Decision for packets that NAT cannot translate.
pub(crate) const NOT_TRANSLATABLE: u32 = 6;

/// Decision for SYNs that the SYN proxy has answered.
pub(crate) const SYN_ANSWERED: u32 = 7;
/// Decision for packets of TCP that a rule with a SYN proxy accepts, of no connection, and without a cookie.
pub(crate) const WRONG_COOKIE: u32 = 8;

/// Decision for packets that would begin a connection beyond a quota of half-open ones.
pub(crate) const OVER_HALF_OPEN: u32 = 9;

/// Where packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Drop.
    Drop(DropReason),
    /// Drop and answer the sender.
    Reject,
    /// Out of a port.
    Port(PortId),
    /// Into a chain.
    Chain(ChainId),
    /// To L2 switching.
    Normal,
    /// To a virtual router.
    Router(RouterId),
    /// To the ingress port's `forward`; on egress: send.
    Allow,
    /// The port's default.
    Undecided,
}

impl Outcome {
    /// The outcome at a port with this `forward` and this default.
    #[inline(always)]
    pub(crate) const fn resolved(self, forward: Self, undecided: Self) -> Self {
        match self {
            Self::Allow => forward,
            Self::Undecided => undecided,
            other => other,
        }
    }
}

impl From<Action> for Outcome {
    fn from(action: Action) -> Self {
        match action {
            Action::Allow => Self::Allow,
            Action::Drop => Self::Drop(DropReason::Rule),
            Action::Reject => Self::Reject,
            Action::Port(port) => Self::Port(port),
            Action::Chain(chain) => Self::Chain(chain),
            Action::Normal => Self::Normal,
            Action::Router(router) => Self::Router(router),
        }
    }
}

impl From<Forward> for Outcome {
    fn from(forward: Forward) -> Self {
        match forward {
            Forward::None => Self::Drop(DropReason::NoRule),
            Forward::Normal => Self::Normal,
            Forward::Port(port) => Self::Port(port),
            Forward::Chain(chain) => Self::Chain(chain),
            Forward::Router(router) => Self::Router(router),
        }
    }
}

/// Actions besides the outcome and the queue.
#[derive(Debug)]
pub(crate) struct Extras {
    /// Token buckets, all of which must admit a packet.
    pub(crate) meters: Box<[Arc<Meter>]>,
    /// Changes of the outer tag, applied in order.
    pub(crate) set_vlan: Box<[SetVlan]>,
    /// Ports that get a copy.
    pub(crate) mirrors: Box<[PortId]>,
}

/// Outcome and actions for a packet, and the rules that caused them.
#[derive(Debug)]
pub(crate) struct Decision {
    pub(crate) outcome: Outcome,
    /// Queue at the ports that packets leave by; kept in the mbuf, see [`mark`](crate::memory::mark).
    pub(crate) queue: Option<QueueId>,
    /// Rare: most decisions have none.
    pub(crate) extras: Option<Box<Extras>>,
    /// Clients of TCP must acknowledge a cookie before their connections begin.
    pub(crate) syn_proxy: bool,
    /// The matching rules in order, the deciding one last.
    pub(crate) rules: RuleIds,
}

/// Rule ids; usually one.
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

/// The decision for every unknown number.
pub(super) static DENIED: Decision = Decision::default_of(Outcome::Drop(DropReason::Denied));

impl Decision {
    /// A default without a rule.
    pub(super) const fn default_of(outcome: Outcome) -> Self {
        Self { outcome, queue: None, extras: None, syn_proxy: false, rules: RuleIds::None }
    }

    /// Whether nothing happens to packets but that they go where the outcome says.
    #[inline(always)]
    pub(crate) const fn is_plain(&self) -> bool {
        self.queue.is_none() && self.extras.is_none()
    }

    /// A copy for another policy, unless it has extras: token buckets must be looked up again.
    pub(super) fn carried(&self) -> Option<Self> {
        let plain = self.extras.is_none();
        let Self { outcome, queue, syn_proxy, .. } = *self;
        plain.then(|| Self { outcome, queue, extras: None, syn_proxy, rules: self.rules.clone() })
    }
}
