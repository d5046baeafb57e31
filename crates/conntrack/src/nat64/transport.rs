// SPDX-License-Identifier: Apache-2.0
//! The headers of protocols over IP: ports, identifiers, types of queries, and checksums.

use netvm_wire::{IpProto, checksum};

use super::Untranslatable;
use super::front::Front;
use super::icmp;
use super::ip::Ip;
use super::packet::{Packets, Translated};
use crate::packet::headers::{Message, message, u16_at};

/// The checksums of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sums {
    /// Complete.
    Whole,
    /// Those of pseudo headers alone.
    Partial,
    /// They are in a packet that an error is about, so they may be missing.
    About,
}

/// The fixed part of a header, which is copied: its length, and where the checksum is.
const fn begin_of(protocol: IpProto) -> Option<(usize, usize)> {
    match protocol {
        IpProto::TCP => Some((20, 16)),
        IpProto::UDP => Some((8, 6)),
        IpProto::ICMP | IpProto::ICMPV6 => Some((8, 2)),
        _ => None,
    }
}

/// The sum of a pseudo header; ICMP has none.
pub(super) fn pseudo_header(ip: &Ip, length: usize) -> checksum::Sum {
    let sum = checksum::Sum::default();
    match ip.protocol {
        IpProto::ICMP => sum,
        protocol => sum.pseudo_header(ip.source, ip.destination, protocol, length),
    }
}

/// The old and new sums of what a checksum covers and what changes.
struct Change {
    old: checksum::Sum,
    new: checksum::Sum,
}

impl Change {
    fn bytes(&mut self, old: &[u8], new: &[u8]) {
        (self.old, self.new) = (self.old.bytes(old), self.new.bytes(new));
    }
}

/// Writes the header after the new IP header as far as it changes. Returns what that makes of the packet, in bytes from
/// its IP header.
pub(super) fn translate_transport(
    packets: &Packets<'_>,
    ports: Option<[u16; 2]>,
    sums: Sums,
    front: &mut Front,
) -> Result<Translated, Untranslatable> {
    let Packets { bytes, old, new } = packets;
    let length = new.header + new.payload;
    let segment = bytes.get(old.header..).unwrap_or_default();
    let begin = if old.is_later() { None } else { begin_of(old.protocol) };
    let Some((copied, sum_at)) = begin else {
        return Ok(Translated { replaced: old.header.min(bytes.len()), length, is_partial: false });
    };
    let copied = match sums {
        Sums::About => copied.min(segment.len() & !1),
        _ if copied > segment.len() => return Err(Untranslatable::Malformed),
        _ => copied,
    };
    let (start, segment) = (front.length(), segment.get(..copied).unwrap_or_default());
    front.put(segment)?;
    let (old_sum, new_sum) = (pseudo_header(old, old.payload), pseudo_header(new, new.payload));
    let mut change = Change { old: old_sum, new: new_sum };
    let mut put = |change: &mut Change, place: usize, word: u16| {
        if let Some(before) = segment.get(place..place + 2) {
            front.set(start + place, word);
            change.bytes(before, &word.to_be_bytes());
        }
    };
    let is_partial = sums == Sums::Partial && !is_icmp(old.protocol);
    if is_icmp(old.protocol) {
        let kind = *segment.first().ok_or(Untranslatable::Malformed)?;
        let [code, ..] = *segment.get(1..).unwrap_or_default() else { return Err(Untranslatable::Malformed) };
        put(&mut change, 0, u16::from_be_bytes([query(old.protocol, kind)?, code]));
        if let Some([identifier, _]) = ports {
            put(&mut change, 4, identifier);
        }
    } else if let Some([source, destination]) = ports {
        // A partial checksum does not cover them.
        let mut not_covered = Change { old: old_sum, new: new_sum };
        let change = if is_partial { &mut not_covered } else { &mut change };
        put(change, 0, source);
        put(change, 2, destination);
    }
    let mut translated = Translated { replaced: old.header + copied, length, is_partial };
    let Some(field) = u16_at(segment, sum_at) else { return Ok(translated) };
    let is_udp = old.protocol == IpProto::UDP;
    let adjusted = match checksum::updated(
        if is_partial { !field } else { field },
        change.old.folded(),
        change.new.folded(),
    ) {
        _ if is_udp && field == 0 && !is_partial => {
            let needs_sum = sums == Sums::Whole && !new.is_v4();
            if needs_sum && old.is_part() {
                return Err(Untranslatable::NoChecksum);
            }
            translated.is_partial = needs_sum;
            let datagram = u16_at(segment, 4).unwrap_or_default();
            if needs_sum { pseudo_header(new, datagram.into()).folded() } else { 0 }
        }
        adjusted if is_partial => !adjusted,
        0 if is_udp => 0xffff,
        adjusted => adjusted,
    };
    front.set(start + sum_at, adjusted);
    Ok(translated)
}

const fn is_icmp(protocol: IpProto) -> bool {
    matches!(protocol, IpProto::ICMP | IpProto::ICMPV6)
}

/// The type of a query in the other family.
fn query(protocol: IpProto, kind: u8) -> Result<u8, Untranslatable> {
    icmp::query(protocol, kind).ok_or(match message(protocol, kind) {
        Message::Error => Untranslatable::ErrorAboutError,
        _ => Untranslatable::IcmpType,
    })
}
