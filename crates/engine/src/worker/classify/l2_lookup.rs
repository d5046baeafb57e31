// SPDX-License-Identifier: Apache-2.0
//! L2 lookup (IEEE 802.1Q clause 8): learns the source address, and looks up the port of the destination. In: packets
//! to switch. Out: an [`Action`] for each: a port, flood, filter or wrong VLAN.
//!
//! The flow cache stores the action. It is valid until an address moves away from the port, which changes the port's
//! epoch. Once a tick, the first packet of a flow refreshes its source in the FDB.
//!
//! Cost: a comparison for a flow in the cache; two lookups in the FDB for others.

use netvm_model::SetVlan;
use netvm_switch::{Forward, NotForwarded};
use netvm_wire::{FlowKey, VlanId};

use super::classifier::Classifier;
use super::scope::Scope;
use crate::ids::PortId;
use crate::policy::{Decision, Outcome, Switching};
use crate::worker::state::Datapath;
use crate::worker::state::lookup_results::{Action, LookupResults, PackedAction};

impl Switching {
    /// Finds the actions of the first `count` packets, as far as their decision is to switch them.
    #[inline]
    pub(crate) fn look_up(
        &self,
        cl: &mut Classifier<'_>,
        scope: &Scope<'_>,
        count: usize,
        results: &mut LookupResults,
    ) {
        let (policy, port) = (&scope.snapshot.policy, scope.side.port());
        let learning = Learning { switching: self, tick: cl.tick, is_dry: cl.is_dry };
        let mut last = None;
        for n in 0..count {
            let decision = policy.decision(results.decisions[n]);
            if scope.outcome(decision) != Outcome::Normal {
                continue;
            }
            let cached = results.actions[n];
            let is_current = |(out, since)| results.fresh >> n & 1 == 0 && since == epoch(self, out);
            if cached.switched().is_some_and(is_current) {
                results.actions[n] = cached.without_epoch();
                continue;
            }
            let tag = tag_after(decision, &results.keys[n]);
            let addresses = (results.keys[n].source_mac, results.keys[n].destination_mac, tag);
            let action = match last {
                // Flows of a burst are often between the same two hosts.
                Some((before, action)) if before == addresses => action,
                _ => learning.look_up(port, tag, &results.keys[n]),
            };
            last = Some((addresses, action));
            results.actions[n] = action.without_epoch();
            if results.stored >> n & 1 == 1 {
                cl.store_action(n, action);
                continue;
            }
            // Another flow of this burst may have taken the slot in the meantime.
            let entry = cl.flows.cache.entry(results.slots[n]);
            if entry.port() == port.0 && entry.key() == results.keys[n] {
                cl.flows.cache.set_extra(results.slots[n], action.to_cached());
            }
        }
    }
}

/// The switch that learns an address.
pub(crate) struct Learning<'a> {
    switching: &'a Switching,
    /// The time.
    tick: u32,
    /// It learns nothing: the packet is hypothetical.
    is_dry: bool,
}

impl<'a> Learning<'a> {
    pub(crate) const fn of(dp: &Datapath, switching: &'a Switching) -> Self {
        Self { switching, tick: dp.clock.tick, is_dry: dp.is_dry }
    }

    /// Learns the source of a packet from its ingress port and tag, and looks up its destination.
    pub(crate) fn look_up(&self, from: PortId, tag: Option<u16>, key: &FlowKey) -> PackedAction {
        let Self { switching, tick, is_dry } = *self;
        let Some(Ok(vlan)) = switching.bridge.ingress(from.0, tag) else {
            return PackedAction::new(Action::WrongVlan);
        };
        // The destination does not depend on whether the address could be learned.
        if !is_dry {
            let _ = switching.fdb.learn(vlan, key.source_mac, from.0, tick);
        }
        let known = switching.fdb.lookup(vlan, key.destination_mac, tick);
        match switching.bridge.forward(from.0, vlan, key.destination_mac, known) {
            Forward::Port(out) => PackedAction::switch_to(PortId(out), epoch(switching, PortId(out))),
            Forward::Flood => PackedAction::new(Action::Flood),
            Forward::Drop(NotForwarded::NotMember) => PackedAction::new(Action::WrongVlan),
            Forward::Drop(_) => PackedAction::new(Action::Filter),
        }
    }
}

/// The port's epoch: counts addresses that moved away, modulo the bits that the flow cache has for it.
#[inline(always)]
fn epoch(switching: &Switching, port: PortId) -> u32 {
    switching.fdb.port_generation(port.0) & PackedAction::EPOCH
}

/// The VLAN of a packet's outer tag.
pub(crate) fn tag_of(key: &FlowKey) -> Option<u16> {
    key.vlan.map(VlanId::get)
}

/// The tag of a packet after its decision has changed it, which is the one that L2 switching uses.
fn tag_after(decision: &Decision, key: &FlowKey) -> Option<u16> {
    let change = decision.extras.as_ref().and_then(|extras| extras.set_vlan.last());
    match change {
        None => tag_of(key),
        Some(SetVlan::Tag(vlan)) => Some(vlan.get()),
        Some(SetVlan::Strip) => key.inner_vlan.map(VlanId::get),
    }
}
