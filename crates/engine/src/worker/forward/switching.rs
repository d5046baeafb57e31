//! L2 switching. In: packets with the result of the L2 lookup. Out: to one port, or to each port of the VLAN, with the tag
//! that the port expects.
//!
//! Cost: one call per burst without VLANs. With VLANs, the tag of each packet is read again: 20 cycles (predicted). Flooding
//! copies a packet for each port except the last.

use arrayvec::ArrayVec;
use dpdk::{Batch, Mbuf};
use netvm_switch::{StormClass, TagChange};
use netvm_wire::{EtherType, MacAddr};

use super::egress::send_out;
use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::policy::Switching;
use crate::worker::act::vlan::retag_all;
use crate::worker::classify::l2_lookup::{learn_and_look_up, tag_of};
use crate::worker::packet::keys::ethernet_key_of;
use crate::worker::packet::retag::{Retag, retag};
use crate::worker::packet::runs::runs;
use crate::worker::state::burst::Origin;
use crate::worker::state::lookup_results::Action;
use crate::worker::state::{BURST, Datapath};
use crate::worker::tx::copy::copies_for;

/// Sends packets by the result of the L2 lookup; the batch is empty afterwards.
#[inline]
pub(crate) fn send(dp: &mut Datapath, origin: Origin<'_>, action: Action, batch: &mut Batch) {
    match (action, &origin.cx.snapshot.policy.switching) {
        (Action::SwitchTo(out), Some(switching)) => {
            if switching.is_vlan_aware {
                tag_all(dp, (switching, origin.port), out, batch);
            }
            send_out(dp, origin.cx, out, batch);
        }
        _ => send_otherwise(dp, origin, action, batch),
    }
}

#[cold]
fn send_otherwise(dp: &mut Datapath, origin: Origin<'_>, action: Action, batch: &mut Batch) {
    match (action, &origin.cx.snapshot.policy.switching) {
        (Action::Flood, Some(switching)) => {
            let mut all = core::mem::take(batch);
            for mbuf in all.drain() {
                flood(dp, switching, origin, mbuf);
            }
        }
        (Action::WrongVlan, _) => dp.drop_at_port(origin.port, DropReason::WrongVlan, batch),
        _ => dp.drop_at_port(origin.port, DropReason::Filtered, batch),
    }
}

/// Switches packets that have left a chain, by their current headers; the batch is empty afterwards.
pub(crate) fn look_up_and_send(dp: &mut Datapath, origin: Origin<'_>, batch: &mut Batch) {
    let Some(switching) = &origin.cx.snapshot.policy.switching else {
        return dp.drop_at_port(origin.port, DropReason::Filtered, batch);
    };
    let tick = dp.clock.tick;
    let mut last = None;
    let mut action_of = |mbuf: &Mbuf| {
        let Ok(key) = ethernet_key_of(mbuf) else { return None };
        let addresses = (key.source_mac, key.destination_mac, key.vlan);
        match last {
            Some((before, action)) if before == addresses => Some(action),
            _ => {
                let action = learn_and_look_up(switching, (origin.port, tag_of(&key)), &key, tick);
                last = Some((addresses, action.without_epoch()));
                Some(action.without_epoch())
            }
        }
    };
    let actions: ArrayVec<_, BURST> = batch.as_slice().iter().map(&mut action_of).collect();
    let mut actions = actions.into_iter();
    runs(
        batch,
        |_| actions.next().flatten(),
        |action, run| match action {
            Some(action) => send(dp, origin, action.unpack(), run),
            None => dp.drop_at_port(origin.port, DropReason::Malformed, run),
        },
    );
}

/// Sends a copy to each port of the packet's VLAN, and the packet itself to the last, unless storm control drops it.
fn flood(dp: &mut Datapath, switching: &Switching, origin: Origin<'_>, packet: Mbuf) {
    let vlan = vlan_of(switching, origin.port, &packet);
    let mut destination = [0; 6];
    packet.copy_to(&mut destination);
    let mut whole = Batch::new();
    let _ = whole.push(packet);
    let Some(vlan) = vlan else {
        return dp.drop_at_port(origin.port, DropReason::WrongVlan, &mut whole);
    };
    let class = StormClass::of(MacAddr(destination));
    if !switching.storm.admit(origin.port.0, class, dp.clock.tick) {
        return dp.drop_at_port(origin.port, DropReason::StormControl, &mut whole);
    }
    let mut ports = switching.bridge.flood(origin.port.0, vlan).map(PortId).peekable();
    while let Some(out) = ports.next() {
        let mut one = Batch::new();
        if ports.peek().is_none() {
            one.append(&mut whole);
        } else {
            one = copies_for(dp, out, origin.cx.memory, whole.as_slice());
        }
        if switching.is_vlan_aware {
            tag_all(dp, (switching, origin.port), out, &mut one);
        }
        send_out(dp, origin.cx, out, &mut one);
    }
    if !whole.is_empty() {
        dp.drop_at_port(origin.port, DropReason::Filtered, &mut whole);
    }
}

/// Gives packets from ingress port `from` the tag that `out` expects, and drops packets that `out` may not send.
#[cold]
fn tag_all(dp: &Datapath, (switching, from): (&Switching, PortId), out: PortId, batch: &mut Batch) {
    retag_all(dp, (out, DropReason::WrongVlan), batch, |mbuf| tag_for(switching, from, out, mbuf));
}

/// The VLAN of a packet by its current tag.
fn vlan_of(switching: &Switching, from: PortId, mbuf: &Mbuf) -> Option<u16> {
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
