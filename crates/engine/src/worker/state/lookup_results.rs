// SPDX-License-Identifier: Apache-2.0
//! The results of classification for each packet of a burst: a decision of the policy, and an [`Action`] if the
//! decision does not determine what happens to the packet.

use netvm_flow::Slot;
use netvm_model::SteerTo;
use netvm_wire::FlowKey;

use super::BURST;
use crate::ids::{ChainId, PortId, RoleId};

/// What happens to a packet, beyond its decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The decision determines it.
    AsDecided,
    /// L2 switching sends it out of this port.
    SwitchTo(PortId),
    /// L2 switching sends it to all ports of its VLAN.
    Flood,
    /// L2 switching drops it.
    Filter,
    /// L2 switching drops it: the ingress port is not a member of its VLAN.
    WrongVlan,
    /// An NF of its chain gave the verdict to drop the rest of its flow.
    DropFlow,
    /// NFs at these hops of its chain gave the verdict to skip them (bit mask).
    SkipHops(u16),
    /// An NF of its chain has steered its flow.
    Steer(Steering),
}

/// Where an NF at a hop of a chain has steered a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Steering {
    pub(crate) to: SteerTo,
    pub(crate) hop: u8,
}

/// An [`Action`] in 32 bits: 3 bits of kind above 29 bits of argument. For [`Action::SwitchTo`] the argument is a port
/// below an epoch, by which the flow cache knows whether the port still has the address. Actions without an epoch can
/// be compared as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedAction(u32);

const KIND_SHIFT: u32 = 29;
const PORT_BITS: u32 = 10;
const _: () = assert!(netvm_region::MAX_PORTS <= 1 << PORT_BITS);

const SWITCH_TO: u32 = 0;
const FLOOD: u32 = 1;
const FILTER: u32 = 2;
const WRONG_VLAN: u32 = 3;
const DROP_FLOW: u32 = 4;
const SKIP_HOPS: u32 = 5;
/// Below it, from the highest bit: 2 bits of what kind of destination, 8 bits of the hop, 16 bits of its number.
const STEER: u32 = 6;
const HOP_SHIFT: u32 = 16;
const DESTINATION_SHIFT: u32 = 24;

impl PackedAction {
    pub(crate) const AS_DECIDED: Self = Self(u32::MAX);
    /// The part of a counter that fits into an epoch.
    pub(crate) const EPOCH: u32 = u32::MAX >> (32 - (KIND_SHIFT - PORT_BITS));

    /// Packs an action, with epoch 0 where it has one.
    #[inline(always)]
    pub(crate) const fn new(action: Action) -> Self {
        Self(match action {
            Action::AsDecided => return Self::AS_DECIDED,
            Action::SwitchTo(port) => SWITCH_TO << KIND_SHIFT | port.0 as u32,
            Action::Flood => FLOOD << KIND_SHIFT,
            Action::Filter => FILTER << KIND_SHIFT,
            Action::WrongVlan => WRONG_VLAN << KIND_SHIFT,
            Action::DropFlow => DROP_FLOW << KIND_SHIFT,
            Action::SkipHops(hops) => SKIP_HOPS << KIND_SHIFT | hops as u32,
            Action::Steer(Steering { to, hop }) => {
                let (kind, number) = match to {
                    SteerTo::Chain(chain) => (0, chain.0),
                    SteerTo::Role(role) => (1, role.0),
                    SteerTo::Port(port) => (2, port.0),
                };
                STEER << KIND_SHIFT | kind << DESTINATION_SHIFT | (hop as u32) << HOP_SHIFT | number as u32
            }
        })
    }

    /// [`Action::SwitchTo`], found in this epoch of the port.
    #[inline(always)]
    pub(crate) const fn switch_to(port: PortId, epoch: u32) -> Self {
        Self(SWITCH_TO << KIND_SHIFT | (epoch & Self::EPOCH) << PORT_BITS | port.0 as u32)
    }

    #[inline(always)]
    pub(crate) const fn unpack(self) -> Action {
        match self.0 >> KIND_SHIFT {
            SWITCH_TO => Action::SwitchTo(self.port_bits()),
            FLOOD => Action::Flood,
            FILTER => Action::Filter,
            WRONG_VLAN => Action::WrongVlan,
            DROP_FLOW => Action::DropFlow,
            SKIP_HOPS => Action::SkipHops(self.0 as u16),
            STEER => {
                let number = self.0 as u16;
                let to = match self.0 >> DESTINATION_SHIFT & 3 {
                    0 => SteerTo::Chain(ChainId(number)),
                    1 => SteerTo::Role(RoleId(number)),
                    _ => SteerTo::Port(PortId(number)),
                };
                Action::Steer(Steering { to, hop: (self.0 >> HOP_SHIFT) as u8 })
            }
            _ => Action::AsDecided,
        }
    }

    /// The port and the epoch of [`Action::SwitchTo`].
    #[inline(always)]
    pub(crate) const fn switched(self) -> Option<(PortId, u32)> {
        if self.0 >> KIND_SHIFT == SWITCH_TO { Some((self.port_bits(), self.0 >> PORT_BITS)) } else { None }
    }

    #[inline(always)]
    const fn port_bits(self) -> PortId {
        PortId((self.0 & ((1 << PORT_BITS) - 1)) as u16)
    }

    /// The same action without its epoch, for comparisons.
    #[inline(always)]
    pub(crate) const fn without_epoch(self) -> Self {
        if self.0 >> KIND_SHIFT == SWITCH_TO { Self(self.0 & ((1 << PORT_BITS) - 1)) } else { self }
    }

    /// As the flow cache keeps it.
    #[inline(always)]
    pub(crate) const fn to_cached(self) -> u32 {
        self.0
    }

    /// From the flow cache.
    #[inline(always)]
    pub(crate) const fn from_cached(cached: u32) -> Self {
        Self(cached)
    }
}

/// What happens to a packet. Packets of a burst with the same value are handled together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PacketAction {
    /// Number of the decision.
    pub(crate) decision: u32,
    /// Without epoch.
    pub(crate) action: PackedAction,
}

/// Packets that are handled together.
#[derive(Clone, Copy)]
pub(crate) struct PacketGroup {
    pub(crate) action: PacketAction,
    /// Bytes of all of them.
    pub(crate) bytes: u64,
}

/// The results for a burst, by packet.
pub(crate) struct LookupResults {
    pub(crate) keys: [FlowKey; BURST],
    pub(crate) lengths: [u32; BURST],
    /// The first 16 bytes as a number, if the prefilter tested the burst.
    pub(crate) headers: [u128; BURST],
    /// IPv4 source addresses, if the prefilter tested a burst of a guarded port.
    pub(crate) sources: [[u8; 4]; BURST],
    /// Number of the decision.
    pub(crate) decisions: [u32; BURST],
    /// The flow's slot in the flow cache.
    pub(crate) slots: [Slot; BURST],
    /// With its epoch until the L2 lookup, without it afterwards.
    pub(crate) actions: [PackedAction; BURST],
    /// Packets that are the first of their flow in this tick, one bit each.
    pub(crate) fresh: u64,
    /// Packets whose decisions their connections have stored, one bit each; 0 but for the L2 lookup of these.
    pub(crate) stored: u64,
}

impl LookupResults {
    pub(crate) fn new() -> Self {
        Self {
            keys: [FlowKey::EMPTY; BURST],
            lengths: [0; BURST],
            headers: [0; BURST],
            sources: [[0; 4]; BURST],
            decisions: [0; BURST],
            slots: [Slot::default(); BURST],
            actions: [PackedAction::AS_DECIDED; BURST],
            fresh: 0,
            stored: 0,
        }
    }

    /// Exchanges all that is known of two packets and their flows, but for `fresh` and `stored`.
    #[inline(always)]
    pub(crate) fn swap(&mut self, one: usize, other: usize) {
        self.keys.swap(one, other);
        self.lengths.swap(one, other);
        self.decisions.swap(one, other);
        self.slots.swap(one, other);
        self.actions.swap(one, other);
    }

    /// Bytes of the first `count` packets.
    #[inline(always)]
    pub(crate) fn bytes(&self, count: usize) -> u64 {
        self.lengths[..count].iter().map(|length| u64::from(*length)).sum()
    }

    #[inline(always)]
    pub(crate) fn action(&self, n: usize) -> PacketAction {
        PacketAction { decision: self.decisions[n], action: self.actions[n] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_survive_packing() {
        let actions = [
            Action::AsDecided,
            Action::SwitchTo(PortId(0)),
            Action::SwitchTo(PortId(1023)),
            Action::Flood,
            Action::Filter,
            Action::WrongVlan,
            Action::DropFlow,
            Action::SkipHops(1),
            Action::SkipHops(u16::MAX),
            Action::Steer(Steering { to: SteerTo::Chain(ChainId(255)), hop: 7 }),
            Action::Steer(Steering { to: SteerTo::Role(RoleId(u16::MAX)), hop: u8::MAX }),
            Action::Steer(Steering { to: SteerTo::Port(PortId(1023)), hop: 0 }),
        ];
        for action in actions {
            let packed = PackedAction::new(action);
            assert_eq!(packed.unpack(), action);
            assert_eq!(PackedAction::from_cached(packed.to_cached()).without_epoch(), packed);
        }
        let switched = PackedAction::switch_to(PortId(7), u32::MAX);
        assert_eq!(switched.switched(), Some((PortId(7), PackedAction::EPOCH)));
        assert_eq!(switched.unpack(), Action::SwitchTo(PortId(7)));
        assert_eq!(switched.without_epoch(), PackedAction::new(Action::SwitchTo(PortId(7))));
    }
}
