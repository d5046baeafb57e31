// SPDX-License-Identifier: Apache-2.0
//! The snapshot of each worker, from the host, the policy, the routers and the active NFs.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use netvm_conntrack::FlowOwners;
use netvm_model::{self as model, Chain, Host, Output};

use super::Chains;
use super::policy::Rules;
use crate::drop_reason::DropReason;
use crate::ids::{ChainId, GroupId, LinkId, MemoryId, RoleId, mask_of, put};
use crate::manager::captures::Captures;
use crate::manager::nfs::group::GroupState;
use crate::manager::nfs::{Nfs, RoleMembers};
use crate::manager::pairs::{PairMembers, Pairs};
use crate::manager::routers::Routers;
use crate::manager::traces::Traces;
use crate::nat::{Nat, TargetHealth};
use crate::policy::DecisionCounters;
use crate::port_bits::PortBits;
use crate::snapshot::{
    Bonds, ChainPath, Choice, FlowRights, Multicast, Shortened, Snapshot, StickyChoice, Target,
};

/// What snapshots and tables are made of, besides the NFs.
#[derive(Clone, Copy)]
pub(crate) struct Sources<'a> {
    pub(crate) host: &'a Arc<Host>,
    pub(crate) routers: &'a Routers,
    pub(crate) rules: &'a Rules,
    pub(crate) chains: &'a Chains,
    pub(crate) captures: &'a Captures,
    pub(crate) owners: &'a Arc<FlowOwners>,
    pub(crate) targets: &'a TargetHealth,
    pub(crate) pairs: &'a Pairs,
    pub(crate) bonds: &'a Bonds,
    pub(crate) multicast: Option<&'a Multicast>,
}

/// The data from which snapshots and tables are built.
pub(crate) struct View<'a> {
    pub(super) host: &'a Host,
    pub(super) roles: BTreeMap<RoleId, RoleMembers>,
    /// Programs that get packets.
    pub(super) programs: BTreeMap<RoleId, PairMembers>,
    /// For each group, the memory that holds its backpressure words.
    watched: BTreeMap<GroupId, MemoryId>,
    /// The groups whose NFs accept packets with pending offloads.
    with_offloads: BTreeSet<GroupId>,
    /// Chains whose packets return to the engine after each hop, for a capture of their hops or a trace.
    captured: BTreeSet<ChainId>,
    routers: &'a Routers,
    rules: &'a Rules,
    chains: &'a Chains,
    owners: &'a Arc<FlowOwners>,
    targets: &'a TargetHealth,
    bonds: &'a Bonds,
    multicast: Option<&'a Multicast>,
    /// The NAT rules, which all workers share: made for the first snapshot.
    nat: OnceCell<Option<Arc<Nat>>>,
}

impl<'a> View<'a> {
    pub(super) fn new(sources: Sources<'a>, nfs: &Nfs, traces: &Traces) -> Self {
        let Sources { host, routers, rules, chains, captures, owners, targets, pairs, .. } = sources;
        let (bonds, multicast) = (sources.bonds, sources.multicast);
        let captured = match traces.show_each_hop() {
            true => host.chains.iter().map(|chain| chain.id).collect(),
            false => captures.chains(host),
        };
        let watched = nfs.groups().filter_map(|group| Some((group.id(), group.memories().first()?.id)));
        let with_offloads = nfs.groups().map(GroupState::id).filter(|group| nfs.takes_offloads(*group));
        Self {
            host,
            roles: nfs.members_by_role(),
            programs: pairs.members_by_role(host),
            watched: watched.collect(),
            with_offloads: with_offloads.collect(),
            captured,
            routers,
            rules,
            chains,
            owners,
            targets,
            bonds,
            multicast,
            nat: OnceCell::new(),
        }
    }

    /// The snapshot of one worker.
    pub(crate) fn snapshot(&self, worker: usize) -> Snapshot {
        let (policy, hits) = (Arc::clone(self.rules.policy()), self.hits(worker));
        let (routers, owners) = (self.routers.paths().into(), Arc::clone(self.owners));
        let nat = || Nat::of(self.host, self.routers.paths(), self.targets).map(Arc::new);
        let nat = self.nat.get_or_init(nat).clone();
        let snapshot = Snapshot { policy, hits, routers, owners, nat, ..Snapshot::default() };
        let mut snapshot = snapshot.with_virtual_ports(self.host);
        snapshot.bonds = self.bonds.clone();
        snapshot.multicast = self.multicast.cloned();
        snapshot.pairs = self.pair_ports();
        for port in &self.host.ports {
            snapshot.ports.add(port.id);
            if self.chains_from(port).any(|chain| self.longest(chain).any(|seconds| seconds > 0)) {
                snapshot.flow_verdict_ports.add(port.id);
            }
            self.own(port, &mut snapshot);
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
            if nf.flow_verdicts > 0 {
                let rights = FlowRights { longest: nf.flow_verdicts, steer: nf.steer.as_slice().into() };
                put(&mut snapshot.flow_rights, nf.id.index(), rights);
            }
        }
        for group in &self.host.groups {
            put(&mut snapshot.groups, group.id.index(), self.rights(group));
        }
        snapshot
    }

    /// Gives packets of a port to the workers that own their flows, if something is kept by flow.
    fn own(&self, port: &model::PortConfig, snapshot: &mut Snapshot) {
        let ingress = snapshot.policy.ingress(port.id);
        let is_monitored =
            self.host.engine.flow_monitor.is_some() && ingress.is_none_or(|ingress| ingress.is_monitored);
        let is_tracked = ingress.is_some_and(|ingress| ingress.tracking.is_some());
        let is_kept = is_tracked || is_monitored || snapshot.flow_verdict_ports.has(port.id);
        if !is_kept {
            return;
        }
        snapshot.owned.add(port.id);
        if port.kind.info().waits_for_room {
            snapshot.waiting.add(port.id);
            for chain in self.chains_from(port).map(|chain| chain.id) {
                if !snapshot.waited_for.contains(&chain) {
                    snapshot.waited_for.push(chain);
                }
            }
        }
    }

    /// The chains that packets of a port may take.
    fn chains_from(&self, port: &model::PortConfig) -> impl Iterator<Item = &Chain> {
        self.host.chains_by(&self.rules.policy().leading, port)
    }

    fn hits(&self, worker: usize) -> Arc<[DecisionCounters]> {
        self.rules.hits().of_worker(worker).unwrap_or_default()
    }

    /// The shortened chains, each with its configured chain.
    pub(super) fn short_chains(&self) -> impl Iterator<Item = (Shortened, &Chain)> {
        self.chains.shortened.iter().filter_map(|short| Some((*short, self.host.chain(short.of)?)))
    }

    /// The chains that are captured or traced at their hops.
    pub(super) fn captured(&self) -> impl Iterator<Item = &Chain> {
        self.captured.iter().filter_map(|id| self.host.chain(*id))
    }

    /// Whether a chain is captured or traced at its hops.
    pub(super) fn is_captured(&self, chain: ChainId) -> bool {
        self.captured.contains(&chain)
    }

    /// For each hop, the longest idle time of its NF's per-flow verdicts in seconds.
    fn longest(&self, chain: &Chain) -> impl Iterator<Item = u16> {
        chain.hops.iter().map(|role| self.host.nf(*role).map_or(0, |nf| nf.flow_verdicts))
    }

    /// A chain without the hops of the bit mask `without`.
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
            let by_program = self.program(chain, *role, hop as u8);
            let target = match by_program.unwrap_or_else(|| self.target(*role, hop as u8, worker)) {
                _ if is_in(without, hop) => targets[targets.len() - 1].clone(),
                // Bypassed: packets go where the next hop's go.
                Target::Drop(_) if self.is_bypassed(chain, *role) => targets[targets.len() - 1].clone(),
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
        // With a single hop, the entry sees the fill level of the only ring itself.
        let watched = if chain.hops.len() < 2 { Vec::new() } else { self.watched(chain) };
        let roles = chain.hops.iter().map(|role| role.0).collect();
        let longest = self.longest(chain).collect();
        let by_hash =
            |role: &RoleId| self.host.nf(*role).is_some_and(|nf| nf.balance != model::Balance::LeastOccupied);
        let hashed = chain.hops.iter().any(by_hash);
        let crosses =
            |hop: &usize| groups[*hop] != groups[*hop - 1] || self.goes_by_engine(chain, without, *hop);
        let crossings = (1..groups.len()).filter(crosses);
        let crossings = crossings.filter_map(|hop| match targets.get(hop) {
            Some(Target::Links { links, .. }) => Some(links.iter().copied()),
            _ => None,
        });
        let crossings = crossings.flatten().collect();
        ChainPath { entry, targets, groups, roles, hashed, watched, longest, crossings }
    }

    /// The memories that hold the chain's backpressure words, each with the NF threads of the chain in its group.
    fn watched(&self, chain: &Chain) -> Vec<(MemoryId, u64)> {
        let mut watched = BTreeMap::new();
        for role in &chain.hops {
            let memory = self.host.nf(*role).and_then(|nf| self.watched.get(&nf.group));
            let (Some(memory), Some(members)) = (memory, self.roles.get(role)) else { continue };
            *watched.entry(*memory).or_default() |= mask_of(&members.nf_threads);
        }
        watched.into_iter().collect()
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
            model::Balance::Sticky => match self.chains.sticky.get(&role) {
                Some(table) => {
                    let nf_threads = members.nf_threads.iter().copied().collect();
                    let takes_new = members.nf_threads.iter().map(|one| !members.draining.contains(one));
                    let (takes_new, always) = (takes_new.collect(), nf.scales());
                    Choice::Sticky(StickyChoice { table: Arc::clone(table), nf_threads, takes_new, always })
                }
                None => Choice::FlowHash,
            },
        };
        let offloads = self.with_offloads.contains(&nf.group);
        Target::Links { group: nf.group, hop, choice, offloads, links }
    }

    /// The ports to which a group's NFs may send: the configured ports, or the ports of the chains through the group.
    fn rights(&self, group: &model::Group) -> PortBits {
        let mut rights = PortBits::default();
        if let Some(ports) = &group.may_send_to {
            ports.iter().for_each(|port| rights.add(*port));
            return rights;
        }
        let crosses = |chain: &Chain| {
            chain.hops.iter().any(|role| self.host.nf(*role).is_some_and(|nf| nf.group == group.id))
        };
        for chain in self.host.chains.iter().filter(|chain| crosses(chain)) {
            if let Output::Port(port) = chain.output {
                rights.add(port);
            }
        }
        for port in &self.host.ports {
            if self.chains_from(port).any(crosses) {
                rights.add(port.id);
            }
        }
        rights
    }
}

/// Whether the bit mask has this hop.
pub(super) fn is_in(hops: u16, hop: usize) -> bool {
    hops.checked_shr(hop as u32).is_some_and(|hops| hops & 1 == 1)
}
