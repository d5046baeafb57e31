// SPDX-License-Identifier: Apache-2.0
//! Packets that are longer than the MTU of their next link. In: a packet with its new headers. Out: its fragments.

use netlib::{Outbox, Packet, PortId, Verdict};
use netvm_wire::Headers;
use netvm_wire::fragment::Cut;

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// It is not too long.
    Whole,
    /// It is its last fragment now; those before it have been sent.
    Fragmented,
    /// It is too long, and must not be cut.
    TooLong,
    /// No buffer is free for a fragment.
    NoBuffer,
}

/// Whether a packet is longer than the MTU.
pub(crate) fn exceeds(packet: &Packet<'_>, headers: &Headers, mtu: u16) -> bool {
    headers.payload_end().saturating_sub(headers.l3_offset()).min(packet.len()) > usize::from(mtu)
}

/// Sends a packet that is too long as fragments: all but the last out of the port; the packet becomes the last.
pub(crate) fn fragment(packet: &mut Packet<'_>, outbox: &mut Outbox<'_>, mtu: u16, port: PortId) -> Fit {
    let Ok(headers) = netvm_wire::parse(packet.data()) else { return Fit::TooLong };
    if !exceeds(packet, &headers, mtu) {
        return Fit::Whole;
    }
    let Some(cut) = Cut::of(packet.data(), &headers, mtu) else { return Fit::TooLong };
    let last = cut.count() - 1;
    let mut made = Vec::with_capacity(last);
    for n in 0..last {
        let part = cut.part(n);
        let Some(mut fragment) = outbox.alloc_for(packet, cut.front() + part.len()) else {
            return Fit::NoBuffer;
        };
        fragment.data_mut()[cut.front()..].copy_from_slice(&packet.data()[part]);
        if cut.write_headers(n, fragment.data_mut()).is_none() {
            return Fit::TooLong;
        }
        made.push(fragment);
    }
    for fragment in made {
        outbox.send(fragment, Verdict::Port(port));
    }
    let part = cut.part(last);
    let is_cut = packet.truncate(part.end).is_some()
        && packet.trim_front(part.start - cut.front()).is_some()
        && cut.write_headers(last, packet.data_mut()).is_some();
    if is_cut { Fit::Fragmented } else { Fit::TooLong }
}
