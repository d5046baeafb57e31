// SPDX-License-Identifier: Apache-2.0
//! Which end of a pool stands for a source.

use netvm_wire::{FlowHasher, IpProto, PortRange};

use super::{inside, same_family};
use crate::mapped::{Filtering, block_size};
use crate::nat::{
    Allocation, Among, Blocks, End, Inside, Mappings, Offer, Place, Pool, count, has_free_ports, offer,
    share_of,
};
use crate::packet::tuple::Tuple;
use crate::table::connections::{Connections, Refusal};
use crate::workers::Hash;

/// Ports that are tried for a mapping, at most, as in Linux.
const MAX_ATTEMPTS: usize = 128;
/// Addresses among which an address inside without a block looks for a free one.
const MAX_ADDRESSES: u64 = 8;

/// A connection whose source is to be chosen.
#[derive(Clone, Copy)]
pub(in crate::table) struct Wanted {
    pub(in crate::table) original: Tuple,
    /// Its packets, with the protocol and the destination that they leave with.
    pub(in crate::table) forward: Tuple,
    /// The reply tuple that it has in the table.
    pub(in crate::table) current: Option<Tuple>,
}

impl Wanted {
    const fn inside(&self) -> Inside {
        inside(&self.original, &self.forward)
    }

    /// The hash that the end outside has to have, for both directions to have one. With an end in each family, it is
    /// that of this destination; else of all.
    fn hash_of_source(&self) -> Hash {
        let Self { original, forward, .. } = self;
        let inside = Hash::of_end(original.source, original.source_port);
        match original.destination.is_v4() == forward.destination.is_v4() {
            true => inside,
            false => {
                inside.with(Hash::of_end(original.destination, 0)).with(Hash::of_end(forward.destination, 0))
            }
        }
    }
}

/// What was chosen.
pub(super) struct Chosen {
    /// The tuple of packets with it.
    pub(super) forward: Tuple,
    /// Ports of the block that it is of.
    pub(super) block_size: Option<u16>,
    pub(super) filtering: Filtering,
}

impl Connections {
    /// Chooses the source that stands for that of the original tuple.
    pub(super) fn choose_source(
        &self,
        wanted: &Wanted,
        pools: &[Pool],
        mappings: &Mappings,
    ) -> Result<Chosen, Refusal> {
        let (original, first) = (&wanted.original, pools.first().ok_or(Refusal::NoPort)?);
        same_family(first.first, wanted.forward.destination)?;
        let inside = wanted.inside();
        let (paired, mut blocks) = (paired(&self.stable, &inside), None);
        let (at, port) = match first.allocation {
            Allocation::Any => {
                let at = offer(pools, paired.into()).ok_or(Refusal::NoPort)?;
                (at, self.port_at(wanted, at, mappings))
            }
            Allocation::Deterministic { inside: net } => {
                let share = share_of(pools, net, original.source).ok_or(Refusal::NoPort)?;
                (share, self.port_at(wanted, share, mappings))
            }
            Allocation::Blocks { size, most } => {
                let size = block_size(size);
                let holder = Holder { wanted, inside, pools, paired, size, most: most.into(), mappings };
                let at = self.offer_to_holder(&holder).ok_or(Refusal::NoPort)?;
                blocks = Some(size);
                (at, self.port_in_blocks(&holder, at))
            }
        };
        let mut forward = Tuple { source: at.address, ..wanted.forward };
        if original.has_port() {
            forward = forward.with_source_port(port.ok_or(Refusal::NoPort)?);
        }
        Ok(Chosen { forward, block_size: blocks, filtering: first.filtering })
    }

    /// The port of a mapping: that which its end inside has already, or a free one.
    fn port_at(&self, wanted: &Wanted, at: Offer, mappings: &Mappings) -> Option<u16> {
        let known = mappings.port_of(&self.hasher, &wanted.inside(), at.address);
        known.or_else(|| self.free_port(wanted, at, mappings))
    }

    /// A free port: by which answers come to this worker, and else any, whose connections are exceptions. Of these the
    /// same port, or the first from one on which a keyed hash says: first those of the same parity (RFC 4787 REQ-4),
    /// then the others.
    fn free_port(&self, wanted: &Wanted, at: Offer, mappings: &Mappings) -> Option<u16> {
        let (inside, Offer { address, ports }) = (wanted.inside(), at);
        // A pool of one port leaves no choice: as with 1:1 NAT, somebody wants just this.
        let has_choice = ports.first() != ports.last();
        let is_free = |port: &u16| {
            let is_reserved = has_choice && self.reserved.has(address, inside.protocol, *port);
            !is_reserved && self.is_free(mappings, wanted, End { address, port: *port })
        };
        let hash = wanted.hash_of_source().value();
        let comes_here = |port: &u16| self.owners.have_one_owner(hash, Hash::of_end(address, *port).value());
        let own = Some(inside.end.port).filter(|own| ports.contains(*own) && is_free(own));
        if own.is_some_and(|own| comes_here(&own)) || !has_free_ports(inside.protocol) {
            return own;
        }
        let parities = [inside.end.port & 1, !inside.end.port & 1];
        let candidates = |n: usize| of_parity(ports, parities[n], start(&self.stable, &inside));
        let those_here = (0..2).flat_map(|n| candidates(n).filter(comes_here).take(MAX_ATTEMPTS / 2));
        let any = || (0..2).flat_map(|n| candidates(n).take(MAX_ATTEMPTS / 2)).find(is_free);
        let found = { those_here }.find(is_free).or(own);
        if self.owners.is_one() { found } else { found.or_else(any) }
    }

    /// Whether an end stands for no other one, and its packets for no other connection's.
    fn is_free(&self, mappings: &Mappings, wanted: &Wanted, end: End) -> bool {
        let forward = Tuple { source: end.address, ..wanted.forward };
        let reply = forward.with_source_port(end.port).reversed();
        mappings.is_free_for(&self.hasher, &wanted.inside(), end)
            && (wanted.current == Some(reply) || !self.has(&reply))
    }

    /// The address at which an address inside has blocks, or else one that has a free block.
    fn offer_to_holder(&self, holder: &Holder<'_>) -> Option<Offer> {
        let blocks = &holder.mappings.blocks;
        let count = u64::try_from(count(holder.pools)).unwrap_or(u64::MAX);
        let number = |n: u64| u128::from(holder.paired % count.max(1)) + u128::from(n);
        let offers = (0..count.min(MAX_ADDRESSES)).filter_map(|n| offer(holder.pools, number(n)));
        let has_block =
            |at: &Offer| blocks.held(&self.hasher, &holder.inside, &holder.place(at)).next().is_some();
        let has_vacant = |at: &Offer| self.vacant(blocks, holder, at).next().is_some();
        offers.clone().find(has_block).or_else(|| offers.clone().find(has_vacant))
    }

    /// The ports of blocks at an address of a pool that nobody has, but for those of which all lead to services.
    fn vacant<'a>(
        &'a self,
        blocks: &'a Blocks,
        holder: &Holder<'_>,
        at: &Offer,
    ) -> impl Iterator<Item = PortRange> + use<'a> {
        let (address, protocol) = (at.address, holder.inside.protocol);
        let vacant = blocks.vacant(&self.hasher, holder.place(at), holder.among(at, &self.stable));
        vacant.filter(move |ports| !self.reserved.covers(&Offer { address, ports: *ports }, protocol))
    }

    /// A port of the blocks that an address inside has at this address, or of another one that nobody has.
    fn port_in_blocks(&self, holder: &Holder<'_>, at: Offer) -> Option<u16> {
        let mappings = holder.mappings;
        if let Some(port) = mappings.port_of(&self.hasher, &holder.inside, at.address) {
            return Some(port);
        }
        let (place, mut most) = (holder.place(&at), holder.most);
        for (ports, has_free) in mappings.blocks.held(&self.hasher, &holder.inside, &place) {
            most = most.saturating_sub(1);
            if has_free && let Some(port) = self.free_port(holder.wanted, Offer { ports, ..at }, mappings) {
                return Some(port);
            }
        }
        let ports = self.vacant(&mappings.blocks, holder, &at).next().filter(|_| most > 0)?;
        self.free_port(holder.wanted, Offer { ports, ..at }, mappings)
    }
}

/// An address inside that has blocks, or wants one.
struct Holder<'a> {
    wanted: &'a Wanted,
    inside: Inside,
    pools: &'a [Pool],
    paired: u64,
    size: u16,
    most: u32,
    mappings: &'a Mappings,
}

impl Holder<'_> {
    fn place(&self, at: &Offer) -> Place {
        Place::of(at.address, self.inside.zone, 0, self.size)
    }

    /// Where it looks for a free block: in the same order for all its connections.
    fn among(&self, at: &Offer, hasher: &FlowHasher) -> Among {
        let end = End { port: 0, ..self.inside.end };
        let start = start(hasher, &Inside { end, protocol: IpProto(0), ..self.inside });
        Among { ports: at.ports, start }
    }
}

/// The ports of a parity, from a random one on.
fn of_parity(ports: PortRange, parity: u16, start: u32) -> impl Iterator<Item = u16> {
    let first = u32::from(ports.first()) + u32::from((ports.first() ^ parity) & 1);
    let count = (u32::from(ports.last()) + 2).saturating_sub(first) / 2;
    (0..count).map(move |n| (first + (start % count + n) % count * 2) as u16)
}

/// A number that is the same for all connections of an address.
fn paired(hasher: &FlowHasher, inside: &Inside) -> u64 {
    let [a, b] = inside.end.address.words();
    hasher.words([a, b, inside.zone.0.into(), 3, 0])
}

/// Where a search begins, which nobody guesses without the key (RFC 6056).
fn start(hasher: &FlowHasher, inside: &Inside) -> u32 {
    let [a, b] = inside.end.address.words();
    let rest =
        u64::from(inside.end.port) | u64::from(inside.protocol.0) << 16 | u64::from(inside.zone.0) << 24;
    (hasher.words([a, b, rest, 2, 0]) >> 32) as u32
}
