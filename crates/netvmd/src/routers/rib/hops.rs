// SPDX-License-Identifier: Apache-2.0
//! Gateway sets that routes share. Each set is one next hop of the engine, so a neighbour's change updates one entry
//! and no routes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netvm_router::{Hop, MAX_NEXT_HOPS, NextHop, NextHopId};

/// Next hop 0: punt.
pub const PUNT: NextHopId = NextHopId(0);
/// Next hop 1: drop.
pub const BLACKHOLE: NextHopId = NextHopId(1);
/// Most entries of a [`NextHop::Ecmp`].
const MAX_ECMP_ENTRIES: usize = 16;

/// A neighbour: interface index and address.
pub type Peer = (u32, IpAddr);

/// A gateway of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gateway {
    /// The neighbour.
    pub peer: Peer,
    /// Its weight, from 1.
    pub weight: u16,
}

impl Gateway {
    /// A placeholder for all neighbours in a network that is connected to an interface.
    pub const fn glean(index: u32, v4: bool) -> Self {
        let none = if v4 { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
        Self { peer: (index, none), weight: 1 }
    }

    /// Whether it is [`Gateway::glean`].
    pub const fn is_glean(&self) -> bool {
        self.peer.1.is_unspecified()
    }
}

#[derive(Debug)]
struct Group {
    gateways: Box<[Gateway]>,
    /// Routes that use it.
    users: u32,
    /// The entry that the engine has.
    sent: NextHop,
}

/// The gateway sets in use.
#[derive(Debug)]
pub struct Hops {
    groups: BTreeMap<u16, Group>,
    ids: HashMap<Box<[Gateway]>, NextHopId>,
    /// The sets that contain a neighbour.
    members: HashMap<Peer, BTreeSet<u16>>,
    free: Vec<u16>,
    /// Ids that become free when the engine has no route with them any more.
    released: Vec<(u16, NextHop)>,
    /// The lowest id never used.
    unused: u16,
    dirty: BTreeSet<u16>,
    blackhole_told: bool,
    refused: u64,
}

impl Default for Hops {
    fn default() -> Self {
        Self {
            groups: BTreeMap::new(),
            ids: HashMap::new(),
            members: HashMap::new(),
            free: Vec::new(),
            released: Vec::new(),
            unused: NextHopId::LOST.0 + 1,
            dirty: BTreeSet::new(),
            blackhole_told: false,
            refused: 0,
        }
    }
}

impl Hops {
    /// Adds a route to a gateway set and returns its id; [`PUNT`] if no id is free.
    pub fn take(&mut self, gateways: &[Gateway]) -> NextHopId {
        if let Some(&id) = self.ids.get(gateways) {
            if let Some(group) = self.groups.get_mut(&id.0) {
                group.users += 1;
            }
            return id;
        }
        let id = match self.free.pop() {
            Some(id) => id,
            None if usize::from(self.unused) < MAX_NEXT_HOPS => {
                self.unused += 1;
                self.unused - 1
            }
            None => {
                self.refused += 1;
                return PUNT;
            }
        };
        for gateway in gateways {
            self.members.entry(gateway.peer).or_default().insert(id);
        }
        self.ids.insert(gateways.into(), NextHopId(id));
        self.groups.insert(id, Group { gateways: gateways.into(), users: 1, sent: NextHop::Punt });
        self.dirty.insert(id);
        NextHopId(id)
    }

    /// Removes a route from a set.
    pub fn release(&mut self, id: NextHopId) {
        let Some(group) = self.groups.get_mut(&id.0) else { return };
        group.users -= 1;
        if group.users > 0 {
            return;
        }
        let Some(group) = self.groups.remove(&id.0) else { return };
        self.ids.remove(&group.gateways);
        for gateway in &group.gateways {
            if let Some(of) = self.members.get_mut(&gateway.peer) {
                of.remove(&id.0);
                if of.is_empty() {
                    self.members.remove(&gateway.peer);
                }
            }
        }
        self.dirty.remove(&id.0);
        self.released.push((id.0, group.sent));
    }

    /// Marks the sets of a changed neighbour.
    pub fn touch(&mut self, peer: Peer) {
        self.dirty.extend(self.members.get(&peer).into_iter().flatten());
    }

    /// Marks all sets.
    pub fn touch_all(&mut self) {
        self.dirty.extend(self.groups.keys());
    }

    /// The changes since the last call. `resolve` returns a neighbour's hop, `Ok(None)` if it is unresolved, `Err` if
    /// only the kernel can reach it.
    pub fn changes(
        &mut self,
        resolve: impl Fn(Peer) -> Result<Option<Hop>, Unreachable>,
    ) -> Vec<(NextHopId, NextHop)> {
        let mut changes = Vec::new();
        if !self.blackhole_told {
            self.blackhole_told = true;
            changes.push((BLACKHOLE, NextHop::Blackhole));
        }
        // The engine's routes hold a released id until it gets the routes of this round.
        for (id, sent) in self.released.drain(..) {
            self.free.push(id);
            if sent != NextHop::Punt {
                changes.push((NextHopId(id), NextHop::Punt));
            }
        }
        for id in std::mem::take(&mut self.dirty) {
            let Some(group) = self.groups.get_mut(&id) else { continue };
            let now = next_hop(&group.gateways, &resolve);
            if now != group.sent {
                changes.push((NextHopId(id), now.clone()));
                group.sent = now;
            }
        }
        changes
    }

    /// All gateways and neighbours.
    pub fn peers(&self) -> impl Iterator<Item = Peer> {
        self.members.keys().copied().filter(|(_, address)| !address.is_unspecified())
    }

    /// The gateways of a next hop.
    pub fn gateways(&self, id: NextHopId) -> &[Gateway] {
        self.groups.get(&id.0).map_or(&[], |group| &group.gateways)
    }

    /// Next hops in use, without those that the kernel has to resolve.
    pub fn count(&self) -> usize {
        self.groups.values().filter(|group| !group.gateways.iter().any(Gateway::is_glean)).count()
    }

    /// How often all ids were in use.
    pub const fn refused(&self) -> u64 {
        self.refused
    }
}

/// A gateway on an interface that the engine does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreachable;

fn next_hop(gateways: &[Gateway], resolve: impl Fn(Peer) -> Result<Option<Hop>, Unreachable>) -> NextHop {
    let mut known = Vec::new();
    for gateway in gateways {
        if gateway.is_glean() {
            return resolve(gateway.peer)
                .ok()
                .flatten()
                .map_or(NextHop::Punt, |hop| NextHop::Glean(hop.interface));
        }
        match resolve(gateway.peer) {
            Ok(Some(hop)) => known.push((hop, gateway.weight)),
            // The other gateways carry its flows until the kernel resolves it.
            Ok(None) => {}
            // Only the kernel can reach this gateway, so it has to distribute the flows.
            Err(Unreachable) => return NextHop::Punt,
        }
    }
    match &known[..] {
        [] => NextHop::Punt,
        [(hop, _)] => NextHop::Via(*hop),
        _ if known.len() > MAX_ECMP_ENTRIES => NextHop::Punt,
        _ => {
            let entries = entries(&known.iter().map(|(_, weight)| *weight).collect::<Vec<_>>());
            let spread =
                known.iter().zip(entries).flat_map(|((hop, _), count)| std::iter::repeat_n(*hop, count));
            NextHop::Ecmp(spread.collect())
        }
    }
}

/// Entries of each gateway by its weight: at least one each, at most [`MAX_ECMP_ENTRIES`] together.
fn entries(weights: &[u16]) -> Vec<usize> {
    let total: usize = weights.iter().map(|weight| usize::from(*weight)).sum();
    if total <= MAX_ECMP_ENTRIES {
        return weights.iter().map(|weight| usize::from(*weight).max(1)).collect();
    }
    let mut entries: Vec<usize> =
        weights.iter().map(|weight| (usize::from(*weight) * MAX_ECMP_ENTRIES / total).max(1)).collect();
    while entries.iter().sum::<usize>() > MAX_ECMP_ENTRIES {
        let Some(most) = entries.iter_mut().max() else { break };
        *most -= 1;
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_fit_into_sixteen_entries() {
        assert_eq!(entries(&[1, 1]), [1, 1]);
        assert_eq!(entries(&[3, 1]), [3, 1]);
        assert_eq!(entries(&[0, 1]), [1, 1]);
        assert_eq!(entries(&[30, 10]), [12, 4]);
        assert_eq!(entries(&[100, 1, 1]), [14, 1, 1]);
        assert_eq!(entries(&[256; 16]), [1; 16]);
    }

    #[test]
    fn ids_are_free_a_round_after_their_release() {
        let gateway = |n: u8| Gateway { peer: (1, IpAddr::from([10, 0, 0, n])), weight: 1 };
        let mut hops = Hops::default();
        let unknown = |_| Ok(None);
        let first = hops.take(&[gateway(1)]);
        assert_eq!(hops.take(&[gateway(1)]), first);
        hops.changes(unknown);
        hops.release(first);
        assert_eq!(hops.count(), 1);
        hops.release(first);
        assert_eq!(hops.count(), 0);
        let second = hops.take(&[gateway(2)]);
        assert_ne!(second, first);
        hops.changes(unknown);
        assert_eq!(hops.take(&[gateway(3)]), first);
    }

    #[test]
    fn sets_beyond_the_engines_next_hops_are_punted() {
        let mut hops = Hops::default();
        let take = |hops: &mut Hops, n: usize| {
            hops.take(&[Gateway { peer: (1, IpAddr::from((n as u32).to_be_bytes())), weight: 1 }])
        };
        let first = usize::from(NextHopId::LOST.0) + 1;
        let last = (first..MAX_NEXT_HOPS).map(|n| take(&mut hops, n)).last();
        assert_eq!(last, Some(NextHopId(MAX_NEXT_HOPS as u16 - 1)));
        assert_eq!((take(&mut hops, 1), hops.refused()), (PUNT, 1));
    }
}
