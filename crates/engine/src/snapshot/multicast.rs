// SPDX-License-Identifier: Apache-2.0
//! IGMP and MLD snooping as workers see it: the ports of groups, and what workers and the manager exchange.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use netvm_switch::snoop::{GroupTable, Inbox};

use super::ControlFrame;
use crate::ids::PortId;
use crate::port_bits::PortBits;

/// What workers have heard, for the manager, and frames of the manager's for ports. Workers never wait for a lock.
#[derive(Debug, Default)]
pub(crate) struct MulticastExchange {
    pub(crate) inbox: Inbox,
    to_send: Mutex<VecDeque<(PortId, ControlFrame)>>,
}

impl MulticastExchange {
    /// Adds frames to send, which a command then sends. Returns whether there are any.
    pub(crate) fn send(&self, frames: impl Iterator<Item = (PortId, ControlFrame)>) -> bool {
        let Ok(mut queue) = self.to_send.lock() else { return false };
        queue.extend(frames);
        !queue.is_empty()
    }

    pub(crate) fn next_to_send(&self) -> Option<(PortId, ControlFrame)> {
        self.to_send.try_lock().ok()?.pop_front()
    }
}

/// Snooping of the switch.
#[derive(Clone)]
pub(crate) struct Multicast {
    pub(crate) table: Arc<GroupTable>,
    pub(crate) exchange: Arc<MulticastExchange>,
    /// Ports behind which there are no routers, whatever they say.
    pub(crate) without_routers: PortBits,
}
