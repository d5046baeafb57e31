// SPDX-License-Identifier: Apache-2.0
//! The decisions of a virtual router for a burst. In: packets that one of its ports received. Out: a [`RouteVerdict`]
//! for each, and new headers of packets to forward.
//!
//! ```text
//!  interface by port and VLAN ──▶ checked ──▶ looked up ──▶ rewritten ──▶ out of the next hop's port
//!    │                               │            │
//!    ├─ dropped ◀────────────────────┴────────────┤
//!    └─ punted to the kernel ◀────────────────────┘
//! ```
//!
//! The router punts packets that the kernel can handle better or must see, unchanged, so an outdated table loses no
//! packet. The routes of a burst are looked up together. Of packets that leave by their ingress interface, the kernel
//! gets one per second for each destination, and sends a redirect.
//!
//! Bursts of ordinary IPv4 packets take `fast_path`. Cost of the general path: the first line of each packet and its
//! copy, checks, route and next hop, writing back the header, sorting.

mod count;
mod fast_path;
mod head;
mod punt;
#[cfg(test)]
pub(super) mod tests;
mod urpf;

use dpdk::{Batch, Mbuf};
use netvm_router::{Hop, NextHop, NextHopId};
use netvm_wire::{FlowKey, Fragment};

use super::packet::keys::{key_of, prefetch};
use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::memory::mark::connection_of;
use crate::router::{DestinationLimit, PortInterfaces, PuntClass, PuntReason, RouterPath};
pub(crate) use count::counters_of;
use fast_path::Headers;
use head::{Class, ETHERNET, Head, TAG, V4, V6};
pub(crate) use punt::{PuntCause, destination_hash, reason_of, source_hash};

/// Bytes of the headers of packets that leave.
const UNTAGGED_V4: usize = ETHERNET + V4;
const UNTAGGED_V6: usize = ETHERNET + V6;
const TAGGED_V4: usize = UNTAGGED_V4 + TAG;
const TAGGED_V6: usize = UNTAGGED_V6 + TAG;
/// Packets of a burst.
const MAX: usize = Batch::CAPACITY;

/// What happens to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RouteVerdict {
    /// It was rewritten, and leaves by this port, which the interface with this number uses.
    Out { port: PortId, interface: u16 },
    /// The kernel gets it from the interface with this number, without its tag.
    Punt { interface: u16, tagged: bool, cause: PuntCause },
    /// It is dropped.
    Drop(DropReason),
}

/// Decides which packets the kernel gets for a redirect.
pub(crate) struct Redirects<'a> {
    /// `None`: it gets none.
    pub(crate) limit: Option<&'a DestinationLimit>,
    /// The time in cycles.
    pub(crate) now: u64,
}

impl Redirects<'_> {
    /// Whether the kernel gets a packet that leaves by its ingress interface. Not if its share is used up, because the
    /// packet would be lost; nor if its connection is translated, because its sender could not do without the router.
    #[cold]
    fn take(&mut self, router: &RouterPath, interface: u16, mbuf: &Mbuf) -> bool {
        let (Some(interface), Some(limit)) = (router.interface(interface), self.limit) else { return false };
        if connection_of(mbuf).is_some() {
            return false;
        }
        limit.admit(self.now, destination_hash(router.id.0, mbuf))
            && interface.punts.of(PuntClass::Kernel).admit(self.now, mbuf.pkt_len())
    }
}

/// Packets of one family that need a route.
struct Family<A> {
    addresses: [A; MAX],
    found: [NextHopId; MAX],
    /// Bytes of the IP packet.
    lengths: [u32; MAX],
    /// Indexes in the burst.
    indexes: [u8; MAX],
    count: usize,
}

impl<A: Copy> Family<A> {
    const fn new(none: A) -> Self {
        Self {
            addresses: [none; MAX],
            found: [NextHopId::PUNT; MAX],
            lengths: [0; MAX],
            indexes: [0; MAX],
            count: 0,
        }
    }

    #[inline(always)]
    fn add(&mut self, index: usize, destination: A, length: u32) {
        let n = self.count;
        (self.addresses[n], self.lengths[n], self.indexes[n]) = (destination, length, index as u8);
        self.count += 1;
    }
}

/// The decisions for a burst, and scratch space.
pub(crate) struct RouterBurst {
    heads: [Head; MAX],
    pub(crate) verdicts: [RouteVerdict; MAX],
    v4: Family<u32>,
    v6: Family<[u8; 16]>,
    /// New headers of the packets of a burst on the fast path.
    headers: [Headers; MAX],
    /// Bytes of a burst to which the fast path gave one verdict, as they are now.
    bytes: Option<u64>,
    /// Bursts that will not try the fast path, and how many were not to after the last one that tried.
    skipped: u8,
    penalty: u8,
}

impl RouterBurst {
    pub(crate) const fn new() -> Self {
        Self {
            heads: [Head::EMPTY; MAX],
            verdicts: [RouteVerdict::Drop(DropReason::NoRouterInterface); MAX],
            v4: Family::new(0),
            v6: Family::new([0; 16]),
            headers: [Headers::EMPTY; MAX],
            bytes: None,
            skipped: 0,
            penalty: 0,
        }
    }

    /// Finds the verdict for every packet of a burst from the port of these interfaces, and rewrites packets to
    /// forward. Returns whether all have the same verdict, which then is the first one's.
    #[inline]
    pub(crate) fn decide(
        &mut self,
        router: &RouterPath,
        interfaces_here: PortInterfaces<'_>,
        redirects: &mut Redirects<'_>,
        batch: &mut Batch,
    ) -> bool {
        for mbuf in batch.as_slice() {
            prefetch(mbuf.data());
        }
        self.bytes = None;
        if let Some(is_uniform) = self.decide_fast(router, interfaces_here, batch) {
            return is_uniform;
        }
        let Self { heads, verdicts, v4, v6, .. } = self;
        (v4.count, v6.count) = (0, 0);
        // In a separate pass: a load that overlaps two recent stores waits until both are in the cache.
        for (head, mbuf) in heads.iter_mut().zip(batch.as_slice()) {
            head.read(mbuf);
        }
        for (n, (head, mbuf)) in heads.iter_mut().zip(batch.as_slice()).enumerate() {
            match head.classify(router, interfaces_here, mbuf.pkt_len()) {
                Class::V4 { destination, length } => v4.add(n, destination, length),
                Class::V6 { destination, length } => v6.add(n, destination, length),
                Class::Punt(reason) => verdicts[n] = punted(head, PuntCause::Headers(reason)),
                Class::Martian => verdicts[n] = urpf::forged(router, head, DropReason::Martian),
                Class::Drop(reason) => verdicts[n] = RouteVerdict::Drop(reason),
            }
        }
        let tables = &*router.tables;
        tables.lookup_v4(&v4.addresses[..v4.count], &mut v4.found[..v4.count]);
        tables.lookup_v6(&v6.addresses[..v6.count], &mut v6.found[..v6.count]);
        let [checks_v4, checks_v6] = router.checks_sources;
        if checks_v4 {
            v4.check_sources(router, heads, verdicts);
        }
        if checks_v6 {
            v6.check_sources(router, heads, verdicts);
        }
        let mut rewrite = Rewrite { router, redirects, heads, verdicts };
        v4.follow(V4, &mut rewrite, batch);
        v6.follow(V6, &mut rewrite, batch);
        is_uniform(&rewrite.verdicts[..batch.len()])
    }
}

/// Whether all verdicts are the same.
#[inline(always)]
fn is_uniform(verdicts: &[RouteVerdict]) -> bool {
    verdicts.iter().all(|verdict| *verdict == verdicts[0])
}

/// The headers of a burst to rewrite for their next hops, and the verdicts that come of it.
struct Rewrite<'a, 'r> {
    router: &'a RouterPath,
    redirects: &'a mut Redirects<'r>,
    heads: &'a mut [Head; MAX],
    verdicts: &'a mut [RouteVerdict; MAX],
}

impl<A> Family<A> {
    /// Fetches the interfaces of the next hops, which do not fit into the caches of a core together with the packets.
    fn prefetch_interfaces(&self, router: &RouterPath) {
        for id in &self.found[..self.count] {
            if let NextHop::Via(hop) = router.tables.next_hop(*id)
                && let Some(interface) = router.interface(hop.interface)
            {
                prefetch(std::ptr::from_ref(interface).cast());
            }
        }
    }

    /// Applies the next hops to packets with an IP header of `header` bytes.
    #[inline(always)]
    fn follow(&self, header: usize, rewrite: &mut Rewrite<'_, '_>, batch: &mut Batch) {
        let router = rewrite.router;
        let Rewrite { redirects, heads, verdicts, .. } = rewrite;
        if router.has_many_interfaces() {
            self.prefetch_interfaces(router);
        }
        let packets = batch.as_mut_slice();
        for n in 0..self.count {
            let index = usize::from(self.indexes[n]);
            let Some(mbuf) = packets.get_mut(index) else { continue };
            let next_hop = router.tables.next_hop(self.found[n]);
            let next = Next { router, next_hop, id: self.found[n], length: self.lengths[n], header };
            verdicts[index] = follow(next, redirects, &mut heads[index], mbuf);
        }
        // In a separate pass, as for reading: the changes to a header are in the cache before it is copied back.
        for n in 0..self.count {
            let index = usize::from(self.indexes[n]);
            let Some(mbuf) = packets.get_mut(index) else { continue };
            if let RouteVerdict::Out { .. } = verdicts[index]
                && !write_back(&heads[index], header, mbuf)
            {
                verdicts[index] = RouteVerdict::Drop(DropReason::TooLong);
            }
        }
    }
}

/// The next hop of an IP packet of `length` bytes, of which `header` bytes are the header.
#[derive(Clone, Copy)]
struct Next<'a> {
    router: &'a RouterPath,
    next_hop: &'a NextHop,
    id: NextHopId,
    length: u32,
    header: usize,
}

const fn punted(head: &Head, cause: PuntCause) -> RouteVerdict {
    RouteVerdict::Punt { interface: head.interface(), tagged: head.is_tagged(), cause }
}

/// Replaces the old header by the rewritten one; false if there is no room.
#[inline(always)]
fn write_back(head: &Head, header: usize, mbuf: &mut Mbuf) -> bool {
    let (old, new) = (head.old(header), head.rewritten(header));
    let replaced = if header == V4 {
        replace_front::<UNTAGGED_V4, TAGGED_V4>(mbuf, old, new)
    } else {
        replace_front::<UNTAGGED_V6, TAGGED_V6>(mbuf, old, new)
    };
    replaced.is_some()
}

/// Replaces the first `old` bytes by `PLAIN` or `TAGGED` ones. Copies of a known length are a few instructions.
#[inline(always)]
fn replace_front<const PLAIN: usize, const TAGGED: usize>(
    mbuf: &mut Mbuf,
    old: u16,
    new: &[u8],
) -> Option<()> {
    let replaced = if new.len() == PLAIN {
        mbuf.replace_front(old, new.first_chunk::<PLAIN>()?)
    } else {
        mbuf.replace_front(old, new.first_chunk::<TAGGED>()?)
    };
    replaced.ok()
}

/// Rewrites the copy of a packet's header for its next hop.
#[inline(always)]
fn follow(next: Next<'_>, redirects: &mut Redirects<'_>, head: &mut Head, mbuf: &mut Mbuf) -> RouteVerdict {
    let Next { router, next_hop, id, length, header } = next;
    let hop = match next_hop {
        NextHop::Via(hop) => Some(hop),
        other => match choose(other, id, head, mbuf) {
            Ok(hop) => hop,
            Err(verdict) => return verdict,
        },
    };
    let is_back = hop.is_some_and(|hop| hop.interface == head.interface());
    let out = hop.and_then(|hop| Some((router.interface(hop.interface)?, hop)));
    let Some((out, &Hop { interface, mac: to })) = out else {
        return punted(head, PuntCause::Of(PuntReason::KernelRoute));
    };
    let mtu = out.mtu(header == V4);
    if length > mtu && !is_cut_to(mtu, mbuf) {
        return punted(head, PuntCause::Of(PuntReason::ExceedsMtu));
    }
    if is_back && redirects.take(router, head.interface(), mbuf) {
        return punted(head, PuntCause::Of(PuntReason::Redirect));
    }
    if head.forward(out, to, header).is_none() {
        return punted(head, PuntCause::Of(PuntReason::Expired));
    }
    RouteVerdict::Out { port: out.port, interface }
}

/// Chooses the gateway of a packet's flow among several, or returns the verdict for a packet without a gateway. Not
/// inlined, so that a packet with a single gateway costs only a comparison.
#[inline(never)]
fn choose<'a>(
    next_hop: &'a NextHop,
    id: NextHopId,
    head: &Head,
    mbuf: &Mbuf,
) -> Result<Option<&'a Hop>, RouteVerdict> {
    match next_hop {
        NextHop::Via(hop) => Ok(Some(hop)),
        NextHop::Ecmp(_) => Ok(next_hop.choose(flow_hash(key_of(mbuf).ok()))),
        NextHop::Blackhole => Err(RouteVerdict::Drop(DropReason::Blackhole)),
        NextHop::Punt | NextHop::Glean(_) => Err(punted(head, PuntCause::of(next_hop, id))),
    }
}

/// Whether the packet is a segment that will be cut into packets no longer than `mtu`.
#[cold]
fn is_cut_to(mtu: u32, mbuf: &Mbuf) -> bool {
    mbuf.oversized().is_some_and(|cut| {
        // Of one in a tunnel, the outer IP packet.
        let l2 = mbuf.tunnel().unwrap_or(cut.l2);
        let headers = (cut.headers() as u32).saturating_sub(l2.into());
        headers + u32::from(cut.size) <= mtu
    })
}

/// The hash by which all packets of a flow take the same one of several next hops. Only the first fragment has ports,
/// so for fragments the hash covers addresses and protocol only.
fn flow_hash(key: Option<FlowKey>) -> u32 {
    let tuple = key.and_then(|key| {
        let mut tuple = key.five_tuple()?;
        if key.fragment != Fragment::Whole {
            (tuple.source_port, tuple.destination_port) = (0, 0);
        }
        Some(tuple)
    });
    tuple.map_or(0, |tuple| (tuple.plain_hash() >> 32) as u32)
}
