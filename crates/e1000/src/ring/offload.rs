// SPDX-License-Identifier: Apache-2.0
//! Offloads that a guest requests from its card, as the engine carries it beside a packet.
//!
//! A driver that leaves a checksum to the card has put the pseudo header's sum into its field. Before a segment is cut,
//! it also leaves the IP header's length and checksum to the card, and its pseudo header has no length (SDM 3.3.6).
//! What goes on is a whole packet as other ports have it: with its own length, and a pseudo header's sum that includes
//! it.

use netvm_vnet::{Pending, Segments};
use netvm_wire::checksum::internet_checksum;
use netvm_wire::partial::transport;

use super::transmit::Request;

/// Finishes offloads within a packet's beginning, `front`, and returns the pending rest. `length` is that of the
/// packet. `None` if the request contradicts the packet.
#[must_use]
pub fn finish_headers(front: &mut [u8], length: usize, request: &Request) -> Option<Pending> {
    if request.segment > 0 && request.tcp {
        return segments(front, length, request);
    }
    let mut pending = Pending::Nothing;
    if let Some(sum) = request.transport {
        pending = checksum(sum.from, sum.at, length)?;
    }
    if let Some(sum) = request.ip {
        match sum.end {
            // The IP header, which is in the front.
            Some(end) => {
                let (from, at, end) = (usize::from(sum.from), usize::from(sum.at), usize::from(end) + 1);
                sum_header(front, from, end, at)?;
            }
            // Of a legacy descriptor: to the end of the packet.
            None => pending = checksum(sum.from, sum.at, length)?,
        }
    }
    Some(pending)
}

fn checksum(from: u16, at: u16, length: usize) -> Option<Pending> {
    const ETHERNET: u16 = 14;
    (from >= ETHERNET && at >= from && usize::from(at) + 2 <= length)
        .then_some(Pending::Checksum { from, at })
}

/// Computes the checksum of a header within the front.
fn sum_header(front: &mut [u8], from: usize, end: usize, at: usize) -> Option<()> {
    front.get_mut(from..end)?;
    front.get_mut(at..at + 2)?.copy_from_slice(&[0; 2]);
    let sum = internet_checksum(&front[from..end]);
    front[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    Some(())
}

fn segments(front: &mut [u8], length: usize, request: &Request) -> Option<Pending> {
    // Ethernet with up to two tags.
    let l2 = (14..=22)
        .step_by(4)
        .find(|at| matches!(front.get(at - 2..*at), Some([0x08, 0x00] | [0x86, 0xdd])))?;
    let v6 = front[l2 - 2] == 0x86;
    let ip = u16::try_from(length - l2).ok()?;
    if v6 {
        front.get_mut(l2 + 4..l2 + 6)?.copy_from_slice(&ip.checked_sub(40)?.to_be_bytes());
    } else {
        let l3 = usize::from(*front.get(l2)? & 15) * 4;
        front.get_mut(l2 + 2..l2 + 4)?.copy_from_slice(&ip.to_be_bytes());
        sum_header(front, l2, l2 + l3, l2 + 10)?;
    }
    let found = transport(front)?;
    let (from, at) = (usize::from(found.partial().from), usize::from(found.partial().at));
    let l4 = u16::from(*front.get(from + 12)? >> 4) * 4;
    let headers = usize::from(found.l2 + found.l3 + l4);
    if found.udp || l4 < 20 || headers > front.len() || headers > length {
        return None;
    }
    front.get_mut(at..at + 2)?.copy_from_slice(&found.pseudo_sum.to_be_bytes());
    if length - headers <= usize::from(request.segment) {
        return checksum(found.partial().from, found.partial().at, length);
    }
    let lengths = [found.l2, found.l3, l4];
    Some(Pending::Segments(Segments {
        lengths,
        size: request.segment,
        v6,
        udp: false,
        ecn: false,
        tunnel: 0,
    }))
}
