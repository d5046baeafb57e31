// SPDX-License-Identifier: Apache-2.0
//! Packets that wait for programs with ports that are starting, in the order of their arrival. Bounded for each role
//! and for the worker, in memory that is allocated once.

use std::collections::VecDeque;

use dpdk::Mbuf;
use netvm_model::MAX_ROLES;

use crate::ids::{ChainId, MemoryId, PortId, RoleId};

/// Packets of a worker that wait for programs of a role.
pub(crate) const MAX_OF_ROLE: u16 = 512;
/// Packets of a worker that wait for programs.
const MAX_WAITING: usize = 4 * MAX_OF_ROLE as usize;

/// A packet that waits.
pub(crate) struct Waiting {
    pub(crate) mbuf: Mbuf,
    pub(crate) role: RoleId,
    pub(crate) to: WaitsAt,
}

/// Where it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitsAt {
    pub(crate) chain: ChainId,
    /// The hop; `None`: the entry of the chain.
    pub(crate) hop: Option<u8>,
    /// The port by which it enters the chain; `None` if it has entered it before.
    pub(crate) from: Option<PortId>,
    pub(crate) memory: MemoryId,
}

/// The packets of one worker that wait.
pub(crate) struct StartQueue {
    packets: VecDeque<Waiting>,
    /// How many, by role.
    of_role: Box<[u16; MAX_ROLES]>,
}

impl StartQueue {
    pub(crate) fn new() -> Self {
        Self { packets: VecDeque::with_capacity(MAX_WAITING), of_role: Box::new([0; MAX_ROLES]) }
    }

    /// The number of packets.
    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Packets of a role for which there is room.
    pub(crate) fn room(&self, role: RoleId) -> usize {
        let own = self.of_role.get(role.index()).map_or(0, |count| MAX_OF_ROLE - *count);
        usize::from(own).min(MAX_WAITING - self.packets.len())
    }

    /// As if so many packets waited already.
    #[cfg(test)]
    pub(crate) fn take_room(&mut self, role: RoleId, count: u16) {
        self.of_role[role.index()] += count;
    }

    /// Adds a packet, for which there is room.
    pub(crate) fn push(&mut self, packet: Waiting) {
        if let Some(count) = self.of_role.get_mut(packet.role.index()) {
            *count += 1;
        }
        self.packets.push_back(packet);
    }

    /// Takes the first packet.
    pub(crate) fn pop(&mut self) -> Option<Waiting> {
        let packet = self.packets.pop_front()?;
        if let Some(count) = self.of_role.get_mut(packet.role.index()) {
            *count -= 1;
        }
        Some(packet)
    }
}
