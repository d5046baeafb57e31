// SPDX-License-Identifier: Apache-2.0
//! Where a port is in the kernel.

/// The interfaces of a port in netvm's namespace.
#[derive(Clone, Copy, Debug)]
pub struct PortEnds {
    /// The number of the port in the table, below [`TableSize::ports`](crate::TableSize::ports).
    pub slot: u32,
    /// Index of netvm's end of the veth pair.
    pub veth: u32,
    /// Index of the TAP device.
    pub tap: u32,
}
