//! From the configuration to what workers look packets up in.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dpdk::Eal;
use netvm_classifier::{Limits, Prefilter, Table};
use netvm_config::model::{AclDefault, Forward, Host, Police, PortConfig, Verdict};
use netvm_policy::{
    Cube, Family, Fields, Flat, RuleId, Side, UsedFields, egress_classes, flatten_by, ingress_classes,
};
use netvm_region::{MAX_PORTS, clock};
use netvm_switch::{Guard, GuardOptions, Meter};

use super::cubes::KnownCubes;
use super::decision::{ALLOW, DENY, Decision, Extras, Outcome};
use super::port::{Lookup, Shortcut};
use super::switching::Switching;
use super::{EgressPolicy, IngressPolicy, MeterOf, Policy, PolicyError};
use crate::drop_reason::DropReason;
use crate::ids::{ChainId, PortId};
use crate::snapshot::put;

/// Most cubes of the rules of one side.
const MOST_CUBES: usize = 1 << 18;

/// Makes policies. Clones share what lives on from policy to policy; any thread may have one.
#[derive(Clone, Debug)]
pub struct Compiler {
    eal: Eal,
    generation: Arc<AtomicU32>,
    known: Arc<Mutex<KnownCubes>>,
}

/// Why the short way did not lead to a policy.
enum Stop {
    Error(PolicyError),
    /// More has changed than the overlay holds.
    TooMuch,
}

impl<T: Into<PolicyError>> From<T> for Stop {
    fn from(error: T) -> Self {
        Self::Error(error.into())
    }
}

impl Compiler {
    pub(crate) fn new(eal: Eal) -> Self {
        Self { eal, generation: Arc::default(), known: Arc::default() }
    }

    /// Compiles everything anew. For thousands of rules this takes a second or more; packets flow meanwhile.
    ///
    /// # Errors
    /// [`PolicyError`] says what is too large.
    pub fn compile(&self, host: &Host, before: &Policy) -> Result<Policy, PolicyError> {
        let limits = Limits { memory: host.policy.memory as usize * (1 << 20), ..Limits::default() };
        let mut spent = 0;
        let build = |_: Side, entries: &[Arc<[Cube]>]| {
            let left = Limits { memory: limits.memory.saturating_sub(spent), ..limits };
            let table = Table::build(self.eal, entries, &left)?;
            spent += table.classifier().bytes();
            Ok(Arc::new(table))
        };
        match self.compilation(host, before, build).run(self.next_generation()) {
            Ok(policy) => Ok(policy),
            Err(Stop::Error(error)) => Err(error),
            // Only the short way says so.
            Err(Stop::TooMuch) => {
                Err(PolicyError::Memory { needed: spent >> 20, allowed: host.policy.memory as usize })
            }
        }
    }

    /// The policy for a host: the one before, made for `running`, where nothing that it comes from differs.
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

    /// Compiles what has changed since `before` as an overlay over it, in a millisecond or so; `None` when too much has.
    #[must_use]
    pub fn change(&self, host: &Host, before: &Policy) -> Option<Policy> {
        self.carried_over(host, before, before)
    }

    /// What `compiled`, made for another host than is wanted by now, is for `host`: with what has changed meanwhile as an
    /// overlay, and with the token buckets and addresses of the policy in force, `running`. `None` when too much has
    /// changed.
    #[must_use]
    pub fn carried_over(&self, host: &Host, compiled: &Policy, running: &Policy) -> Option<Policy> {
        let build = |side: Side, entries: &[Arc<[Cube]>]| {
            let old = compiled.table_of(side).ok_or(Stop::TooMuch)?;
            old.changed(entries).map(Arc::new).ok_or(Stop::TooMuch)
        };
        self.compilation(host, running, build).run(self.next_generation()).ok()
    }

    fn compilation<'a, F: FnMut(Side, &[Arc<[Cube]>]) -> Result<Arc<Table>, Stop>>(
        &'a self,
        host: &'a Host,
        before: &'a Policy,
        build: F,
    ) -> Compilation<'a, F> {
        Compilation::new(host, before, build, &self.known)
    }

    fn next_generation(&self) -> u32 {
        self.generation.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }
}

impl Policy {
    /// The table that a side's packets are looked up in.
    fn table_of(&self, side: Side) -> Option<&Arc<Table>> {
        match side {
            Side::Ingress { from } => self.ingress(from)?.lookup.table.as_ref(),
            Side::Egress { from, to } => self.egress(to)?.lookup(from)?.table.as_ref(),
        }
    }
}

struct Compilation<'a, F> {
    host: &'a Host,
    before: &'a Policy,
    build: F,
    known: &'a Mutex<KnownCubes>,
    decisions: Vec<Decision>,
    meters: BTreeMap<MeterOf, (Police, Arc<Meter>)>,
    /// The prefilter of no rules, once it is needed.
    nothing: Option<Arc<Prefilter>>,
    /// Bytes that compiled rules take so far.
    memory: usize,
}

impl<'a, F: FnMut(Side, &[Arc<[Cube]>]) -> Result<Arc<Table>, Stop>> Compilation<'a, F> {
    fn new(host: &'a Host, before: &'a Policy, build: F, known: &'a Mutex<KnownCubes>) -> Self {
        let decisions = vec![
            Decision::default_of(Outcome::Drop(DropReason::Denied)),
            Decision::default_of(Outcome::Allow),
            Decision::default_of(Outcome::Drop(DropReason::Spoofed)),
        ];
        Self { host, before, build, known, decisions, meters: BTreeMap::new(), nothing: None, memory: 0 }
    }

    fn run(mut self, generation: u32) -> Result<Policy, Stop> {
        let ports: Vec<PortId> = self.host.ports.iter().map(|port| port.id).collect();
        let mut ingress = Vec::new();
        for class in ingress_classes(&self.host.rules, &ports) {
            let Some(first) = class.first() else { continue };
            let side = Side::Ingress { from: *first };
            let (lookup, everything) = self.lookup(side)?;
            for port in self.host.ports.iter().filter(|port| class.contains(&port.id)) {
                let policy = self.ingress(port, lookup.clone(), everything)?;
                put(&mut ingress, port.id.index(), policy);
            }
        }
        let egress = self.egress(&ports)?;
        self.known.lock().unwrap_or_else(PoisonError::into_inner).keep(&self.host.rules);
        let switching = Switching::new(self.host, self.before.switching.as_ref())?;
        let mut rules: Vec<RuleId> =
            self.decisions.iter().flat_map(|decision| decision.rules.iter().copied()).collect();
        rules.sort_unstable();
        rules.dedup();
        let rules = rules.into();
        Ok(Policy {
            generation,
            decisions: self.decisions.into(),
            ingress,
            egress,
            used: used_fields(self.host),
            switching,
            meters: self.meters,
            rules,
            memory: self.memory,
        })
    }

    /// The table of one side, and whether its first element takes every packet.
    fn lookup(&mut self, side: Side) -> Result<(Lookup, bool), Stop> {
        let flats = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            flatten_by(&self.host.rules, side, MOST_CUBES, |rule| known.of(rule))?
        };
        let base = self.decisions.len() as u32;
        let mut entries = Vec::with_capacity(flats.len());
        self.decisions.reserve(flats.len());
        for Flat { cubes, decision } in flats {
            let decision = self.decision(decision)?;
            self.decisions.push(decision);
            entries.push(cubes);
        }
        let table = if entries.is_empty() { None } else { Some((self.build)(side, &entries)?) };
        let everything = entries.first().is_some_and(|cubes| takes_everything(cubes));
        self.memory += table.as_ref().map_or(0, |table| table.classifier().bytes());
        let prefilter = table.as_ref().and_then(|_| self.prefilter(&entries));
        Ok((Lookup { table, prefilter, base, otherwise: ALLOW }, everything))
    }

    /// What proves that packets are not in a list; none where there is no room for it, as it is for speed alone.
    fn prefilter(&mut self, entries: &[Arc<[Cube]>]) -> Option<Arc<Prefilter>> {
        let allowed = self.host.policy.memory as usize * (1 << 20);
        let prefilter = Prefilter::build(entries)?;
        let memory = self.memory + prefilter.bytes();
        (memory <= allowed).then(|| {
            self.memory = memory;
            Arc::new(prefilter)
        })
    }

    /// That of no rules, which all ports without any share.
    fn prefilter_of_nothing(&mut self) -> Option<Arc<Prefilter>> {
        if self.nothing.is_none() {
            self.nothing = self.prefilter(&[]);
        }
        self.nothing.clone()
    }

    fn decision(&mut self, decision: netvm_policy::Decision) -> Result<Decision, Stop> {
        let actions = decision.actions;
        let outcome = match actions.verdict {
            None => Outcome::Undecided,
            Some(Verdict::Allow) => Outcome::Allow,
            Some(Verdict::Drop) => Outcome::Drop(DropReason::Rule),
            Some(Verdict::Reject) => Outcome::Reject,
            Some(Verdict::Port(port)) => Outcome::Port(port),
            Some(Verdict::Chain(chain)) => Outcome::Chain(chain),
            Some(Verdict::Normal) => Outcome::Normal,
            Some(Verdict::Router(router)) => Outcome::Router(router),
        };
        let mut meters = Vec::new();
        for (rule, police) in &actions.polices {
            meters.push(self.meter(MeterOf::Rule(*rule), *police)?);
        }
        let extras = Extras {
            meters: meters.into(),
            set_vlan: actions.set_vlan.into(),
            mirrors: actions.mirrors.into(),
        };
        let has_extras =
            !(extras.meters.is_empty() && extras.set_vlan.is_empty() && extras.mirrors.is_empty());
        let extras = has_extras.then(|| Box::new(extras));
        Ok(Decision { outcome, extras, rules: decision.rules })
    }

    /// The token bucket of a rule or port: the one that it had, as long as its rates stay the same.
    fn meter(&mut self, of: MeterOf, police: Police) -> Result<Arc<Meter>, Stop> {
        let own = self.meters.get(&of).or_else(|| self.before.meters.get(&of));
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
        lookup: Lookup,
        everything: bool,
    ) -> Result<IngressPolicy, Stop> {
        let policy = &port.policy;
        let forward = match policy.forward {
            Forward::None => Outcome::Drop(DropReason::NoRule),
            Forward::Normal => Outcome::Normal,
            Forward::Port(port) => Outcome::Port(port),
            Forward::Chain(chain) => Outcome::Chain(chain),
            Forward::Router(router) => Outcome::Router(router),
        };
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
            // A guard looks at addresses even where no rule does.
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
        let chains: Box<[ChainId]> = self.host.chains_from(port).map(|chain| chain.id).collect();
        Ok(IngressPolicy { lookup, blanket, switched, shortcut, forward, undecided, guard, meter, chains })
    }

    fn egress(&mut self, ports: &[PortId]) -> Result<Vec<Option<EgressPolicy>>, Stop> {
        let classes = egress_classes(&self.host.rules, ports);
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

/// The fields that rules look at, and those that anti-spoofing does.
fn used_fields(host: &Host) -> UsedFields {
    let used = UsedFields::of(&host.rules);
    if host.ports.iter().all(|port| port.policy.guard.is_none()) {
        return used;
    }
    UsedFields { icmp_type: u8::MAX, icmp_code: u8::MAX, arp_operation: u16::MAX, ..used }
}

/// Whether every packet is in one of these.
fn takes_everything(cubes: &[Cube]) -> bool {
    [Family::V4, Family::V6, Family::Other]
        .iter()
        .all(|family| cubes.iter().any(|cube| cube.family == *family && cube.fields == Fields::ANY))
}
