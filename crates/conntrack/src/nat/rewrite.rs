// SPDX-License-Identifier: Apache-2.0
//! Rewrites the headers of packets of translated connections, with incremental checksums (RFC 1624).
//!
//! Both directions change in two halves: the destination before routing, so that the route is that of the end which
//! receives the packet; the source after routing. The packet inside an ICMP error went in the other direction, so the
//! error's destination and the inner source change together.

use netvm_wire::IpProto;

use super::edit::{Edit, Half};
use super::ends::End;
use crate::connection::Connection;
use crate::packet::headers::{Layers, Message, embedded, layers, message};

/// A packet to rewrite.
#[derive(Debug)]
pub struct Rewrite<'a> {
    /// Its first bytes, with all headers.
    pub front: &'a mut [u8],
    /// Its length.
    pub length: usize,
    /// The checksum of TCP or UDP is that of the pseudo header alone: a device computes the rest.
    pub is_partial: bool,
}

/// A header field is not in the bytes at hand, so the packet was not, or not all, rewritten: drop it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incomplete;

/// What becomes of one half of a packet, or of an ICMP error about one.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    half: Half,
    old: End,
    new: End,
}

impl Connection {
    /// What becomes of one half of its packets. `is_reply` as in [`Tracked`](crate::Tracked). NAT64 leaves nothing to
    /// it: [`Connections::translate_family`](crate::Connections::translate_family) does both halves.
    #[must_use]
    pub fn change(&self, half: Half, is_reply: bool) -> Change {
        let direction = usize::from(is_reply);
        let old = half.end_of(self.tuple(direction));
        let new = if self.is_nat64() { old } else { half.end_of(&self.tuple(1 - direction).reversed()) };
        Change { half, old, new }
    }

    /// Rewrites one half of a packet of this connection: [`Connection::change`], [`Change::apply`].
    ///
    /// # Errors
    /// [`Incomplete`].
    pub fn rewrite(&self, half: Half, is_reply: bool, packet: &mut Rewrite<'_>) -> Result<(), Incomplete> {
        self.change(half, is_reply).apply(packet)
    }
}

impl Change {
    /// Whether it changes anything.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.old != self.new
    }

    /// Rewrites a packet. To do it twice changes nothing.
    ///
    /// # Errors
    /// [`Incomplete`].
    pub fn apply(&self, packet: &mut Rewrite<'_>) -> Result<(), Incomplete> {
        if self.is_any() { rewrite(self, packet).ok_or(Incomplete) } else { Ok(()) }
    }
}

fn rewrite(change: &Change, packet: &mut Rewrite<'_>) -> Option<()> {
    let layers = layers(packet.front, packet.length)?;
    let mut edit = Edit::new(packet.front);
    let icmp_type = match (layers.protocol, layers.transport) {
        (IpProto::ICMP | IpProto::ICMPV6, Some(at)) => edit.front.get(at),
        _ => None,
    };
    if icmp_type.is_some_and(|kind| message(layers.protocol, *kind) == Message::Error) {
        return rewrite_error(change, &layers, &mut edit);
    }
    let sum = edit.sum_of(&layers, packet.is_partial);
    edit.end(change.half, &layers, change.new, sum)
}

/// Rewrites an end of an error, and the other end of the packet that it is about, which went in the other direction. A
/// router on the way may have sent the error: its address changes only if that of the connection does.
fn rewrite_error(change: &Change, outer: &Layers, edit: &mut Edit<'_>) -> Option<()> {
    let Change { half, old, new } = *change;
    let sum = edit.sum_of(outer, false)?;
    if old.address != new.address {
        edit.address(half, outer, new.address, Some(sum))?;
    }
    let inner = embedded(edit.front, outer)?.layers;
    edit.outer = Some(sum.at);
    let inner_sum = edit.sum_of(&inner, false);
    edit.end(half.other(), &inner, new, inner_sum)
}
