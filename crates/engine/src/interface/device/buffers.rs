// SPDX-License-Identifier: Apache-2.0
//! Buffers of received packets: large buffers for segments, and marks of pending offloads.

use dpdk::{Batch, MAX_HEADER_LENGTHS, Mbuf, Oversized, Unfinished};
use netvm_region::Geometry;
use netvm_vnet::{Header, Pending, Segments, pending};

use crate::memory::Memory;

/// Both MAC addresses.
const ADDRESSES: usize = 12;
/// Bytes of a packet's beginning that are checked against its virtio-net header.
const FRONT: usize = 256;

pub(crate) fn is_large(buffer: &Mbuf, geometry: &Geometry) -> bool {
    u32::from(buffer.buf_len()) > geometry.stride
}

/// Puts a large buffer before the other buffers of a place. Returns whether one was free.
pub(crate) fn begin_large(place: &mut Batch, memory: &Memory, headroom: u16) -> bool {
    let mut first = Batch::new();
    let is_free =
        memory.large.as_ref().is_some_and(|large| large.alloc_frames_into(&mut first, 1, headroom, 0) == 1);
    if is_free {
        first.append(place);
        std::mem::swap(place, &mut first);
    }
    is_free
}

/// The pending offloads of a packet with this virtio-net header. `None` if the header does not fit the packet.
pub(crate) fn pending_of(packet: &Mbuf, header: &Header) -> Option<Pending> {
    if *header == Header::default() {
        return Some(Pending::Nothing);
    }
    let mut front = [0u8; FRONT];
    let copied = packet.copy_to(&mut front);
    pending(header, &front[..copied], packet.pkt_len() as usize).ok()
}

/// Marks the pending offloads in the mbuf; does the work at once if an mbuf cannot express it. `None` if the request
/// does not fit the packet.
pub(crate) fn note(packet: &mut Mbuf, pending: Pending) -> Option<()> {
    match pending {
        Pending::Nothing => {}
        Pending::Segments(Segments { lengths: [l2, l3, l4], size, v6, udp, tunnel, .. }) => {
            let [most2, most3, most4] = MAX_HEADER_LENGTHS;
            if l2 > most2 || l3 > most3 || l4 > most4 {
                return None;
            }
            packet.set_oversized(Oversized { l2, l3, l4, size, v6, udp });
            packet.set_tunnel(tunnel);
        }
        Pending::Checksum { from, at } => {
            const L2: u16 = 14;
            let l3 = from - L2;
            match at - from {
                6 | 16 if l3 <= MAX_HEADER_LENGTHS[1] => {
                    packet.set_unfinished(Unfinished { l2: L2, l3, udp: at - from == 6 }, false);
                }
                _ => return packet.finish_checksum_at(from, at).then_some(()),
            }
        }
    }
    Some(())
}

/// Inserts a VLAN tag after the addresses. Returns whether there was room.
pub(crate) fn insert(packet: &mut Mbuf, tag: [u8; 4]) -> bool {
    let mut front = [0u8; ADDRESSES + 4];
    if packet.copy_to(&mut front[..ADDRESSES]) < ADDRESSES {
        return false;
    }
    front[ADDRESSES..].copy_from_slice(&tag);
    packet.replace_front(ADDRESSES as u16, &front).is_ok()
}
