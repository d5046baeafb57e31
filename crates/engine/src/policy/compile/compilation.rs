// SPDX-License-Identifier: Apache-2.0
//! One compilation: from rule lists to tables, prefilters and decisions.

use std::collections::BTreeMap;
use std::sync::Arc;

use netvm_classifier::Prefilter;
use netvm_clock as clock;
use netvm_model::{Action, Host, Police};
use netvm_policy::{
    Cube, Edit, Edited, Family, Fields, Flat, Rule, Side, UsedFields, flatten, ingress_classes,
};
use netvm_switch::Meter;

use super::{Built, Stop};
use crate::drop_reason::DropReason;
use crate::ids::{PortId, put};
use crate::policy::decision::{ALLOW, Decision, Extras, Outcome, RuleIds};
use crate::policy::port::Lookup;
use crate::policy::switching::Switching;
use crate::policy::{MeterOf, Policy};

/// Limit of cubes per side.
const MAX_CUBES: usize = 1 << 18;

/// A compilation. `build` builds the table of a rule list, or changes an existing one.
pub(super) struct Compilation<'a, F> {
    pub(super) host: &'a Host,
    /// The policy in force, whose token buckets and addresses are reused.
    running: &'a Policy,
    /// A policy for similar rules, whose results are reused.
    like: &'a Policy,
    /// The edit from its rules to the host's.
    edit: Edit,
    build: F,
    pub(super) decisions: Vec<Decision>,
    meters: BTreeMap<MeterOf, (Police, Arc<Meter>)>,
    /// The fields that distinguish flows.
    pub(super) used: UsedFields,
    /// The prefilter of an empty rule list, created on demand.
    nothing: Option<Arc<Prefilter>>,
    /// Bytes of the compiled rules so far.
    memory: usize,
}

impl<'a, F: FnMut(Option<&Lookup>, &Arc<[Arc<Flat>]>) -> Result<Built, Stop>> Compilation<'a, F> {
    pub(super) fn new(host: &'a Host, running: &'a Policy, like: &'a Policy, build: F) -> Self {
        let mut decisions = Vec::with_capacity(like.decisions.len() + host.rules.len() / 8 + 16);
        decisions.extend([
            Decision::default_of(Outcome::Drop(DropReason::Denied)),
            Decision::default_of(Outcome::Allow),
            Decision::default_of(Outcome::Drop(DropReason::Spoofed)),
            Decision::default_of(Outcome::Drop(DropReason::ConnTableFull)),
            Decision::default_of(Outcome::Drop(DropReason::ConnQuota)),
            Decision::default_of(Outcome::Drop(DropReason::NatNoPort)),
            Decision::default_of(Outcome::Drop(DropReason::NatUnsupported)),
            Decision::default_of(Outcome::Drop(DropReason::SynAnswered)),
            Decision::default_of(Outcome::Drop(DropReason::WrongCookie)),
            Decision::default_of(Outcome::Drop(DropReason::ConnHalfOpen)),
        ]);
        let edit = Edit::between(&like.rules, &host.rules, Rule::is_clone_of);
        let (meters, used) = (BTreeMap::new(), UsedFields::default());
        Self { host, running, like, edit, build, decisions, meters, used, nothing: None, memory: 0 }
    }

    pub(super) fn run(mut self, generation: u32) -> Result<Policy, Stop> {
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
            has_syn_proxy: self.host.has_syn_proxy(),
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
                || rule.actions.mirror.is_some()
                || matches!(
                    rule.actions.terminal,
                    Some(Action::Chain(_) | Action::Normal | Action::Port(_) | Action::Router(_))
                )
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
    pub(super) fn lookup(&mut self, side: Side) -> Result<(Lookup, bool), Stop> {
        let (like, rules) = (self.like, &self.host.rules);
        let old = like.lookup(side);
        let list = match old {
            Some(old) => {
                let edited = Edited { before: &like.rules, rules, edit: self.edit };
                old.list.changed(edited, side, MAX_CUBES)?
            }
            None => flatten(rules, side, MAX_CUBES)?,
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
    pub(super) fn prefilter_of_nothing(&mut self) -> Option<Arc<Prefilter>> {
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
        let (queue, syn_proxy) = (actions.queue, actions.syn_proxy);
        Ok(Decision { outcome, queue, extras, syn_proxy, rules: RuleIds::of(&decision.rules) })
    }

    /// The token bucket of a rule or port; reused while its rates stay the same.
    pub(super) fn meter(&mut self, of: MeterOf, police: Police) -> Result<Arc<Meter>, Stop> {
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
}

/// Whether these cubes match every packet.
fn matches_everything(cubes: &[Cube]) -> bool {
    [Family::V4, Family::V6, Family::Other]
        .iter()
        .all(|family| cubes.iter().any(|cube| cube.family == *family && cube.fields == Fields::ANY))
}
