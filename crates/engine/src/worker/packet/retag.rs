// SPDX-License-Identifier: Apache-2.0
//! Changes the outer VLAN tag of a packet: in a private copy of its front, which is then written back.

use dpdk::Mbuf;
use netvm_wire::{EtherType, VlanId, rewrite};

/// Bytes of a tag.
const TAG: u16 = 4;
/// Bytes at the front of a packet that a change moves: two MAC addresses, and two tags.
const FRONT: usize = 64;

/// How the front of a frame changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retag {
    /// Sets the VLAN of the outer tag; adds a tag if there is none.
    Set(VlanId),
    /// Adds a tag.
    Push(VlanId),
    /// Removes the outer tag, if there is one.
    Strip,
}

/// Changes the tag. Returns false if the packet has too little headroom; the packet is then unchanged.
pub(crate) fn retag(mbuf: &mut Mbuf, change: Retag) -> bool {
    // The front of the packet with room for a tag before it, changed in private and written back.
    let mut front = [0u8; TAG as usize + FRONT];
    let at = usize::from(TAG);
    let copied = mbuf.copy_to(&mut front[at..]);
    let buffer = &mut front[..at + copied];
    let moved = match change {
        Retag::Push(vlan) => rewrite::push_vlan(buffer, at, EtherType::VLAN, vlan),
        Retag::Set(vlan) => rewrite::set_vlan(buffer, at, vlan),
        Retag::Strip => rewrite::strip_vlan(buffer, at),
    };
    let Ok(start) = moved else { return false };
    mbuf.replace_front(copied as u16, &front[start..at + copied]).is_ok()
}
