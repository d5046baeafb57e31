// SPDX-License-Identifier: Apache-2.0
//! L2 switching. In: packets with the result of the L2 lookup. Out: to one port, or to each port of the VLAN, with the
//! tag that the port expects. An interface of the bridge itself receives them.
//!
//! With snooping, packets to a group go to its members ([`multicast`]).
//!
//! Cost: two comparisons per burst without VLANs. With VLANs, the tag of each packet is read again. Flooding copies a
//! packet for each port except the last.

pub(crate) mod multicast;

use dpdk::Mbuf;
use netvm_switch::snoop::SetNumber;
use netvm_switch::{FloodOf, StormClass, TagChange};
use netvm_wire::{EtherType, MacAddr};

use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::policy::Switching;
use crate::snapshot::Snapshot;
use crate::worker::classify::l2_lookup::{Learning, tag_of};
use crate::worker::next::{Dispatch, Flooding, Next, Step};
use crate::worker::packet::keys::ethernet_key_of;
use crate::worker::packet::retag::{Retag, retag};
use crate::worker::state::lookup_results::{Action, PackedAction};
use crate::worker::tx::copy::copies_for;

/// Looks packets up by their current headers, for those that have left a chain.
pub(crate) fn look_up(burst: &mut Dispatch<'_>, from: PortId) -> Step {
    let Dispatch { dp, cx, batch, split } = burst;
    let Some(switching) = &cx.snapshot.policy.switching else {
        return Step::All(Next::drop_at(from, DropReason::Filtered));
    };
    let mut last = None;
    for (next, mbuf) in split.nexts.iter_mut().zip(batch.as_slice()) {
        let Ok(key) = ethernet_key_of(mbuf) else {
            *next = Next::drop_at(from, DropReason::Malformed);
            continue;
        };
        let addresses = (key.source_mac, key.destination_mac, key.vlan);
        let action = match last {
            Some((before, action)) if before == addresses => action,
            _ => Learning::of(dp, switching).look_up(from, tag_of(&key), &key).without_epoch(),
        };
        last = Some((addresses, action));
        *next = Next::Bridge { from, action };
    }
    Step::Each
}

/// Sends packets by the result of the L2 lookup, unless they are to be flooded.
#[inline]
pub(crate) fn switch(switching: Option<&Switching>, from: PortId, action: PackedAction) -> Next {
    match (action.unpack(), switching) {
        (Action::SwitchTo(out), Some(switching)) if switching.is_vlan_aware => Next::Bridged { from, out },
        (Action::SwitchTo(out), Some(switching)) => delivered(switching, out),
        (Action::Flood, Some(_)) => Next::FloodEach { from },
        (Action::WrongVlan, _) => Next::drop_at(from, DropReason::WrongVlan),
        _ => Next::drop_at(from, DropReason::Filtered),
    }
}

/// Out of a port of the bridge, or into the interface of the bridge itself.
#[inline(always)]
pub(crate) fn delivered(switching: &Switching, out: PortId) -> Next {
    if switching.interfaces.contains(&out) { Next::Rx(out) } else { Next::Interface(out) }
}

/// Finds the VLAN of packets to flood, unless storm control drops them.
pub(crate) fn flood_each(burst: &mut Dispatch<'_>, from: PortId) -> Step {
    let Dispatch { dp, cx, batch, split } = burst;
    let Some(switching) = &cx.snapshot.policy.switching else {
        return Step::All(Next::drop_at(from, DropReason::Filtered));
    };
    for (next, mbuf) in split.nexts.iter_mut().zip(batch.as_slice()) {
        let mut destination = [0; 6];
        mbuf.copy_to(&mut destination);
        let class = StormClass::of(MacAddr(destination));
        *next = match vlan_of(switching, from, mbuf) {
            None => Next::drop_at(from, DropReason::WrongVlan),
            Some(_) if !dp.is_dry && !switching.storm.admit(from.0, class, dp.clock.tick) => {
                Next::drop_at(from, DropReason::StormControl)
            }
            Some(vlan) => {
                let all = Flooding { from, vlan, to: SetNumber::ALL, first: 0 };
                match &cx.snapshot.multicast {
                    Some(multicast) if class == StormClass::Multicast => {
                        multicast::destination(dp, multicast, all, mbuf)
                    }
                    _ => Next::Flood(all),
                }
            }
        };
    }
    Step::Each
}

/// Sends a copy to the next port of a VLAN, from the port with the number `first` on, or the packets themselves to the
/// last.
pub(crate) fn flood(burst: &mut Dispatch<'_>, flooding: Flooding) -> Step {
    let Dispatch { dp, cx, batch, split } = burst;
    let from = flooding.from;
    let Some(switching) = &cx.snapshot.policy.switching else {
        return Step::All(Next::drop_at(from, DropReason::Filtered));
    };
    let [out, other] = next_two(cx.snapshot, switching, flooding);
    let Some(out) = out else {
        let is_pruned = !flooding.to.is_all();
        let reason = if is_pruned { DropReason::NoListener } else { DropReason::Filtered };
        return Step::All(Next::drop_at(from, reason));
    };
    let bridged = |out| match switching.is_vlan_aware {
        true => Next::Bridged { from, out },
        false => delivered(switching, out),
    };
    let Some(other) = other else { return Step::All(bridged(out)) };
    split.copies = copies_for(dp, out, cx.memory, batch.as_slice());
    Step::Copies(bridged(out), Next::Flood(Flooding { first: other.0, ..flooding }))
}

/// The next port that packets go to, and the one after it.
#[inline]
pub(crate) fn next_two(
    snapshot: &Snapshot,
    switching: &Switching,
    flooding: Flooding,
) -> [Option<PortId>; 2] {
    let Flooding { from, vlan, to, first } = flooding;
    let bridge = &switching.bridge;
    match snapshot.multicast.as_ref().filter(|_| !to.is_all()) {
        None => two_of(bridge.flood_from(from.0, vlan, first)),
        Some(multicast) => {
            two_of(multicast.table.flood(to, bridge, FloodOf { ingress: from.0, vlan, first }))
        }
    }
}

#[inline]
fn two_of(mut ports: impl Iterator<Item = u16>) -> [Option<PortId>; 2] {
    [ports.next(), ports.next()].map(|port| port.map(PortId))
}

/// Gives packets from ingress port `from` the tag that `out` expects; `out` may not send the others.
#[cold]
pub(crate) fn tag(burst: &mut Dispatch<'_>, from: PortId, out: PortId) -> Step {
    let Dispatch { cx, batch, split, .. } = burst;
    let Some(switching) = &cx.snapshot.policy.switching else {
        return Step::All(Next::drop_at(from, DropReason::Filtered));
    };
    for (next, mbuf) in split.nexts.iter_mut().zip(batch.as_mut_slice()) {
        *next = match tag_for(switching, from, out, mbuf) {
            true => delivered(switching, out),
            false => Next::drop_at(out, DropReason::WrongVlan),
        };
    }
    Step::Each
}

/// The VLAN of a packet by its current tag.
pub(crate) fn vlan_of(switching: &Switching, from: PortId, mbuf: &Mbuf) -> Option<u16> {
    let key = ethernet_key_of(mbuf).ok()?;
    switching.bridge.ingress(from.0, tag_of(&key))?.ok()
}

/// Whether the first EtherType is a VLAN tag.
fn has_tag(mbuf: &Mbuf) -> bool {
    let mut front = [0u8; 14];
    let copied = mbuf.copy_to(&mut front);
    copied == front.len() && EtherType(u16::from_be_bytes([front[12], front[13]])).is_vlan()
}

/// Gives a packet the tag that a port expects. Returns whether this was possible.
fn tag_for(switching: &Switching, from: PortId, out: PortId, mbuf: &mut Mbuf) -> bool {
    let Ok(key) = ethernet_key_of(mbuf) else { return false };
    // A priority tag has no VLAN, but may still have to be changed or removed.
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
