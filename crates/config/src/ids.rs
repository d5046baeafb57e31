//! Stable numbers: what two hosts both have by name keeps the number that the old one gave it.
//!
//! ```text
//!  old   firewall=0  monitor=1  router=2
//!  new   monitor, scan, firewall        ->   firewall=0  monitor=1  scan=3
//! ```
//!
//! `scan` does not get 2 at once: packets, counters and tables of `router` may still carry it while the change is made.
//! It is used again only when nothing else is left.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{
    ChainId, GroupId, Host, MAX_CHAINS, MAX_GROUPS, MAX_PORTS, MAX_ROLES, Output, PortId, RoleId, SteerAction,
};

/// Numbers the items of `host` anew: those that `old` has by name keep its numbers, new ones get numbers that `old` does
/// not use, the lowest first. Without `old` the numbers are the places in the file. References follow.
///
/// A host within the limits stays within them: no number reaches its `MAX_…`.
pub fn assign_ids(host: &mut Host, old: Option<&Host>) {
    let nothing = Host::default();
    let old = old.unwrap_or(&nothing);
    let groups = renumber(
        host.groups.iter().map(|group| (group.name.as_str(), group.id.0)),
        old.groups.iter().map(|group| (group.name.as_str(), group.id.0)),
        MAX_GROUPS,
    );
    let ports = renumber(
        host.ports.iter().map(|port| (port.name.as_str(), port.id.0)),
        old.ports.iter().map(|port| (port.name.as_str(), port.id.0)),
        MAX_PORTS,
    );
    let roles = renumber(
        host.nfs.iter().map(|nf| (nf.role.as_str(), nf.id.0)),
        old.nfs.iter().map(|nf| (nf.role.as_str(), nf.id.0)),
        MAX_ROLES,
    );
    let chains = renumber(
        host.chains.iter().map(|chain| (chain.name.as_str(), chain.id.0)),
        old.chains.iter().map(|chain| (chain.name.as_str(), chain.id.0)),
        MAX_CHAINS,
    );
    let group = |id: &mut GroupId| follow(&groups, &mut id.0);
    let port = |id: &mut PortId| follow(&ports, &mut id.0);
    let role = |id: &mut RoleId| follow(&roles, &mut id.0);
    let chain = |id: &mut ChainId| follow(&chains, &mut id.0);

    for item in &mut host.groups {
        group(&mut item.id);
        item.may_send_to.iter_mut().flatten().for_each(port);
    }
    for item in &mut host.ports {
        port(&mut item.id);
        item.group.iter_mut().for_each(group);
    }
    for item in &mut host.nfs {
        role(&mut item.id);
        group(&mut item.group);
    }
    for item in &mut host.chains {
        chain(&mut item.id);
        item.hops.iter_mut().for_each(role);
        if let Output::Port(id) = &mut item.output {
            port(id);
        }
    }
    for rule in &mut host.steering {
        port(&mut rule.port);
        match &mut rule.action {
            SteerAction::Chain(id) => chain(id),
            SteerAction::Port(id) => port(id),
            SteerAction::Drop => {}
        }
    }
}

/// For each number of `new` its number from now on.
fn renumber<'a>(
    new: impl Iterator<Item = (&'a str, u16)>,
    old: impl Iterator<Item = (&'a str, u16)>,
    limit: usize,
) -> BTreeMap<u16, u16> {
    let old: BTreeMap<&str, u16> = old.collect();
    let (kept, added): (Vec<_>, Vec<_>) = new.partition(|(name, _)| old.contains_key(name));
    let mut map: BTreeMap<u16, u16> =
        kept.iter().filter_map(|(name, id)| Some((*id, *old.get(name)?))).collect();
    let taken: BTreeSet<u16> = map.values().copied().collect();
    let used: BTreeSet<u16> = old.into_values().collect();
    let end = u16::try_from(limit).unwrap_or(u16::MAX);
    let never_used = (0..end).filter(|id| !used.contains(id));
    let used_before = (0..end).filter(|id| used.contains(id) && !taken.contains(id));
    map.extend(added.into_iter().map(|(_, id)| id).zip(never_used.chain(used_before)));
    map
}

fn follow(map: &BTreeMap<u16, u16>, id: &mut u16) {
    if let Some(new) = map.get(id) {
        *id = *new;
    }
}
