//! Compiles the rules of a configuration into lookup tables.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dpdk::Eal;
use netvm_classifier::{Limits, Prefilter, Table};
use netvm_config::model::{AclDefault, Action, Host, Police, PortConfig, RouterConfig};
use netvm_policy::{
    Cube, Edit, Family, Fields, Flat, Rule, Side, UsedFields, egress_classes, flatten, ingress_classes,
};
use netvm_region::{MAX_PORTS, clock};
use netvm_switch::{Guard, GuardOptions, Meter};

use super::decision::{ALLOW, DENY, Decision, Extras, Outcome, RuleIds};
use super::port::{Lookup, Shortcut};
use super::switching::Switching;
use super::{EgressPolicy, IngressPolicy, MeterOf, Policy, PolicyError, Share};
use crate::drop_reason::DropReason;
use crate::ids::{ChainId, PortId, put};

/// Limit of cubes per side.
const MOST_CUBES: usize = 1 << 18;

/// Compiles policies. Clones share the generation counter; any thread may use one.
#[derive(Clone, Debug)]
pub struct Compiler {
    eal: Eal,
    generation: Arc<AtomicU32>,
}

/// Why a compilation stopped.
enum Stop {
    Error(PolicyError),
    /// The changes exceed the overlay.
    TooMuch,
}

impl<T: Into<PolicyError>> From<T> for Stop {
    fn from(error: T) -> Self {
        Self::Error(error.into())
    }
}

impl Compiler {
    pub(crate) fn new(eal: Eal) -> Self {
        Self { eal, generation: Arc::default() }
    }

    /// Compiles all rules. For thousands of rules this takes a second or more; packets flow meanwhile.
    ///
    /// # Errors
    /// [`PolicyError`] names what is too large.
    pub fn compile(&self, host: &Host, before: &Policy) -> Result<Policy, PolicyError> {
        let limits = Limits { memory: host.policy.memory as usize * (1 << 20), ..Limits::default() };
        let mut spent = 0;
        let build = |_: Option<&Lookup>, flats: &Arc<[Arc<Flat>]>| {
            let left = Limits { memory: limits.memory.saturating_sub(spent), ..limits };
            let table = Table::build(self.eal, Arc::clone(flats), &left)?;
            spent += table.classifier().bytes();
            let prefilter = Prefilter::build(&flats.iter().map(|flat| &flat.cubes).collect::<Vec<_>>());
            Ok((Arc::new(table), prefilter))
        };
        match Compilation::new(host, before, before, build).run(self.next_generation()) {
            Ok(policy) => Ok(policy),
            Err(Stop::Error(error)) => Err(error),
            // Only `carried_over` returns it.
            Err(Stop::TooMuch) => {
                Err(PolicyError::Memory { needed: spent >> 20, allowed: host.policy.memory as usize })
            }
        }
    }

    /// The policy for a host; reuses `before`, compiled for `running`, if its sources are the same.
    ///
    /// # Errors
    /// As [`Compiler::compile`].
    pub fn policy_for(
        &self,
        host: &Host,
        running: &Host,
        before: &Arc<Policy>,
    ) -> Result<Arc<Policy>, PolicyError> {
        if before.is_for(running) && Policy::same_sources(running, host) {
            return Ok(Arc::clone(before));
        }
        self.compile(host, before).map(Arc::new)
    }

    /// Compiles the changes since `before` as an overlay, in about a millisecond; `None` if there are too many.
    #[must_use]
    pub fn change(&self, host: &Host, before: &Policy) -> Option<Policy> {
        self.carried_over(host, before, before)
    }

    /// Adapts `compiled`, which was compiled for an older configuration, to `host`: changes become an overlay; token
    /// buckets and addresses come from `running`, the policy in force. `None` if there are too many changes.
    #[must_use]
    pub fn carried_over(&self, host: &Host, compiled: &Policy, running: &Policy) -> Option<Policy> {
        let build = |before: Option<&Lookup>, flats: &Arc<[Arc<Flat>]>| {
            let before = before.ok_or(Stop::TooMuch)?;
            let table = before.table.as_ref().and_then(|table| table.changed(Arc::clone(flats)));
            let old = before.prefilter.as_ref();
            let prefilter = old.and_then(|prefilter| prefilter.changed(before.list.flats(), flats));
            Ok((Arc::new(table.ok_or(Stop::TooMuch)?), prefilter))
        };
        let mut compilation = Compilation::new(host, running, compiled, build);
        // Fields that only deleted rules used keep distinguishing flows until the next full compilation.
        compilation.used = compiled.used;
        compilation.run(self.next_generation()).ok()
    }

    fn next_generation(&self) -> u32 {
        self.generation.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }
}

struct Compilation<'a, F> {
    host: &'a Host,
    /// The policy in force; its token buckets and addresses are kept.
    running: &'a Policy,
    /// A policy for similar rules, whose results are reused.
    like: &'a Policy,
    /// The edit from its rules to the host's.
    edit: Edit,
    build: F,
    decisions: Vec<Decision>,
    meters: BTreeMap<MeterOf, (Police, Arc<Meter>)>,
    /// Fields that distinguish flows besides those that the rules use.
    used: UsedFields,
    /// The prefilter of an empty rule list, compiled on demand.
    nothing: Option<Arc<Prefilter>>,
    /// Bytes of the compiled rules so far.
    memory: usize,
}

/// The table of a rule list and its prefilter.
type Built = (Arc<Table<Flat>>, Option<Prefilter>);

impl<'a, F: FnMut(Option<&Lookup>, &Arc<[Arc<Flat>]>) -> Result<Built, Stop>> Compilation<'a, F> {
    fn new(host: &'a Host, running: &'a Policy, like: &'a Policy, build: F) -> Self {
        let mut decisions = Vec::with_capacity(like.decisions.len() + host.rules.len() / 8 + 16);
        decisions.extend([
            Decision::default_of(Outcome::Drop(DropReason::Denied)),
            Decision::default_of(Outcome::Allow),
            Decision::default_of(Outcome::Drop(DropReason::Spoofed)),
        ]);
        let edit = Edit::between(&like.rules, &host.rules, Rule::is_clone_of);
        let (meters, used) = (BTreeMap::new(), UsedFields::default());
        Self { host, running, like, edit, build, decisions, meters, used, nothing: None, memory: 0 }
    }

    fn run(mut self, generation: u32) -> Result<Policy, Stop> {
        let ports: Vec<PortId> = self.host.ports.iter().map(|port| port.id).collect();
        let leading = self.leading();
        let mut ingress = Vec::new();
        for class in ingress_classes(&leading, &ports) {
            let Some(first) = class.first() else { continue };
            let side = Side::Ingress { from: *first };
            let (lookup, everything) = self.lookup(side)?;
            for port in self.host.ports.iter().filter(|port| class.contains(&port.id)) {
                let policy = self.ingress(port, &leading, lookup.clone(), everything)?;
                put(&mut ingress, port.id.index(), policy);
            }
        }
        let egress = self.egress(&leading, &ports)?;
        let switching = Switching::new(self.host, &leading, self.running.switching.as_ref())?;
        let used = self.used_fields();
        Ok(Policy {
            generation,
            decisions: self.decisions,
            ingress,
            egress,
            used,
            switching,
            meters: self.meters,
            rules: self.host.rules.clone(),
            leading,
            memory: self.memory,
        })
    }

    /// See [`Policy::leading`].
    fn leading(&self) -> Arc<[Rule]> {
        let leads = |rule: &Rule| {
            !rule.matches.from.is_empty()
                || !rule.matches.to.is_empty()
                || matches!(rule.actions.terminal, Some(Action::Chain(_) | Action::Normal))
        };
        let (gone, added) = (&self.like.rules[self.edit.gone()], &self.host.rules[self.edit.added()]);
        if gone.iter().chain(added).any(leads) {
            return self.host.rules.iter().filter(|rule| leads(rule)).cloned().collect();
        }
        Arc::clone(&self.like.leading)
    }

    /// The fields that rules and anti-spoofing use.
    fn used_fields(&self) -> UsedFields {
        let rules = &self.host.rules;
        let used = if self.used == UsedFields::default() {
            UsedFields::of(rules)
        } else {
            rules[self.edit.added()].iter().fold(self.used, UsedFields::with)
        };
        if self.host.ports.iter().all(|port| port.policy.guard.is_none()) {
            return used;
        }
        UsedFields { icmp_type: u8::MAX, icmp_code: u8::MAX, arp_operation: u16::MAX, ..used }
    }

    /// The table of one side, and whether its first element matches every packet.
    fn lookup(&mut self, side: Side) -> Result<(Lookup, bool), Stop> {
        let (like, rules) = (self.like, &self.host.rules);
        let old = like.lookup(side);
        let list = match old {
            Some(old) => old.list.changed(&like.rules, rules, self.edit, side, MOST_CUBES)?,
            None => flatten(rules, side, MOST_CUBES)?,
        };
        let base = self.decisions.len() as u32;
        self.decide(old, list.flats())?;
        let built = if list.flats().is_empty() { None } else { Some((self.build)(old, list.flats())?) };
        let (table, prefilter) = built.map_or((None, None), |(table, prefilter)| (Some(table), prefilter));
        self.memory += table.as_ref().map_or(0, |table| table.classifier().bytes());
        let prefilter = prefilter.and_then(|prefilter| self.prefilter(prefilter));
        let everything = list.flats().first().is_some_and(|flat| matches_everything(&flat.cubes));
        Ok((Lookup { list, table, prefilter, base, otherwise: ALLOW }, everything))
    }

    /// Adds the decisions of a list, reusing those of the previous list.
    fn decide(&mut self, old: Option<&Lookup>, flats: &[Arc<Flat>]) -> Result<(), Stop> {
        let known = old.and_then(|old| self.like.decisions.get(old.base as usize..)).unwrap_or_default();
        let before = old.map_or(&[][..], |old| old.list.flats());
        let edit = Edit::between(before, flats, Arc::ptr_eq);
        for (index, flat) in flats.iter().enumerate() {
            let carried = edit.before(index).and_then(|index| known.get(index)?.carried());
            let decision = carried.map_or_else(|| self.decision(&flat.decision), Ok)?;
            self.decisions.push(decision);
        }
        Ok(())
    }

    /// Accounts for a prefilter's memory; drops it if it does not fit, since it only adds speed.
    fn prefilter(&mut self, prefilter: Prefilter) -> Option<Arc<Prefilter>> {
        let allowed = self.host.policy.memory as usize * (1 << 20);
        let memory = self.memory + prefilter.bytes();
        (memory <= allowed).then(|| {
            self.memory = memory;
            Arc::new(prefilter)
        })
    }

    /// The prefilter of an empty list, shared by all ports without rules.
    fn prefilter_of_nothing(&mut self) -> Option<Arc<Prefilter>> {
        if self.nothing.is_none() {
            let nothing: [&[Cube]; 0] = [];
            self.nothing = Prefilter::build(&nothing).and_then(|prefilter| self.prefilter(prefilter));
        }
        self.nothing.clone()
    }

    fn decision(&mut self, decision: &netvm_policy::Decision) -> Result<Decision, Stop> {
        let actions = &decision.actions;
        let outcome = actions.terminal.map_or(Outcome::Undecided, Outcome::from);
        let mut meters = Vec::new();
        for (rule, police) in &actions.polices {
            meters.push(self.meter(MeterOf::Rule(*rule), *police)?);
        }
        let extras = Extras {
            meters: meters.into(),
            set_vlan: actions.set_vlan.as_slice().into(),
            mirrors: actions.mirrors.as_slice().into(),
        };
        let has_extras =
            !(extras.meters.is_empty() && extras.set_vlan.is_empty() && extras.mirrors.is_empty());
        let extras = has_extras.then(|| Box::new(extras));
        Ok(Decision { outcome, extras, rules: RuleIds::of(&decision.rules) })
    }

    /// The token bucket of a rule or port; kept while its rates stay the same.
    fn meter(&mut self, of: MeterOf, police: Police) -> Result<Arc<Meter>, Stop> {
        let own = self.meters.get(&of).or_else(|| self.running.meters.get(&of));
        let meter = match own.filter(|(rates, _)| *rates == police) {
            Some((_, meter)) => Arc::clone(meter),
            None => {
                let rate = |rate: netvm_policy::Rate| (rate.per_second, rate.burst);
                let hz = clock::cycles_in_micros(1_000_000);
                Arc::new(Meter::new(police.packets.map(rate), police.bits.map(rate), hz)?)
            }
        };
        self.meters.insert(of, (police, Arc::clone(&meter)));
        Ok(meter)
    }

    fn ingress(
        &mut self,
        port: &PortConfig,
        leading: &[Rule],
        lookup: Lookup,
        everything: bool,
    ) -> Result<IngressPolicy, Stop> {
        let policy = &port.policy;
        let forward = Outcome::from(policy.forward);
        let (otherwise, undecided) = match policy.acl_in {
            AclDefault::Allow => (ALLOW, forward),
            AclDefault::Deny => (DENY, Outcome::Drop(DropReason::Denied)),
        };
        let guarded = policy.guard.as_ref().map(|guard| GuardOptions {
            macs: guard.macs.clone(),
            addresses: guard.addresses.clone(),
            ..GuardOptions::default()
        });
        let guard = guarded.map(Guard::new).transpose()?;
        let meter =
            policy.police_in.map(|police| self.meter(MeterOf::PortIn(port.id), police)).transpose()?;
        let prefilter = match &lookup.table {
            // A guard checks addresses even without rules.
            None if guard.is_some() => self.prefilter_of_nothing(),
            _ => lookup.prefilter.clone(),
        };
        let only = match &lookup.table {
            None => Some(otherwise),
            Some(_) => everything.then_some(lookup.base),
        };
        let only = only.filter(|_| guard.is_none());
        let is_switched = |number: &u32| {
            let outcome = self.decisions[*number as usize].outcome;
            outcome.resolved(forward, undecided) == Outcome::Normal
        };
        let lookup = Lookup { otherwise, ..lookup };
        let shortcut = prefilter.map(|prefilter| {
            let decision = lookup.unmatched(&prefilter);
            Shortcut { prefilter, decision, is_switched: is_switched(&decision) }
        });
        let switched = only.filter(is_switched);
        let blanket = only.filter(|number| !is_switched(number));
        let chains: Box<[ChainId]> = self.host.chains_by(leading, port).map(|chain| chain.id).collect();
        Ok(IngressPolicy {
            lookup,
            blanket,
            switched,
            shortcut,
            forward,
            undecided,
            guard,
            meter,
            chains,
            is_monitored: policy.monitor,
            share: Share { weight: policy.weight, reserve: policy.reserve },
            router_share: self.host.sharing_router(port.id).map(|router| {
                let RouterConfig { id, weight, reserve, .. } = *router;
                (id, Share { weight, reserve })
            }),
        })
    }

    fn egress(&mut self, leading: &[Rule], ports: &[PortId]) -> Result<Vec<Option<EgressPolicy>>, Stop> {
        let classes = egress_classes(leading, ports);
        let mut class_of = vec![0u8; MAX_PORTS];
        for (n, class) in (0u8..).zip(&classes.from) {
            class.iter().for_each(|port| class_of[port.index()] = n);
        }
        let mut egress = Vec::new();
        for to in &classes.to {
            let mut lookups = Vec::new();
            for from in &classes.from {
                let (Some(from), Some(to)) = (from.first(), to.first()) else { continue };
                lookups.push(self.lookup(Side::Egress { from: *from, to: *to })?.0);
            }
            for port in self.host.ports.iter().filter(|port| to.contains(&port.id)) {
                if let Some(policy) = self.egress_of(port, &lookups, &class_of)? {
                    put(&mut egress, port.id.index(), policy);
                }
            }
        }
        Ok(egress)
    }

    fn egress_of(
        &mut self,
        port: &PortConfig,
        lookups: &[Lookup],
        class_of: &[u8],
    ) -> Result<Option<EgressPolicy>, Stop> {
        let (otherwise, undecided) = match port.policy.acl_out {
            AclDefault::Allow => (ALLOW, Outcome::Allow),
            AclDefault::Deny => (DENY, Outcome::Drop(DropReason::Denied)),
        };
        let police = port.policy.police_out;
        let meter = police.map(|police| self.meter(MeterOf::PortOut(port.id), police)).transpose()?;
        let looks = otherwise == DENY || lookups.iter().any(|lookup| lookup.table.is_some());
        if !looks && meter.is_none() {
            return Ok(None);
        }
        let lookups = lookups.iter().map(|lookup| Lookup { otherwise, ..lookup.clone() }).collect();
        Ok(Some(EgressPolicy { lookups, classes: class_of.into(), meter, undecided, looks }))
    }
}

/// Whether these cubes match every packet.
fn matches_everything(cubes: &[Cube]) -> bool {
    [Family::V4, Family::V6, Family::Other]
        .iter()
        .all(|family| cubes.iter().any(|cube| cube.family == *family && cube.fields == Fields::ANY))
}
