//! L2 switching (IEEE 802.1Q clause 8): learn the source, look up the destination, send to one port or to many.
//!
//! Where a flow's packets go is remembered with the flow, and holds until an address of that port goes away; once a tick
//! the first packet of a flow tells the forwarding database that its source is still there.

use arrayvec::ArrayVec;
use dpdk::{Batch, Mbuf};
use netvm_config::model::SetVlan;
use netvm_switch::{Forward, NotForwarded, TagChange};
use netvm_wire::{EtherType, FlowKey, VlanId};

use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::policy::{Decision, IngressPolicy, Outcome, Policy, Switching};
use crate::snapshot::Snapshot;
use crate::worker::act::vlan::{Retag, retag};
use crate::worker::chain::deliver::runs;
use crate::worker::classify::l2_fast_path::ethernet_key_of;
use crate::worker::classify::lookup::{Found, MOST, UNRESOLVED, key_of};
use crate::worker::rx::dispatch::Origin;
use crate::worker::state::Path;

/// Bits of a flow's further number that say where its packets go; the others say how often addresses had gone away from
/// there when that was found out.
const PLACE_BITS: u32 = 9;
const PLACE: u32 = (1 << PLACE_BITS) - 1;

/// Where switching sends a packet: a port below 256, or one of what is named here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resolved(u32);

impl Resolved {
    /// Not switched, or not known yet.
    pub(crate) const NONE: Self = Self(UNRESOLVED & PLACE);
    const FLOOD: Self = Self(1 << 8);
    const FILTERED: Self = Self((1 << 8) + 1);
    const WRONG_VLAN: Self = Self((1 << 8) + 2);
    /// From here on: packets of a chain, of whose flows NFs have said something.
    const TOLD: u32 = (1 << 8) + 3;

    #[inline(always)]
    pub(crate) const fn of(extra: u32) -> Self {
        Self(extra & PLACE)
    }

    /// What NFs have said comes to the effect with this number, one of a burst's.
    pub(crate) const fn told(effect: u32) -> Self {
        Self(Self::TOLD + effect)
    }

    /// The number of the effect, where NFs have said something.
    #[inline(always)]
    pub(crate) const fn effect(self) -> Option<u32> {
        if self.0 >= Self::TOLD && self.0 != Self::NONE.0 { Some(self.0 - Self::TOLD) } else { None }
    }

    /// A flow's further number for this.
    pub(crate) const fn to_extra(self) -> u32 {
        self.0
    }

    #[inline(always)]
    const fn port(self) -> Option<PortId> {
        if self.0 < Self::FLOOD.0 { Some(PortId(self.0 as u16)) } else { None }
    }
}

impl Path {
    /// Finds out where those of a burst of `count` packets go that are to be switched.
    #[inline]
    pub(crate) fn switch(
        &mut self,
        policy: &Policy,
        ingress: &IngressPolicy,
        switching: &Switching,
        from: Origin,
        count: usize,
        found: &mut Found,
    ) {
        let mut last = None;
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
                let tag = tag_after(decision, &found.keys[n]);
                let addresses = (found.keys[n].source_mac, found.keys[n].destination_mac, tag);
                found.extras[n] = match last {
                    // Flows of one burst often are between the same two stations.
                    Some((before, extra)) if before == addresses => extra,
                    _ => self.resolve(switching, from.port, &found.keys[n], tag),
                };
                last = Some((addresses, found.extras[n]));
                // Another flow of this burst may have taken the place since.
                let entry = self.flows.cache.entry(found.slots[n]);
                if entry.port() == from.port.0 && entry.key() == found.keys[n] {
                    self.flows.cache.set_extra(found.slots[n], found.extras[n]);
                }
            }
        }
    }

    /// Learns from a packet, and looks up where it goes.
    fn resolve(&mut self, switching: &Switching, from: PortId, key: &FlowKey, tag: Option<u16>) -> u32 {
        let Some(Ok(vlan)) = switching.bridge.ingress(from.0, tag) else {
            return Resolved::WRONG_VLAN.0;
        };
        // Whether it is learnt or not makes no difference to where the packet goes.
        let _ = switching.fdb.learn(vlan, key.source_mac, from.0, self.tick);
        let known = switching.fdb.lookup(vlan, key.destination_mac, self.tick);
        match switching.bridge.forward(from.0, vlan, key.destination_mac, known) {
            Forward::Port(out) => u32::from(out) | since(switching, PortId(out)) << PLACE_BITS,
            Forward::Flood(_) => Resolved::FLOOD.0,
            Forward::Drop(NotForwarded::NotMember) => Resolved::WRONG_VLAN.0,
            Forward::Drop(_) => Resolved::FILTERED.0,
        }
    }

    /// Switches packets that have left a chain, as NFs left them; the batch is empty afterwards.
    pub(crate) fn switch_again(&mut self, snapshot: &Snapshot, from: Origin, batch: &mut Batch) {
        let Some(switching) = &snapshot.policy.switching else {
            return self.drop_at_port(from.port, DropReason::Filtered, batch);
        };
        let mut last = None;
        let mut place = |path: &mut Self, mbuf: &Mbuf| {
            let Ok(key) = ethernet_key_of(mbuf) else { return None };
            let addresses = (key.source_mac, key.destination_mac, key.vlan);
            match last {
                Some((before, resolved)) if before == addresses => Some(resolved),
                _ => {
                    let resolved = Resolved::of(path.resolve(switching, from.port, &key, tag_of(&key)));
                    last = Some((addresses, resolved));
                    Some(resolved)
                }
            }
        };
        let places: ArrayVec<_, MOST> = batch.as_slice().iter().map(|mbuf| place(self, mbuf)).collect();
        let mut places = places.into_iter();
        runs(
            batch,
            |_| places.next().flatten(),
            |resolved, run| match resolved {
                Some(resolved) => self.send_switched(snapshot, resolved, from, run),
                None => self.drop_at_port(from.port, DropReason::Malformed, run),
            },
        );
    }

    /// Sends packets where switching found that they go; the batch is empty afterwards.
    #[inline]
    pub(crate) fn send_switched(
        &mut self,
        snapshot: &Snapshot,
        resolved: Resolved,
        from: Origin,
        batch: &mut Batch,
    ) {
        match (resolved.port(), &snapshot.policy.switching) {
            (Some(out), Some(switching)) => {
                if switching.is_vlan_aware {
                    self.tag_all(switching, from, out, batch);
                }
                self.send_out(snapshot, out, from.memory, batch);
            }
            _ => self.send_otherwise(snapshot, resolved, from, batch),
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
            (Resolved::WRONG_VLAN, _) => self.drop_at_port(from.port, DropReason::WrongVlan, batch),
            _ => self.drop_at_port(from.port, DropReason::Filtered, batch),
        }
    }

    /// A copy to each port of the packet's VLAN, the packet itself to the last.
    fn flood(&mut self, snapshot: &Snapshot, switching: &Switching, from: Origin, packet: Mbuf) {
        let vlan = vlan_of(switching, from.port, &packet);
        let mut whole = Batch::new();
        let _ = whole.push(packet);
        let Some(vlan) = vlan else {
            return self.drop_at_port(from.port, DropReason::WrongVlan, &mut whole);
        };
        let mut ports = switching.bridge.flood(from.port.0, vlan).iter().map(PortId).peekable();
        while let Some(out) = ports.next() {
            let mut one = Batch::new();
            if ports.peek().is_none() {
                one.append(&mut whole);
            } else if self.copies_of(from.memory, whole.as_slice(), &mut one) > 0 {
                self.counters.ports[out.index()].drops.add(DropReason::NoBuffer, 1);
            }
            if switching.is_vlan_aware {
                self.tag_all(switching, from, out, &mut one);
            }
            self.send_out(snapshot, out, from.memory, &mut one);
        }
        if !whole.is_empty() {
            self.drop_at_port(from.port, DropReason::Filtered, &mut whole);
        }
    }

    /// Gives packets the tag that the port wants; those that it may not have are dropped.
    #[cold]
    fn tag_all(&mut self, switching: &Switching, from: Origin, out: PortId, batch: &mut Batch) {
        let (mut good, mut bad) = (Batch::new(), Batch::new());
        for mut mbuf in batch.drain() {
            let tagged = tag_for(switching, from.port, out, &mut mbuf);
            let _ = if tagged { good.push(mbuf) } else { bad.push(mbuf) };
        }
        if !bad.is_empty() {
            self.drop_at_port(out, DropReason::WrongVlan, &mut bad);
        }
        batch.append(&mut good);
    }
}

/// How often addresses have gone away from a port, as far as a flow remembers it.
#[inline(always)]
fn since(switching: &Switching, port: PortId) -> u32 {
    switching.fdb.port_generation(port.0) & (u32::MAX >> PLACE_BITS)
}

fn tag_of(key: &FlowKey) -> Option<u16> {
    key.vlan.map(VlanId::get)
}

/// The tag that a packet has once its decision has changed it: that is what it is switched by.
fn tag_after(decision: &Decision, key: &FlowKey) -> Option<u16> {
    let change = decision.extras.as_ref().and_then(|extras| extras.set_vlan.last());
    match change {
        None => tag_of(key),
        Some(SetVlan::Tag(vlan)) => Some(vlan.get()),
        Some(SetVlan::Strip) => key.inner_vlan.map(VlanId::get),
    }
}

/// The VLAN of a packet as it is now.
fn vlan_of(switching: &Switching, from: PortId, mbuf: &Mbuf) -> Option<u16> {
    let key = key_of(mbuf).ok()?;
    switching.bridge.ingress(from.0, tag_of(&key))?.ok()
}

/// Whether the first EtherType is that of a tag.
fn has_tag(mbuf: &Mbuf) -> bool {
    let mut front = [0u8; 14];
    let copied = mbuf.copy_to(&mut front);
    copied == front.len() && EtherType(u16::from_be_bytes([front[12], front[13]])).is_vlan()
}

/// Gives a packet the tag that a port wants; whether it could be done.
fn tag_for(switching: &Switching, from: PortId, out: PortId, mbuf: &mut Mbuf) -> bool {
    let Ok(key) = key_of(mbuf) else { return false };
    // A tag that gives a priority only names no VLAN, and is there to be changed or taken off all the same.
    let tag = tag_of(&key).or_else(|| has_tag(mbuf).then_some(0));
    let Some(Ok(vlan)) = switching.bridge.ingress(from.0, tag) else { return false };
    let Some(tagging) = switching.bridge.egress(out.0, vlan) else { return false };
    match TagChange::new(tag, vlan, tagging) {
        TagChange::Keep => true,
        TagChange::Pop => retag(mbuf, Retag::Strip),
        TagChange::Set(vlan) => retag(mbuf, Retag::Set(vlan)),
        TagChange::Push(vlan) => retag(mbuf, Retag::Push(vlan)),
    }
}
