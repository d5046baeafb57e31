//! The compiled policy: what workers look packets up in. Made by the manager's side, immutable, shared by all workers.
//!
//! A packet that comes in is looked up once, with its flow key, among the rules of its port; what is found is a number of
//! a [`Decision`], which the flow cache remembers. The same happens again on its way out, where the port it leaves by has
//! rules of its own. Numbers 0 and 1 are the defaults.

mod compile;
mod counters;
mod decision;
mod error;
mod port;
mod switching;
#[cfg(test)]
mod tests;
mod trace;

pub use compile::Compiler;
pub use counters::RuleCount;
pub(crate) use counters::{DecisionCounters, HitCounts};
pub(crate) use decision::{DENY, Decision, Extras, Outcome, SPOOFED};
pub use error::PolicyError;
pub(crate) use port::{EgressPolicy, IngressPolicy, Lookup, Shortcut};
pub(crate) use switching::Switching;
pub use trace::Step;

use std::collections::BTreeMap;
use std::sync::Arc;

use netvm_config::model::{Host, Police};
use netvm_policy::{Rule, RuleId, Side, UsedFields};
use netvm_switch::Meter;

use crate::ids::PortId;

/// Whose token bucket it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MeterOf {
    Rule(RuleId),
    PortIn(PortId),
    PortOut(PortId),
}

/// Everything that rules and ports' policies say.
#[derive(Debug, Default)]
pub struct Policy {
    /// Moves with every policy: decisions of another generation mean nothing.
    pub(crate) generation: u32,
    /// By number.
    pub(crate) decisions: Vec<Decision>,
    /// By [`PortId`] of the port that packets come in by.
    pub(crate) ingress: Vec<Option<IngressPolicy>>,
    /// By [`PortId`] of the port that packets leave by; `None` where every packet may.
    pub(crate) egress: Vec<Option<EgressPolicy>>,
    /// The fields in which flows differ.
    pub(crate) used: UsedFields,
    /// For packets that are switched.
    pub(crate) switching: Option<Switching>,
    /// Token buckets, which live on in the next policy.
    meters: BTreeMap<MeterOf, (Police, Arc<Meter>)>,
    /// What it was made from.
    pub(crate) rules: Vec<Rule>,
    /// Those of the rules that ports' ways depend on: which name ports, or lead into chains or to switching.
    pub(crate) leading: Arc<[Rule]>,
    /// Bytes that compiled rules take.
    pub(crate) memory: usize,
}

impl Policy {
    /// Whether two hosts have the same policy.
    pub(crate) fn same_sources(one: &Host, other: &Host) -> bool {
        let ports = |host: &Host| -> Vec<_> {
            host.ports.iter().map(|port| (port.id, port.policy.clone())).collect()
        };
        let chains =
            |host: &Host| -> Vec<_> { host.chains.iter().map(|chain| (chain.id, chain.output)).collect() };
        one.rules == other.rules
            && one.policy == other.policy
            && one.switch == other.switch
            && ports(one) == ports(other)
            && chains(one) == chains(other)
    }

    /// Whether it was made for a host with anything in it.
    pub(crate) fn is_for(&self, host: &Host) -> bool {
        self.generation != 0 || (host.rules.is_empty() && host.ports.is_empty())
    }

    /// The rules that are looked up for a side.
    fn lookup(&self, side: Side) -> Option<&Lookup> {
        match side {
            Side::Ingress { from } => Some(&self.ingress(from)?.lookup),
            Side::Egress { from, to } => self.egress(to)?.lookup(from),
        }
    }

    /// Most changes of a side's rules since they were compiled, which are looked through for packets of new flows.
    #[must_use]
    pub fn changes(&self) -> usize {
        let ingress = self.ingress.iter().flatten().map(|policy| &policy.lookup);
        let egress = self.egress.iter().flatten().flat_map(|policy| policy.lookups.iter());
        let tables = ingress.chain(egress).filter_map(|lookup| lookup.table.as_ref());
        tables.map(|table| table.changes()).max().unwrap_or(0)
    }

    /// Bytes of memory that compiled rules take.
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

    /// The decision of that number; nothing is let pass by a number that there is not.
    #[inline(always)]
    pub(crate) fn decision(&self, number: u32) -> &Decision {
        self.decisions.get(number as usize).unwrap_or(&decision::DENIED)
    }
}
