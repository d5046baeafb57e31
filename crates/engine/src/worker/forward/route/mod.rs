//! Through a virtual router: out by the route, to the kernel, or nowhere.
//!
//! ```text
//!  by a punt port ──▶ tag ──▶ out of the interface's port
//!  by any other ──▶ interface by port and VLAN ──▶ checked ──▶ looked up ──▶ rewritten ──▶ out of the next hop's port
//!                            │                        │            │
//!                            ├─ dropped ◀─────────────┴────────────┤
//!                            └─ tag off ──▶ quota ──▶ punt port ◀──┘
//! ```
//!
//! What the kernel can do better or must know of gets there whole: nothing is lost where the table is behind it. The routes
//! of a burst are looked up together, and what goes one way is sent together, in order.
//!
//! Predicted cost at 2.3 GHz in bursts of 32: the first line of each packet and its copy 12 cycles, checks 12, route and
//! next hop 15 where the table is in the cache, the header written back 15, sorting 5: about 60. Measured by `./dev bench route`
//! are 73 where nothing disturbs; the look-up in a full table is six of them.

mod head;
#[cfg(test)]
mod tests;

use dpdk::{Batch, Mbuf};
use netvm_config::model::{RouterId, SetVlan};
use netvm_router::{NextHop, NextHopId};
use netvm_wire::{FlowKey, Fragment};

use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::router::{Here, InterfacePath, RouterPath};
use crate::snapshot::Snapshot;
use crate::worker::act::vlan::{Retag, retag};
use crate::worker::classify::lookup::{MOST, key_of, prefetch};
use crate::worker::rx::dispatch::Origin;
use crate::worker::state::Path;
use head::ETHERNET;
pub(crate) use head::{Class, Head, V4, V6};

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It was rewritten, and leaves.
    Out(PortId),
    /// The kernel gets it, from the interface of that number, without the tag that it may have.
    Punt { interface: u16, tagged: bool },
    /// It is dropped.
    Drop(DropReason),
}

/// Packets of one family whose routes are to be looked up.
struct Family<A> {
    addresses: [A; MOST],
    found: [NextHopId; MOST],
    /// Bytes of the IP packet.
    lengths: [u32; MOST],
    /// Which of the burst.
    places: [u8; MOST],
    count: usize,
}

impl<A: Copy> Family<A> {
    const fn new(none: A) -> Self {
        Self {
            addresses: [none; MOST],
            found: [NextHopId::PUNT; MOST],
            lengths: [0; MOST],
            places: [0; MOST],
            count: 0,
        }
    }

    #[inline(always)]
    fn add(&mut self, place: usize, destination: A, length: u32) {
        let n = self.count;
        (self.addresses[n], self.lengths[n], self.places[n]) = (destination, length, place as u8);
        self.count += 1;
    }
}

/// What is known of a burst.
pub(crate) struct Routing {
    heads: [Head; MOST],
    fates: [Fate; MOST],
    v4: Family<u32>,
    v6: Family<u128>,
}

impl Routing {
    pub(crate) const fn new() -> Self {
        Self {
            heads: [Head::EMPTY; MOST],
            fates: [Fate::Drop(DropReason::NoRouterInterface); MOST],
            v4: Family::new(0),
            v6: Family::new(0),
        }
    }
}

impl Path {
    /// Packets go to a virtual router; the batch is empty afterwards.
    pub(crate) fn route(&mut self, snapshot: &Snapshot, router: RouterId, from: Origin, batch: &mut Batch) {
        let Some(router) = snapshot.router(router) else {
            return self.drop_at_port(from.port, DropReason::NoRouterInterface, batch);
        };
        let here = router.on(from.port);
        if here.is_empty() {
            return match router.punted_by(from.port) {
                Some(interface) => self.send_for_kernel(snapshot, router, interface, from, batch),
                None => self.drop_at_port(from.port, DropReason::NoRouterInterface, batch),
            };
        }
        // It is there unless a router sends to a router, which none does.
        let mut routing = self.routing.take().unwrap_or_else(|| Box::new(Routing::new()));
        routing.decide(router, here, batch);
        self.send_routed(snapshot, router, from, &routing.fates, batch);
        self.routing = Some(routing);
    }

    /// Packets of the kernel's leave by the port of their interface, with its tag.
    fn send_for_kernel(
        &mut self,
        snapshot: &Snapshot,
        router: &RouterPath,
        interface: &InterfacePath,
        from: Origin,
        batch: &mut Batch,
    ) {
        if let Some(vlan) = interface.vlan {
            let (mut good, mut bad) = (Batch::new(), Batch::new());
            for mut mbuf in batch.drain() {
                let pushed = retag(&mut mbuf, Retag::Push(vlan));
                let _ = if pushed { good.push(mbuf) } else { bad.push(mbuf) };
            }
            if !bad.is_empty() {
                self.drop_at_port(from.port, DropReason::TooLong, &mut bad);
            }
            batch.append(&mut good);
        }
        if let Some(counters) = self.counters.routers.get(router.id.index()) {
            counters.from_kernel.add(batch.len() as u64);
        }
        self.send_out(snapshot, interface.port, from.memory, batch);
    }

    /// Sends packets on, those with one fate together; the batch is empty afterwards.
    fn send_routed(
        &mut self,
        snapshot: &Snapshot,
        router: &RouterPath,
        from: Origin,
        fates: &[Fate; MOST],
        batch: &mut Batch,
    ) {
        let count = batch.len();
        if fates[..count].iter().all(|fate| *fate == fates[0]) {
            return self.send_alike(snapshot, router, from, fates[0], batch);
        }
        let mut places = [0u8; MOST];
        for (n, place) in (0u8..).zip(&mut places) {
            *place = n;
        }
        while !batch.is_empty() {
            let chosen = fates[usize::from(places[0])];
            let (mut alike, mut others) = (Batch::new(), Batch::new());
            for (n, mbuf) in batch.drain().enumerate() {
                // Each is as large as the batch that they come from: there is room.
                if fates[usize::from(places[n])] == chosen {
                    let _ = alike.push(mbuf);
                } else {
                    places[others.len()] = places[n];
                    let _ = others.push(mbuf);
                }
            }
            self.send_alike(snapshot, router, from, chosen, &mut alike);
            batch.append(&mut others);
        }
    }

    #[inline]
    fn send_alike(
        &mut self,
        snapshot: &Snapshot,
        router: &RouterPath,
        from: Origin,
        fate: Fate,
        batch: &mut Batch,
    ) {
        match fate {
            Fate::Out(port) => {
                if let Some(counters) = self.counters.routers.get(router.id.index()) {
                    counters.forwarded.add(batch.len() as u64);
                }
                self.send_out(snapshot, port, from.memory, batch);
            }
            Fate::Punt { interface, tagged } => match router.interface(interface) {
                Some(interface) => self.punt(snapshot, router, interface, tagged, from, batch),
                None => self.drop_at_port(from.port, DropReason::NoRouterInterface, batch),
            },
            Fate::Drop(reason) => self.drop_at_port(from.port, reason, batch),
        }
    }

    /// Gives packets to the kernel, as many as it is to get.
    #[cold]
    fn punt(
        &mut self,
        snapshot: &Snapshot,
        router: &RouterPath,
        interface: &InterfacePath,
        tagged: bool,
        from: Origin,
        batch: &mut Batch,
    ) {
        self.limit(&interface.quota, from.port, DropReason::PuntQuota, batch);
        if tagged {
            self.set_vlan(SetVlan::Strip, from.port, batch);
        }
        if let Some(counters) = self.counters.routers.get(router.id.index()) {
            counters.punted.add(batch.len() as u64);
        }
        self.send_out(snapshot, interface.punt, from.memory, batch);
    }
}

impl Routing {
    /// Finds the fate of every packet of a burst that came in where these interfaces are, and rewrites those that are
    /// forwarded.
    #[inline]
    fn decide(&mut self, router: &RouterPath, here: Here<'_>, batch: &mut Batch) {
        let Self { heads, fates, v4, v6 } = self;
        for mbuf in batch.as_slice() {
            prefetch(mbuf.data());
        }
        (v4.count, v6.count) = (0, 0);
        for (n, mbuf) in batch.as_slice().iter().enumerate().take(MOST) {
            let head = &mut heads[n];
            head.read(mbuf);
            match head.classify(router, here, mbuf.pkt_len()) {
                Class::V4 { destination, length } => v4.add(n, destination, length),
                Class::V6 { destination, length } => v6.add(n, destination, length),
                Class::Punt => fates[n] = punted(head),
                Class::Drop(reason) => fates[n] = Fate::Drop(reason),
            }
        }
        let tables = &*router.tables;
        tables.lookup_v4(&v4.addresses[..v4.count], &mut v4.found[..v4.count]);
        tables.lookup_v6(&v6.addresses[..v6.count], &mut v6.found[..v6.count]);
        v4.follow(router, V4, heads, fates, batch);
        v6.follow(router, V6, heads, fates, batch);
    }
}

impl<A> Family<A> {
    /// Does what the next hops say.
    #[inline(always)]
    fn follow(
        &self,
        router: &RouterPath,
        header: usize,
        heads: &mut [Head; MOST],
        fates: &mut [Fate; MOST],
        batch: &mut Batch,
    ) {
        let packets = batch.as_mut_slice();
        for n in 0..self.count {
            let place = usize::from(self.places[n]);
            let Some(mbuf) = packets.get_mut(place) else { continue };
            let next_hop = router.tables.next_hop(self.found[n]);
            fates[place] = follow(router, next_hop, self.lengths[n], header, &mut heads[place], mbuf);
        }
    }
}

const fn punted(head: &Head) -> Fate {
    Fate::Punt { interface: head.interface(), tagged: head.is_tagged() }
}

/// Rewrites a packet whose IP packet has `length` bytes, with a header of `header`, for its next hop.
#[inline(always)]
fn follow(
    router: &RouterPath,
    next_hop: &NextHop,
    length: u32,
    header: usize,
    head: &mut Head,
    mbuf: &mut Mbuf,
) -> Fate {
    let hop = match next_hop {
        NextHop::Via(hop) => Some(hop),
        NextHop::Blackhole => return Fate::Drop(DropReason::Blackhole),
        NextHop::Ecmp(_) => next_hop.choose(flow_hash(key_of(mbuf).ok())),
        NextHop::Punt => None,
    };
    let out = hop.and_then(|hop| Some((router.interface(hop.interface)?, hop.mac)));
    let Some((out, to)) = out.filter(|(out, _)| length <= out.mtu || is_cut_to(out.mtu, mbuf)) else {
        return punted(head);
    };
    let old = head.old(header);
    let Some(new) = head.forward(out, to, header) else { return punted(head) };
    // Copies of a known length are a few instructions.
    let replaced = match (new.first_chunk::<{ ETHERNET + V4 }>(), new.first_chunk::<{ ETHERNET + V6 }>()) {
        (Some(short), _) if new.len() == short.len() => mbuf.replace_front(old, short),
        (_, Some(long)) if new.len() == long.len() => mbuf.replace_front(old, long),
        _ => mbuf.replace_front(old, new),
    };
    match replaced {
        Ok(()) => Fate::Out(out.port),
        Err(_) => Fate::Drop(DropReason::TooLong),
    }
}

/// Whether it is a segment of a guest's that is still to be cut, into packets no longer than that.
#[cold]
fn is_cut_to(mtu: u32, mbuf: &Mbuf) -> bool {
    mbuf.oversized().is_some_and(|cut| {
        let headers = (cut.headers() as u32).saturating_sub(cut.l2.into());
        headers + u32::from(cut.size) <= mtu
    })
}

/// The hash by which a flow keeps to one of several hops. Fragments have no ports beyond the first: all of them go by
/// addresses and protocol.
pub(crate) fn flow_hash(key: Option<FlowKey>) -> u32 {
    let tuple = key.and_then(|key| {
        let mut tuple = key.five_tuple()?;
        if key.fragment != Fragment::Whole {
            (tuple.source_port, tuple.destination_port) = (0, 0);
        }
        Some(tuple)
    });
    tuple.map_or(0, |tuple| (tuple.plain_hash() >> 32) as u32)
}
