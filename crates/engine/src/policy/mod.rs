// SPDX-License-Identifier: Apache-2.0
//! The compiled policy: immutable, compiled off the packet path, shared by all workers.
//!
//! A worker looks up the flow key of a received packet once among the rules of its port. The result is the number of a
//! [`Decision`], which the flow cache stores. Ports with egress rules add a second lookup on the way out. Decisions 0
//! and 1 are the defaults.

mod compile;
mod counters;
mod decision;
mod error;
mod l2_watch;
mod port;
mod switching;
#[cfg(test)]
mod tests;

pub use compile::Compiler;
pub use counters::RuleCount;
pub(crate) use counters::{DecisionCounters, HitCounts};
pub(crate) use decision::{
    Decision, NO_NAT_PORT, NO_ROOM, NOT_TRANSLATABLE, OVER_HALF_OPEN, OVER_QUOTA, Outcome, SPOOFED,
    SYN_ANSWERED, WRONG_COOKIE,
};
pub use error::PolicyError;
pub(crate) use l2_watch::SwitchingWatch;
pub use l2_watch::{SwitchingEvent, SwitchingView};
pub(crate) use port::{EgressPolicy, FIRST_EGRESS, IngressPolicy, Lookup, Share, Tracking};
pub(crate) use switching::Switching;

use std::collections::BTreeMap;
use std::sync::Arc;

use netvm_model::{Host, Police, RouterConfig};
use netvm_policy::{Rule, RuleId, Side, UsedFields};
use netvm_switch::Meter;

use crate::ids::PortId;

/// Owner of a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MeterOf {
    Rule(RuleId),
    PortIn(PortId),
    PortOut(PortId),
}

/// The compiled rules and port policies.
#[derive(Debug, Default)]
pub struct Policy {
    /// Different for every policy; decision numbers of another generation are invalid.
    pub(crate) generation: u32,
    /// By number.
    pub(crate) decisions: Vec<Decision>,
    /// By [`PortId`] of the ingress port.
    pub(crate) ingress: Vec<Option<IngressPolicy>>,
    /// By [`PortId`] of the egress port; `None` if it restricts nothing.
    pub(crate) egress: Vec<Option<EgressPolicy>>,
    /// The fields that distinguish flows.
    pub(crate) used: UsedFields,
    /// Whether a rule has a SYN proxy.
    pub(crate) has_syn_proxy: bool,
    /// L2 switching, if a port uses it.
    pub(crate) switching: Option<Switching>,
    /// Token buckets; the next policy reuses them.
    meters: BTreeMap<MeterOf, (Police, Arc<Meter>)>,
    /// The rules that it was compiled from.
    pub(crate) rules: Vec<Rule>,
    /// The rules that decide where a port's packets can go: those that name ports, a chain, a router or L2 switching.
    pub(crate) leading: Arc<[Rule]>,
    /// Bytes of the compiled rules.
    pub(crate) memory: usize,
}

impl Policy {
    /// Whether two configurations have the same policy.
    pub(crate) fn same_sources(one: &Host, other: &Host) -> bool {
        let ports = |host: &Host| -> Vec<_> {
            host.ports.iter().map(|port| (port.id, port.policy.clone(), host.tracks_port(port))).collect()
        };
        let shares = |host: &Host| -> Vec<_> {
            let sharing = host.routers.iter().filter(|router| router.has_share());
            let ports = |router: &RouterConfig| -> Vec<_> { router.ports().collect() };
            sharing.map(|router| (router.id, router.weight, router.reserve, ports(router))).collect()
        };
        let chains =
            |host: &Host| -> Vec<_> { host.chains.iter().map(|chain| (chain.id, chain.output)).collect() };
        let active = |host: &Host| -> Vec<bool> { host.rules.iter().map(Rule::is_active).collect() };
        one.rules == other.rules
            && active(one) == active(other)
            && one.policy == other.policy
            && one.switch == other.switch
            && ports(one) == ports(other)
            && shares(one) == shares(other)
            && chains(one) == chains(other)
    }

    /// Whether this policy was compiled for `host`; the default policy fits only an empty one.
    pub(crate) fn is_for(&self, host: &Host) -> bool {
        self.generation != 0 || (host.rules.is_empty() && host.ports.is_empty())
    }

    /// Whether packets of a port may be handled without a lookup of their flow, although rules could match them.
    pub(crate) fn has_shortcuts(&self) -> bool {
        self.ingress.iter().flatten().any(|port| port.shortcut.is_some())
    }

    /// The lookup of a side.
    fn lookup(&self, side: Side) -> Option<&Lookup> {
        match side {
            Side::Ingress { from } => Some(&self.ingress(from)?.lookup),
            // A port that it does not know has no class.
            Side::Egress { from, to } => self.ingress(from).and(self.egress(to))?.lookup(from),
        }
    }

    /// The largest overlay of any side: changes since its rules were compiled, which new flows search linearly.
    #[must_use]
    pub fn changes(&self) -> usize {
        let ingress = self.ingress.iter().flatten().map(|policy| &policy.lookup);
        let egress = self.egress.iter().flatten().flat_map(|policy| policy.lookups.iter());
        let tables = ingress.chain(egress).filter_map(|lookup| lookup.table.as_ref());
        tables.map(|table| table.changes()).max().unwrap_or(0)
    }

    /// Bytes of the compiled rules.
    #[must_use]
    pub const fn memory(&self) -> usize {
        self.memory
    }

    #[inline(always)]
    pub(crate) fn ingress(&self, port: PortId) -> Option<&IngressPolicy> {
        self.ingress.get(port.index())?.as_ref()
    }

    #[inline(always)]
    pub(crate) fn egress(&self, port: PortId) -> Option<&EgressPolicy> {
        self.egress.get(port.index())?.as_ref()
    }

    /// The decision with this number; an unknown number drops.
    #[inline(always)]
    pub(crate) fn decision(&self, number: u32) -> &Decision {
        self.decisions.get(number as usize).unwrap_or(&decision::DENIED)
    }
}
