// SPDX-License-Identifier: Apache-2.0
//! Stable numbers: an item whose name the old host has too keeps its number.
//!
//! ```text
//!  old   firewall=0  monitor=1  router=2
//!  new   monitor, scan, firewall        ->   firewall=0  monitor=1  scan=3
//! ```
//!
//! `scan` does not get 2, which packets, counters and tables of `router` may still have during the change. A
//! number is reused only when all others are in use.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use netvm_ids::{
    ChainId, GroupId, MAX_CHAINS, MAX_GROUPS, MAX_PORTS, MAX_QUEUE_NAMES, MAX_ROLES, MAX_ROUTERS, MAX_RULES,
    PortId, QueueId, RoleId, RouterId, RuleId,
};
use netvm_policy::{Action, Actions, Match, Rule, Selection, When};

use super::Host;
use crate::nf::{NfStart, Output, SteerTo};
use crate::port::Forward;
use crate::vm::Guest;

/// Renumbers the items of `host`: items whose names `old` has get the numbers of `old`, new items get numbers
/// that `old` does not use, the lowest first. A rule without a name gets the number of an old unnamed rule
/// with the same content. Without `old`, numbers are positions in the file. References follow.
///
/// A host within the limits stays within them: no number reaches its `MAX_…`.
pub fn assign_ids(host: &mut Host, old: Option<&Host>) {
    let nothing = Host::default();
    let old = old.unwrap_or(&nothing);
    macro_rules! numbers {
        ($list:ident, $name:ident, $limit:expr) => {{
            let names = |host: &Host| -> Vec<(String, u16)> {
                host.$list.iter().map(|item| (item.$name.clone(), item.id.0)).collect()
            };
            renumber(&names(host), names(old), $limit)
        }};
    }
    let groups = numbers!(groups, name, MAX_GROUPS);
    let ports = numbers!(ports, name, MAX_PORTS);
    let roles = numbers!(nfs, role, MAX_ROLES);
    let chains = numbers!(chains, name, MAX_CHAINS);
    let routers = numbers!(routers, name, MAX_ROUTERS);
    let queues = renumber(&queue_names(host), queue_names(old), MAX_QUEUE_NAMES);
    let group = |id: &mut GroupId| follow(&groups, &mut id.0);
    let port = |id: &mut PortId| follow(&ports, &mut id.0);
    let role = |id: &mut RoleId| follow(&roles, &mut id.0);
    let chain = |id: &mut ChainId| follow(&chains, &mut id.0);
    let router = |id: &mut RouterId| follow(&routers, &mut id.0);
    let queue = |id: &mut QueueId| {
        let mut number = id.0.into();
        follow(&queues, &mut number);
        // Below MAX_QUEUE_NAMES.
        id.0 = number as u8;
    };

    for item in &mut host.groups {
        group(&mut item.id);
        item.may_send_to.iter_mut().flatten().for_each(port);
    }
    for item in &mut host.ports {
        port(&mut item.id);
        item.group.iter_mut().for_each(group);
        item.kind.other_ports_mut().iter_mut().for_each(port);
        item.kind.router_mut().into_iter().for_each(router);
        let queues = item.policy.qos.iter_mut().flat_map(|qos| &mut qos.queues);
        queues.for_each(|item| queue(&mut item.id));
        match &mut item.policy.forward {
            Forward::Chain(id) => chain(id),
            Forward::Port(id) => port(id),
            Forward::Router(id) => router(id),
            Forward::None | Forward::Normal => {}
        }
    }
    for item in &mut host.nfs {
        role(&mut item.id);
        group(&mut item.group);
        if let NfStart::Ports(pair) = &mut item.start {
            pair.ports.iter_mut().flatten().for_each(port);
        }
        for to in &mut item.steer {
            match to {
                SteerTo::Chain(id) => chain(id),
                SteerTo::Role(id) => role(id),
                SteerTo::Port(id) => port(id),
            }
        }
    }
    for item in &mut host.vms {
        match &mut item.guest {
            Guest::Nf { role: id, .. } => role(id),
            Guest::Ordinary { cards } => cards.iter_mut().for_each(|card| port(&mut card.port)),
        }
    }
    for item in &mut host.routers {
        router(&mut item.id);
        for interface in &mut item.interfaces {
            port(&mut interface.port);
            port(&mut interface.punt);
        }
    }
    for item in &mut host.chains {
        chain(&mut item.id);
        item.hops.iter_mut().for_each(role);
        item.reverse.iter_mut().for_each(chain);
        match &mut item.output {
            Output::Port(id) => port(id),
            Output::Router(id) => router(id),
            Output::Ingress | Output::Normal | Output::None => {}
        }
    }
    for rule in &mut host.rules {
        let rule = &mut **rule;
        let ports = rule.matches.from.iter_mut().chain(&mut rule.matches.to).chain(&mut rule.actions.mirror);
        ports.for_each(port);
        rule.actions.queue.iter_mut().for_each(queue);
        match &mut rule.actions.terminal {
            Some(Action::Chain(id)) => chain(id),
            Some(Action::Port(id)) => port(id),
            Some(Action::Router(id)) => router(id),
            _ => {}
        }
    }
    for rule in host.rules.iter_mut().filter(|rule| rule.when().load.is_some()) {
        let mut when = rule.when().clone();
        when.load.iter_mut().for_each(|load| role(&mut load.role));
        rule.set_when(when);
    }
    for rule in host.rules.iter_mut().filter(|rule| rule.selection().is_some()) {
        rule.selected_ports_mut().for_each(port);
    }
    for rule in &mut host.nat {
        rule.matches.from.iter_mut().chain(&mut rule.matches.to).for_each(port);
        rule.local_to.iter_mut().for_each(router);
    }
    number_rules(&mut host.rules, &old.rules);
}

/// The names of the queues of all ports, each once, in the order of the file.
fn queue_names(host: &Host) -> Vec<(String, u16)> {
    let mut seen = BTreeSet::new();
    let first = host.queues().filter(|queue| seen.insert(queue.id));
    first.map(|queue| (queue.name.clone(), queue.id.0.into())).collect()
}

/// What identifies a rule: its name, or its content.
#[derive(PartialEq, Eq, Hash)]
enum Identity<'a> {
    Name(&'a str),
    Content(&'a Match, &'a When, &'a Actions),
    /// With ports by label, which may be others now.
    Selection(&'a Selection, Box<Match>, &'a When, &'a Actions),
}

fn identity(rule: &Rule) -> Identity<'_> {
    if !rule.name.is_empty() {
        return Identity::Name(&rule.name);
    }
    let Some(selection) = rule.selection() else {
        return Identity::Content(&rule.matches, rule.when(), &rule.actions);
    };
    let rest = Match { from: Vec::new(), to: Vec::new(), ..rule.matches.clone() };
    Identity::Selection(selection, Box::new(rest), rule.when(), &rule.actions)
}

/// Ports, chains, routers and queues already have their numbers, so that rules with the same content compare equal.
fn number_rules(rules: &mut [Rule], old: &[Rule]) {
    // The last rule in each list is the first in the old host.
    let mut known: HashMap<Identity<'_>, Vec<&Rule>> = HashMap::with_capacity(old.len());
    for rule in old.iter().rev() {
        known.entry(identity(rule)).or_default().push(rule);
    }
    let kept: Vec<Option<&Rule>> =
        rules.iter().map(|rule| known.get_mut(&identity(rule)).and_then(Vec::pop)).collect();
    let used: BTreeSet<u32> = old.iter().map(|rule| rule.id.0).collect();
    let taken: BTreeSet<u32> = kept.iter().flatten().map(|rule| rule.id.0).collect();
    let mut free = free(&used, &taken, MAX_RULES as u32);
    for (rule, kept) in rules.iter_mut().zip(kept) {
        if let Some(id) = kept.map(|kept| kept.id).or_else(|| free.next().map(RuleId)) {
            rule.id = id;
        }
        // An unchanged rule becomes a clone, so that later comparisons are fast.
        if let Some(kept) = kept.filter(|kept| *kept == rule) {
            *rule = kept.clone();
        }
    }
}

/// A number for a new rule: the first unused one after `last`, then from 0 again, so that a new rule does not
/// inherit the counters of a removed rule. `None` if the host has the maximum number of rules.
#[must_use]
pub fn new_rule_id(rules: &[Rule], last: RuleId) -> Option<RuleId> {
    let mut used = vec![false; MAX_RULES];
    for rule in rules {
        if let Some(used) = used.get_mut(rule.id.0 as usize) {
            *used = true;
        }
    }
    let (lower, end) = (last.0.saturating_add(1), MAX_RULES as u32);
    (lower..end).chain(0..lower.min(end)).find(|id| !used[*id as usize]).map(RuleId)
}

/// Numbers for new items: first numbers that were never used, then numbers that are unused now.
fn free(used: &BTreeSet<u32>, taken: &BTreeSet<u32>, end: u32) -> impl Iterator<Item = u32> {
    let never_used = (0..end).filter(|id| !used.contains(id));
    let used_before = (0..end).filter(|id| used.contains(id) && !taken.contains(id));
    never_used.chain(used_before)
}

/// The new number of each number in `new`.
fn renumber(new: &[(String, u16)], old: Vec<(String, u16)>, limit: usize) -> BTreeMap<u16, u16> {
    let used: BTreeSet<u32> = old.iter().map(|(_, id)| u32::from(*id)).collect();
    let old: BTreeMap<String, u16> = old.into_iter().collect();
    let mut map: BTreeMap<u16, u16> =
        new.iter().filter_map(|(name, id)| Some((*id, *old.get(name)?))).collect();
    let taken: BTreeSet<u32> = map.values().map(|id| u32::from(*id)).collect();
    let added: Vec<u16> = new.iter().filter(|(name, _)| !old.contains_key(name)).map(|(_, id)| *id).collect();
    let free = free(&used, &taken, limit as u32).filter_map(|id| u16::try_from(id).ok());
    map.extend(added.into_iter().zip(free));
    map
}

fn follow(map: &BTreeMap<u16, u16>, id: &mut u16) {
    if let Some(new) = map.get(id) {
        *id = *new;
    }
}
