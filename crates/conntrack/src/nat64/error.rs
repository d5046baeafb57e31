// SPDX-License-Identifier: Apache-2.0
//! ICMP errors, and the packets that they are about.

use netvm_wire::checksum;

use super::Untranslatable;
use super::front::Front;
use super::icmp::{About, Icmp, length_of_about};
use super::ip::Ip;
use super::packet::{Counterpart, Packets, Translated};
use super::transport::{Sums, pseudo_header, translate_transport};
use crate::packet::headers::{Message, message, u16_at};

const ICMP_HEADER: usize = 8;

/// The least length of the packet that an error with extensions is about (RFC 4884 section 4).
const MIN_ABOUT: usize = 128;
/// The greatest one for which [`Front`] has room.
const MAX_ABOUT: usize = 256;

/// The packet that an error with extensions is about: it ends at a multiple of the unit of its length.
#[derive(Clone, Copy, Debug, Default)]
struct Extended {
    /// Its bytes.
    length: usize,
    /// Zeroes that follow it.
    padding: usize,
    /// The length in units, and where it is after the checksum.
    units: Option<(usize, u8)>,
}

/// Writes the headers of an error and of the packet that it is about. Returns what that makes of the packet, in bytes
/// from its IP header.
pub(super) fn translate_error(
    error: &Packets<'_>,
    to: &Counterpart,
    front: &mut Front,
) -> Result<Translated, Untranslatable> {
    let (at, protocol) = (error.old.header, error.old.protocol);
    let about_at = at + ICMP_HEADER;
    let header = error.bytes.get(at..).and_then(|bytes| bytes.first_chunk());
    let header: &[u8; ICMP_HEADER] = header.ok_or(Untranslatable::Malformed)?;
    let [kind, code, _, _, rest @ ..] = *header;
    if message(protocol, kind) != Message::Error {
        return Err(Untranslatable::IcmpType);
    }
    let about = packet_of_error(error, to)?;
    let old = Icmp { kind, code, rest };
    let length = about.old.header + about.old.payload;
    let of_mtu = About { length, is_fragment: about.old.has_fragment_header() };
    let mut new = old.translated(protocol, of_mtu).ok_or(Untranslatable::IcmpType)?;
    let extended = extended(error, &about, [&old, &new]).unwrap_or_default();
    if let Some((place, units)) = extended.units {
        new.rest[place] = units;
    }
    let headers = (error.old.payload + about.new.header).checked_sub(about.old.header);
    let payload = headers.ok_or(Untranslatable::Malformed)? + extended.padding;
    let outer = error.new.with_payload(payload);
    outer.write(to.identification, front)?;
    let start = front.length();
    front.put(&[new.kind, new.code, 0, 0])?;
    front.put(&new.rest)?;
    about.new.write(0, front)?;
    let mut replaced = translate_transport(&about, to.about.ports, Sums::About, front)?.replaced;
    if extended.padding > 0 {
        front.put(about.bytes.get(replaced..extended.length).unwrap_or_default())?;
        front.zeroes(extended.padding)?;
        replaced = extended.length;
    }
    let replaced = about_at + replaced;
    let before = error.bytes.get(at + 4..replaced).unwrap_or_default();
    let old_sum = pseudo_header(&error.old, error.old.payload).bytes(&[kind, code]).bytes(before);
    let new_sum = pseudo_header(&outer, payload).bytes(front.bytes().get(start..).unwrap_or_default());
    let field = u16_at(header, 2).unwrap_or_default();
    front.set(start + 2, checksum::updated(field, old_sum.folded(), new_sum.folded()));
    Ok(Translated { replaced, length: outer.header + payload, is_partial: false })
}

/// The packet that an error is about.
fn packet_of_error<'a>(error: &Packets<'a>, to: &Counterpart) -> Result<Packets<'a>, Untranslatable> {
    let bytes = error.bytes.get(error.old.header + ICMP_HEADER..).unwrap_or_default();
    let old = match Ip::read(bytes) {
        Ok(old) if old.is_v4() == error.old.is_v4() => old,
        Err(Untranslatable::Protocol) => return Err(Untranslatable::Protocol),
        _ => return Err(Untranslatable::Malformed),
    };
    if old.header > bytes.len() {
        return Err(Untranslatable::Malformed);
    }
    let new = old.translated(to.about.source, to.about.destination)?;
    Ok(Packets { bytes, old, new })
}

/// Where extensions of an error begin. `None`: it has none, or none that can stay.
fn extended(error: &Packets<'_>, about: &Packets<'_>, [old, new]: [&Icmp; 2]) -> Option<Extended> {
    let (unit, place) = length_of_about(error.old.protocol, old.kind)?;
    let length = usize::from(old.rest[place]) * unit;
    let (unit, place) = length_of_about(error.new.protocol, new.kind)?;
    if !(MIN_ABOUT..=about.bytes.len().min(MAX_ABOUT)).contains(&length) {
        return None;
    }
    let now = (length + about.new.header).checked_sub(about.old.header)?;
    let padded = now.max(MIN_ABOUT).next_multiple_of(unit);
    let units = u8::try_from(padded / unit).ok()?;
    Some(Extended { length, padding: padded - now, units: Some((place, units)) })
}
