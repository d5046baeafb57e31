// SPDX-License-Identifier: Apache-2.0
//! What programs and netvm share beside the flows, in one array:
//!
//! ```text
//!  bytes  0 .. 8   end of the lease, by CLOCK_MONOTONIC_COARSE
//!        64 + 64 slot .. 64: of the port of a slot
//!                  0 .. 4   epoch; 0: all its packets are misses
//!                  8 .. 56  mask of its keys, but for the part that is always whole
//!                 56 .. 64  MAC address of the container, and zeros; all ones: none
//!        64 + 64 ports + 8 slot .. 8: packets that the port of a slot could not give to its container
//! ```

use crate::key;

pub(crate) const LEASE: u32 = 0;
const FIRST_PORT: u32 = 64;
/// As a shift.
pub(crate) const PORT_BYTES_SHIFT: i32 = 6;
/// Of the mask within a port's part: byte `MACS` of the mask is here.
pub(crate) const MASK: usize = 8;

/// The MAC address is here.
pub(crate) const MAC: usize = 56;
/// Bytes of a count.
const COUNT_BYTES: u32 = 8;

/// Where the part of a port begins.
pub(crate) const fn port(slot: u32) -> u32 {
    FIRST_PORT + (slot << PORT_BYTES_SHIFT)
}

/// Where the count of what a port could not give to its container is, in a table of so many ports.
pub(crate) const fn undelivered(ports: u32, slot: u32) -> u32 {
    port(ports) + slot * COUNT_BYTES
}

/// Bytes of the array for so many ports.
pub(crate) const fn bytes(ports: u32) -> u32 {
    undelivered(ports, ports)
}

const _: () = assert!(MASK + key::BYTES - key::MACS <= MAC && MAC + 8 <= 1 << PORT_BYTES_SHIFT);
