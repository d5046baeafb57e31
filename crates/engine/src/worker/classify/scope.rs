// SPDX-License-Identifier: Apache-2.0
//! [`Scope`]: the rules of one side of a port. Received packets and packets to send are looked up by the same code.

use netvm_classifier::Prefilter;
use netvm_switch::Guard;

use crate::ids::PortId;
use crate::policy::{Decision, EgressPolicy, IngressPolicy, Lookup, Outcome, Switching, Tracking};
use crate::snapshot::Snapshot;
use crate::worker::next::Side;

/// The rules that a burst is looked up in, and what holds where none matches.
#[derive(Clone, Copy)]
pub(crate) struct Scope<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) side: Side,
    pub(crate) lookup: &'a Lookup,
    /// The number under which the flow cache has the decisions; `None`: it has none of them.
    pub(crate) cached_as: Option<u16>,
    pub(crate) guard: Option<&'a Guard>,
    /// How connections are tracked, if they are.
    pub(crate) tracking: Option<Tracking>,
    /// The decision, if it is L2 switching for every packet: only the Ethernet header matters.
    pub(crate) switched: Option<u32>,
    /// Finds packets that match no rule, if that is worth while.
    pub(crate) shortcut: Option<UnmatchedFilter<'a>>,
    forward: Outcome,
    undecided: Outcome,
}

/// Proves of packets that they match no rule.
#[derive(Clone, Copy)]
pub(crate) struct UnmatchedFilter<'a> {
    pub(crate) prefilter: &'a Prefilter,
    /// The decision for them.
    pub(crate) decision: u32,
    /// Whether that is L2 switching.
    pub(crate) is_switched: bool,
}

impl<'a> Scope<'a> {
    /// The rules of a port for packets that it has received.
    #[inline(always)]
    pub(crate) fn ingress(snapshot: &'a Snapshot, port: PortId, policy: &'a IngressPolicy) -> Self {
        let shortcut = policy.shortcut.as_ref().map(|shortcut| UnmatchedFilter {
            prefilter: &shortcut.prefilter,
            decision: shortcut.decision,
            is_switched: shortcut.is_switched,
        });
        Self {
            snapshot,
            side: Side::Ingress(port),
            lookup: &policy.lookup,
            cached_as: Some(port.0),
            guard: policy.guard.as_ref(),
            tracking: policy.tracking,
            switched: policy.switched,
            shortcut,
            forward: policy.forward,
            undecided: policy.undecided,
        }
    }

    /// The rules of a port for packets to send whose ingress ports have this class.
    pub(crate) fn egress(
        snapshot: &'a Snapshot,
        out: PortId,
        policy: &'a EgressPolicy,
        class: u16,
    ) -> Option<Self> {
        let lookup = policy.lookups.get(usize::from(class))?;
        // The prefilter does not know the state of a connection.
        let prefilter = lookup.prefilter.as_ref().filter(|_| !snapshot.policy.used.state);
        let shortcut = prefilter.map(|prefilter| UnmatchedFilter {
            prefilter,
            decision: lookup.unmatched(prefilter),
            is_switched: false,
        });
        Some(Self {
            snapshot,
            side: Side::Egress(out),
            lookup,
            cached_as: policy.cached.map(|first| first + class),
            guard: None,
            tracking: None,
            switched: None,
            shortcut,
            forward: Outcome::Allow,
            undecided: policy.undecided,
        })
    }

    /// L2 switching, if packets can be switched by these rules.
    #[inline(always)]
    pub(crate) fn switching(&self) -> Option<&'a Switching> {
        match self.side {
            Side::Ingress(_) => self.snapshot.policy.switching.as_ref(),
            Side::Egress(_) => None,
        }
    }

    /// The outcome of a decision.
    #[inline(always)]
    pub(crate) const fn outcome(&self, decision: &Decision) -> Outcome {
        decision.outcome.resolved(self.forward, self.undecided)
    }

    /// Whether the packets may reach NFs that may give per-flow verdicts.
    #[inline(always)]
    pub(crate) fn may_have_flow_verdicts(&self) -> bool {
        match self.side {
            Side::Ingress(port) => self.snapshot.flow_verdict_ports.has(port),
            Side::Egress(_) => false,
        }
    }
}
