// SPDX-License-Identifier: Apache-2.0
//! The next-hop table of each trust group, which its NFs read: destinations of each hop, names, and direct rings.

use netvm_model::{self as model, Chain, NfConfig};
use netvm_region::{Balance, Destination, MAX_HOPS, MAX_NF_THREADS, Name, Table};

use super::snapshot::{View, is_in};
use crate::ids::{GroupId, NfThreadId, RoleId};
use crate::manager::nfs::group::GroupState;
use crate::snapshot::Shortened;

impl View<'_> {
    /// A group's table. Creates a ring for each pair of NF threads that are neighbours in a chain.
    pub(super) fn table(&self, group: &mut GroupState) -> Box<Table> {
        let id = group.id();
        let mut table = Table::new_boxed();
        for nf in &self.host.nfs {
            let index = nf.id.index();
            table.role_names[index] = Name::new(&nf.role).unwrap_or(table.role_names[index]);
            let goes_by_engine = nf.scales() || self.captured().any(|chain| chain.hops.contains(&nf.id));
            table.roles[index] =
                if goes_by_engine { Destination::engine(0) } else { self.destination(id, nf.id, 0) };
        }
        for port in &self.host.ports {
            let index = port.id.index();
            table.ports[index] = Name::new(&port.name).unwrap_or(table.ports[index]);
        }
        for chain in &self.host.chains {
            let index = chain.id.index();
            table.chain_names[index] = Name::new(&chain.name).unwrap_or(table.chain_names[index]);
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
        table.poll_only = group.poll_only();
        table
    }

    fn fill_chain(&self, table: &mut Table, group: GroupId, chain: &Chain, short: Shortened) {
        let row = short.id.index();
        for (hop, role) in chain.hops.iter().enumerate().take(MAX_HOPS) {
            table.hop_roles[row][hop] = role.0 + 1;
        }
        let mut next = Destination::engine(chain.hops.len() as u8);
        for (hop, role) in chain.hops.iter().enumerate().take(MAX_HOPS).rev() {
            let has_nf = self.roles.get(role).is_some_and(|members| !members.nf_threads.is_empty());
            let is_served = has_nf || self.has_program(*role);
            let bypassed = (!is_served && self.is_bypassed(chain, *role)) || is_in(short.without, hop);
            let here = match bypassed {
                true => next,
                false if self.is_captured(chain.id) => Destination::engine(hop as u8),
                false if self.goes_by_engine(chain, short.without, hop) => Destination::engine(hop as u8),
                false => self.destination(group, *role, hop as u8),
            };
            table.hops[row][hop] = here;
            next = here;
        }
    }

    /// Whether packets come to a hop by way of the engine, although the NFs before it are in the same group: the engine
    /// knows which flows an NF has steered, and the replica of each flow of a role whose replicas come and go.
    pub(super) fn goes_by_engine(&self, chain: &Chain, without: u16, hop: usize) -> bool {
        let nf = |hop: usize| chain.hops.get(hop).and_then(|role| self.host.nf(*role));
        if nf(hop).is_some_and(NfConfig::scales) {
            return true;
        }
        for (before, role) in chain.hops.iter().enumerate().take(hop).rev() {
            if nf(before).is_some_and(|nf| !nf.steer.is_empty()) {
                return true;
            }
            let is_served = self.roles.get(role).is_some_and(|members| !members.nf_threads.is_empty());
            if is_served && !is_in(without, before) {
                return false;
            }
        }
        false
    }

    /// The NF threads of a role if they are in this group, or the engine.
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

const fn balance_of(balance: model::Balance) -> Balance {
    match balance {
        model::Balance::LeastOccupied => Balance::LeastOccupied,
        model::Balance::FlowHash => Balance::FlowHash,
        model::Balance::Sticky => Balance::Sticky,
    }
}

/// Keeps existing rings in the table while both their NF threads live, because the rings may hold packets. Leaves out
/// rings of an NF thread that ended: their readers empty them before they confirm the table.
fn keep_rings(group: &GroupState, table: &mut Table) {
    for from in (1..MAX_NF_THREADS as u8).map(NfThreadId) {
        for (to, ring) in group.rings_from(from).filter(|(to, _)| !group.is_gone(from) && !group.is_gone(*to))
        {
            table.rings[from.index()][to.index()] = ring;
        }
    }
}

/// Whether the edges form a loop.
fn has_loop(edges: &[(u8, u8)]) -> bool {
    // Repeatedly removes the edges into NF threads without outgoing edges. What remains is a loop.
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
