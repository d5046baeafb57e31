// SPDX-License-Identifier: Apache-2.0
//! Newtypes for port, queue and NUMA node numbers.

netvm_ids::id! {
    /// A port as DPDK numbers it; reused after the port is closed.
    PortNumber(u16);
    /// A receive or transmit queue of a port.
    QueueId(u16);
    /// A NUMA node as Linux numbers it.
    NumaNode(u32);
}

impl NumaNode {
    /// Converts a number from DPDK or sysfs; a negative number means unknown.
    #[must_use]
    pub fn from_signed(number: i32) -> Option<Self> {
        u32::try_from(number).ok().map(Self)
    }

    /// The argument for DPDK's functions: -1 means any node.
    pub(crate) fn to_signed(node: Option<Self>) -> i32 {
        node.and_then(|node| i32::try_from(node.0).ok()).unwrap_or(-1)
    }
}
