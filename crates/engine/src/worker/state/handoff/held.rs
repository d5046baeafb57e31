// SPDX-License-Identifier: Apache-2.0
//! Packets for a port whose queue is moving to another worker.

use std::collections::VecDeque;

use dpdk::{Batch, Mbuf};

use super::{HandoffPacket, SLOTS, WAIT_ABOVE};
use crate::ids::PortId;

/// They leave when it has arrived, in their order. As many as a ring to another worker holds.
#[derive(Debug)]
pub(crate) struct Held {
    port: PortId,
    packets: VecDeque<HandoffPacket>,
}

impl Held {
    /// Room for packets of a port.
    pub(crate) fn new(port: PortId) -> Box<Self> {
        Box::new(Self { port, packets: VecDeque::with_capacity(SLOTS) })
    }

    /// Whether it holds packets for this port.
    pub(crate) fn is_for(&self, port: PortId) -> bool {
        self.port == port
    }

    /// Whether sources that can wait should: only a part of the room is left.
    pub(crate) fn is_filling(&self) -> bool {
        self.packets.len() > WAIT_ABOVE
    }

    /// Takes as many packets as there is room for; the others stay in the batch.
    pub(crate) fn push(&mut self, batch: &mut Batch, packet: impl Fn(Mbuf) -> HandoffPacket) {
        let mut rest = batch.split_off(SLOTS.saturating_sub(self.packets.len()));
        self.packets.extend(batch.drain().map(packet));
        batch.append(&mut rest);
    }

    /// The next packet.
    pub(crate) fn pop(&mut self) -> Option<HandoffPacket> {
        self.packets.pop_front()
    }
}
