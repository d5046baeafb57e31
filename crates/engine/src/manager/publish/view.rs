//! Builds the snapshot of each worker and the next-hop table of each group, from the configuration and the attached
//! NFs.

use std::collections::BTreeMap;
use std::sync::Arc;

use netvm_config::model::{self, Chain, Host, OnFailure, Output};
use netvm_region::{Balance, Destination, MAX_HOPS, Name, RingRef, Sticky, Table};

use super::Chains;
use super::policy::Rules;
use crate::drop_reason::DropReason;
use crate::ids::{GroupId, LinkId, MemoryId, NfThreadId, RoleId, put};
use crate::manager::nfs::Nfs;
use crate::manager::nfs::group::GroupState;
use crate::manager::nfs::instance::{Instance, InstanceState};
use crate::manager::routers::Routers;
use crate::policy::{DecisionCounters, HitCounts, Policy};
use crate::router::RouterPath;
use crate::snapshot::{ChainPath, Choice, PortBits, Shortened, Snapshot, Target};

/// The NF threads that take packets of one role.
#[derive(Clone, Debug, Default)]
struct RoleMembers {
    nf_threads: Vec<NfThreadId>,
    /// For each of them, for each worker.
    links: Vec<Vec<LinkId>>,
}

/// The active NF threads of each role.
fn members<'a>(instances: impl Iterator<Item = &'a Instance>) -> BTreeMap<RoleId, RoleMembers> {
    let mut roles: BTreeMap<RoleId, RoleMembers> = BTreeMap::new();
    for instance in instances.filter(|instance| instance.state == InstanceState::Active) {
        let role = roles.entry(instance.role).or_default();
        role.nf_threads.extend(&instance.nf_threads);
        role.links.extend(instance.links.iter().cloned());
    }
    roles
}

const fn balance_of(balance: model::Balance) -> Balance {
    match balance {
        model::Balance::LeastOccupied => Balance::LeastOccupied,
        model::Balance::FlowHash => Balance::FlowHash,
        model::Balance::Sticky => Balance::Sticky,
    }
}

/// What snapshots and tables are made from.
pub(crate) struct View<'a> {
    host: &'a Host,
    roles: BTreeMap<RoleId, RoleMembers>,
    /// The memory that holds each group's backpressure words.
    watched: BTreeMap<GroupId, MemoryId>,
    policy: &'a Arc<Policy>,
    counts: &'a HitCounts,
    /// Chains with bypassed hops.
    shortened: Vec<Shortened>,
    /// For each sticky role, each worker's table of flows.
    sticky: &'a BTreeMap<RoleId, Vec<Arc<Sticky>>>,
    /// By [`RouterId`](model::RouterId).
    routers: &'a [Option<Arc<RouterPath>>],
}

impl<'a> View<'a> {
    pub(crate) fn new(
        (host, routers): (&'a Host, &'a Routers),
        rules: &'a Rules,
        chains: &'a Chains,
        nfs: &Nfs,
    ) -> Self {
        let memory = |group: &GroupState| Some((group.id(), group.memories.first()?.id));
        Self {
            host,
            roles: members(nfs.instances.values()),
            watched: nfs.groups.values().filter_map(memory).collect(),
            policy: &rules.policy,
            counts: &rules.counts,
            shortened: chains.shortened.iter().map(|short| short.chain).collect(),
            sticky: &chains.sticky,
            routers: routers.paths(),
        }
    }

    /// The snapshot of the worker with this index.
    pub(crate) fn snapshot(&self, worker: usize) -> Snapshot {
        let (policy, hits) = (Arc::clone(self.policy), self.hits(worker));
        let routers = self.routers.into();
        let mut snapshot = Snapshot { policy, hits, routers, ..Snapshot::default() };
        for port in &self.host.ports {
            snapshot.ports.add(port.id);
            if self.chains_from(port).any(|chain| self.longest(chain).any(|seconds| seconds > 0)) {
                snapshot.flow_verdict_ports.add(port.id);
            }
        }
        for chain in &self.host.chains {
            put(&mut snapshot.chains, chain.id.index(), self.path(chain, 0, worker));
        }
        for (short, chain) in self.short_chains() {
            put(&mut snapshot.chains, short.id.index(), self.path(chain, short.without, worker));
            snapshot.shortened.push(short);
        }
        for nf in &self.host.nfs {
            put(&mut snapshot.roles, nf.id.index(), self.target(nf.id, 0, worker));
        }
        for group in &self.host.groups {
            put(&mut snapshot.groups, group.id.index(), self.rights(group));
        }
        snapshot
    }

    /// The chains that packets of a port may take.
    fn chains_from(&self, port: &model::PortConfig) -> impl Iterator<Item = &Chain> {
        self.host.chains_by(&self.policy.leading, port)
    }

    fn hits(&self, worker: usize) -> Arc<[DecisionCounters]> {
        self.counts.of_worker(worker).unwrap_or_default()
    }

    /// The chains without some hops, with the ones that they come from.
    fn short_chains(&self) -> impl Iterator<Item = (Shortened, &Chain)> {
        self.shortened.iter().filter_map(|short| Some((*short, self.host.chain(short.of)?)))
    }

    /// For each hop of a chain, the seconds for which words about flows hold at most.
    fn longest(&self, chain: &Chain) -> impl Iterator<Item = u16> {
        chain.hops.iter().map(|role| self.host.nf(*role).map_or(0, |nf| nf.flow_verdicts))
    }

    /// A chain, without the hops of which `without` has a bit.
    fn path(&self, chain: &Chain, without: u16, worker: usize) -> ChainPath {
        let output = match chain.output {
            Output::Port(port) => Target::Port(port),
            Output::Ingress => Target::Ingress,
            Output::Normal => Target::Normal,
            Output::Router(router) => Target::Router(router),
            Output::None => Target::Drop(DropReason::NoOutput),
        };
        let mut targets = vec![output];
        let mut broken = false;
        for (hop, role) in chain.hops.iter().enumerate().rev() {
            let target = match self.target(*role, hop as u8, worker) {
                _ if is_in(without, hop) => targets[targets.len() - 1].clone(),
                // The hop is left out: its packets go where those of the next one do.
                Target::Drop(_) if chain.on_failure == OnFailure::Bypass => {
                    targets[targets.len() - 1].clone()
                }
                Target::Drop(reason) => {
                    broken = true;
                    Target::Drop(reason)
                }
                target => target,
            };
            targets.push(target);
        }
        targets.reverse();
        let entry = if broken { Target::Drop(DropReason::NfDown) } else { targets[0].clone() };
        let groups: Vec<GroupId> =
            chain.hops.iter().filter_map(|role| self.host.nf(*role)).map(|nf| nf.group).collect();
        let mut watched: Vec<MemoryId> =
            groups.iter().filter_map(|group| self.watched.get(group)).copied().collect();
        watched.sort_unstable();
        watched.dedup();
        // Only a chain with an inner hop has a ring whose filling the entry cannot see for itself.
        if chain.hops.len() < 2 {
            watched.clear();
        }
        let roles = chain.hops.iter().map(|role| role.0).collect();
        let longest = self.longest(chain).collect();
        let by_hash =
            |role: &RoleId| self.host.nf(*role).is_some_and(|nf| nf.balance != model::Balance::LeastOccupied);
        let hashed = chain.hops.iter().any(by_hash);
        let crossings = (1..groups.len()).filter(|hop| groups[*hop] != groups[*hop - 1]);
        let crossings = crossings.filter_map(|hop| match targets.get(hop) {
            Some(Target::Links { links, .. }) => Some(links.iter().copied()),
            _ => None,
        });
        let crossings = crossings.flatten().collect();
        ChainPath { entry, targets, groups, roles, hashed, watched, longest, crossings }
    }

    fn target(&self, role: RoleId, hop: u8, worker: usize) -> Target {
        let (Some(nf), Some(members)) = (self.host.nf(role), self.roles.get(&role)) else {
            return Target::Drop(DropReason::NfDown);
        };
        let links: Box<[LinkId]> =
            members.links.iter().filter_map(|links| links.get(worker)).copied().collect();
        if links.is_empty() {
            return Target::Drop(DropReason::NfDown);
        }
        let choice = match nf.balance {
            model::Balance::LeastOccupied => Choice::LeastOccupied,
            model::Balance::FlowHash => Choice::FlowHash,
            model::Balance::Sticky => match self.sticky.get(&role).and_then(|tables| tables.get(worker)) {
                Some(table) => Choice::Sticky(Arc::clone(table)),
                None => Choice::FlowHash,
            },
        };
        Target::Links { group: nf.group, hop, choice, links }
    }

    fn rights(&self, group: &model::Group) -> PortBits {
        let mut rights = PortBits::default();
        if let Some(ports) = &group.may_send_to {
            ports.iter().for_each(|port| rights.add(*port));
            return rights;
        }
        let visits = |chain: &Chain| {
            chain.hops.iter().any(|role| self.host.nf(*role).is_some_and(|nf| nf.group == group.id))
        };
        for chain in self.host.chains.iter().filter(|chain| visits(chain)) {
            if let Output::Port(port) = chain.output {
                rights.add(port);
            }
        }
        for port in &self.host.ports {
            if self.chains_from(port).any(visits) {
                rights.add(port.id);
            }
        }
        rights
    }

    /// Writes a group's table: destinations, names, and a ring for every pair of NF threads that follow each other.
    pub(crate) fn fill_table(&self, group: &mut GroupState) {
        let id = group.id();
        let mut table = Table::new_boxed();
        for nf in &self.host.nfs {
            let index = nf.id.index();
            table.role_names[index] = Name::new(&nf.role).unwrap_or(table.role_names[index]);
            table.roles[index] = self.destination(id, nf.id, 0);
        }
        for port in &self.host.ports {
            let index = port.id.index();
            table.ports[index] = Name::new(&port.name).unwrap_or(table.ports[index]);
        }
        for chain in &self.host.chains {
            self.fill_chain(&mut table, id, chain, Shortened { id: chain.id, of: chain.id, without: 0 });
        }
        for (short, chain) in self.short_chains() {
            self.fill_chain(&mut table, id, chain, short);
        }
        let mut edges = Vec::new();
        for hops in &table.hops {
            for pair in hops.windows(2) {
                for from in pair[0].replicas() {
                    edges.extend(pair[1].replicas().iter().map(|to| (*from, *to)));
                }
            }
        }
        edges.sort_unstable();
        edges.dedup();
        for (from, to) in &edges {
            if let Some(ring) = group.ring_between(NfThreadId(*from), NfThreadId(*to)) {
                table.rings[usize::from(*from)][usize::from(*to)] = ring;
            }
        }
        keep_rings(group, &mut table);
        table.looped = u64::from(has_loop(&edges));
        table.silent = group.silent();
        group.table = table;
    }

    fn fill_chain(&self, table: &mut Table, group: GroupId, chain: &Chain, short: Shortened) {
        let row = short.id.index();
        for (hop, role) in chain.hops.iter().enumerate().take(MAX_HOPS) {
            table.hop_roles[row][hop] = role.0 + 1;
        }
        let mut next = Destination::engine(chain.hops.len() as u8);
        for (hop, role) in chain.hops.iter().enumerate().take(MAX_HOPS).rev() {
            let there = self.roles.get(role).is_some_and(|members| !members.nf_threads.is_empty());
            let bypassed = (!there && chain.on_failure == OnFailure::Bypass) || is_in(short.without, hop);
            let here = if bypassed { next } else { self.destination(group, *role, hop as u8) };
            table.hops[row][hop] = here;
            next = here;
        }
    }

    /// To the NF threads of a role, if they are in this group.
    fn destination(&self, group: GroupId, role: RoleId, hop: u8) -> Destination {
        let (Some(nf), Some(members)) = (self.host.nf(role), self.roles.get(&role)) else {
            return Destination::engine(hop);
        };
        if nf.group != group {
            return Destination::engine(hop);
        }
        let nf_threads: Vec<u8> = members.nf_threads.iter().map(|nf_thread| nf_thread.0).collect();
        Destination::nf_threads(hop, balance_of(nf.balance), &nf_threads)
    }
}

/// Whether a hop has a bit.
fn is_in(hops: u16, hop: usize) -> bool {
    hops.checked_shr(hop as u32).is_some_and(|hops| hops & 1 == 1)
}

/// Rings that exist stay in the table while both their NF threads do: what is in them is still to be read. Those of a
/// NF thread that is gone are left out: who reads from it empties the ring before it confirms the table.
fn keep_rings(group: &GroupState, table: &mut Table) {
    for from in (1..netvm_region::MAX_NF_THREADS as u8).map(NfThreadId) {
        for (to, ring) in group.rings_from(from).filter(|(to, _)| !group.is_gone(from) && !group.is_gone(*to))
        {
            let slot: &mut RingRef = &mut table.rings[from.index()][to.index()];
            *slot = ring;
        }
    }
}

/// Whether one can come back to an NF thread along the edges.
fn has_loop(edges: &[(u8, u8)]) -> bool {
    // Takes away, again and again, every edge into an NF thread that no edge leaves; what is left is a loop.
    let mut left = edges.to_vec();
    loop {
        let before = left.len();
        let sources: Vec<u8> = left.iter().map(|(from, _)| *from).collect();
        left.retain(|(_, to)| sources.contains(to));
        if left.is_empty() || left.len() == before {
            return !left.is_empty();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::has_loop;

    #[test]
    fn loops_are_found() {
        assert!(!has_loop(&[]));
        assert!(!has_loop(&[(1, 2), (2, 3), (1, 3)]));
        assert!(has_loop(&[(1, 2), (2, 3), (3, 1), (3, 4)]));
        assert!(has_loop(&[(5, 5)]));
    }
}
