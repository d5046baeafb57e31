//! L2 switching (IEEE 802.1Q clause 8): learn the source, look up the destination, send to one port or to many.
//!
//! Where a flow's packets go is remembered with the flow, and holds until an address of that port goes away; once a tick
//! the first packet of a flow tells the forwarding database that its source is still there.

use dpdk::{Batch, Mbuf};
use netvm_wire::FlowKey;

use super::act::Origin;
use super::lookup::{Found, UNRESOLVED};
use super::path::Path;
use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::policy::{Forward, IngressPolicy, Outcome, Policy, Switching};
use crate::snapshot::Snapshot;

/// Bits of a flow's further number that say where its packets go; the others say how often addresses had gone away from
/// there when that was found out.
const PLACE_BITS: u32 = 9;
const PLACE: u32 = (1 << PLACE_BITS) - 1;

/// All ports are in one VLAN.
const VLAN: u16 = 0;

/// Where switching sends a packet: a port below 256, or one of what is named here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resolved(u32);

impl Resolved {
    /// Not switched, or not known yet.
    pub(crate) const NONE: Self = Self(UNRESOLVED & PLACE);
    const FLOOD: Self = Self(1 << 8);
    const FILTERED: Self = Self((1 << 8) + 1);

    #[inline(always)]
    pub(crate) const fn of(extra: u32) -> Self {
        Self(extra & PLACE)
    }

    const fn port(self) -> Option<PortId> {
        if self.0 < Self::FLOOD.0 { Some(PortId(self.0 as u16)) } else { None }
    }
}

impl Path {
    /// Finds out where the packets go that are to be switched.
    #[inline]
    pub(super) fn switch(
        &mut self,
        policy: &Policy,
        ingress: &IngressPolicy,
        switching: &Switching,
        from: Origin,
        count: usize,
        found: &mut Found,
    ) {
        for n in 0..count {
            let decision = policy.decision(found.decisions[n]);
            if decision.outcome.resolved(ingress.forward, ingress.undecided) != Outcome::Normal {
                continue;
            }
            let extra = found.extras[n];
            let known = Resolved::of(extra)
                .port()
                .filter(|port| found.fresh >> n & 1 == 0 && extra >> PLACE_BITS == since(switching, *port));
            if known.is_none() {
                found.extras[n] = self.resolve(switching, from.port, &found.keys[n]);
                self.flows.cache.set_extra(found.slots[n], found.extras[n]);
            }
        }
    }

    /// Learns from a packet, and looks up where it goes.
    fn resolve(&mut self, switching: &Switching, from: PortId, key: &FlowKey) -> u32 {
        let _ = switching.fdb.learn(VLAN, key.source_mac, from.0, self.tick);
        let known = switching.fdb.lookup(VLAN, key.destination_mac, self.tick);
        match switching.bridge.forward(from, key.destination_mac, known) {
            Forward::Port(out) => u32::from(out.0) | since(switching, out) << PLACE_BITS,
            Forward::Flood => Resolved::FLOOD.0,
            Forward::Filter => Resolved::FILTERED.0,
        }
    }

    /// Sends packets where switching found that they go; the batch is empty afterwards.
    #[inline]
    pub(super) fn send_switched(
        &mut self,
        snapshot: &Snapshot,
        resolved: Resolved,
        from: Origin,
        batch: &mut Batch,
    ) {
        match resolved.port() {
            Some(out) => self.send_out(snapshot, out, from.memory, batch),
            None => self.send_otherwise(snapshot, resolved, from, batch),
        }
    }

    #[cold]
    fn send_otherwise(&mut self, snapshot: &Snapshot, resolved: Resolved, from: Origin, batch: &mut Batch) {
        match (resolved, &snapshot.policy.switching) {
            (Resolved::FLOOD, Some(switching)) => {
                let mut all = core::mem::take(batch);
                for mbuf in all.drain() {
                    self.flood(snapshot, switching, from, mbuf);
                }
            }
            _ => self.drop_at_port(from.port, DropReason::Filtered, batch),
        }
    }

    /// A copy to each port, the packet itself to the last.
    fn flood(&mut self, snapshot: &Snapshot, switching: &Switching, from: Origin, packet: Mbuf) {
        let mut whole = Batch::new();
        let _ = whole.push(packet);
        let mut ports = switching.bridge.flood(from.port).peekable();
        while let Some(out) = ports.next() {
            let mut one = Batch::new();
            if ports.peek().is_none() {
                one.append(&mut whole);
            } else if self.copies_of(from.memory, whole.as_slice(), &mut one) > 0 {
                self.counters.ports[out.index()].drops.add(DropReason::NoCell, 1);
            }
            self.send_out(snapshot, out, from.memory, &mut one);
        }
        if !whole.is_empty() {
            self.drop_at_port(from.port, DropReason::Filtered, &mut whole);
        }
    }
}

/// How often addresses have gone away from a port, as far as a flow remembers it.
#[inline(always)]
fn since(switching: &Switching, port: PortId) -> u32 {
    switching.fdb.moves_from(port.0) & (u32::MAX >> PLACE_BITS)
}
