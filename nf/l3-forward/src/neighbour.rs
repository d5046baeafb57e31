// SPDX-License-Identifier: Apache-2.0
//! Answers ARP requests and neighbour solicitations.
//!
//! The router answers for every address (proxy ARP, RFC 1027; proxy neighbour discovery, RFC 4861 section 7.2.8), so
//! that hosts on its links need no static neighbours. It does not answer probes for free addresses (RFC 5227, duplicate
//! address detection).

use netlib::Packet;
use netvm_wire::checksum::transport_checksum;
use netvm_wire::{Address, Headers, IpProto, MacAddr, Network, Transport, rewrite};

/// Type of an ICMPv6 neighbour solicitation.
pub(crate) const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Bytes of an advertisement with one option.
const ADVERTISEMENT_BYTES: usize = 32;
const ARP_REQUEST: u16 = 1;

/// Turns an ARP request into its reply; true if there is a reply to send back.
pub(crate) fn answer_arp(frame: &mut [u8], headers: &Headers, mac: MacAddr) -> bool {
    let key = headers.key();
    // Both are IPv4 addresses only in ARP for Ethernet and IPv4.
    let (Some(sender), Some(target)) = (key.source.v4_bits(), key.destination.v4_bits()) else {
        return false;
    };
    let asks = headers.network() == Network::Arp && key.arp_operation == ARP_REQUEST;
    // A probe has no sender, and an announcement asks for its own sender: neither gets a reply.
    if !asks || sender == 0 || sender == target || target >= 0xe000_0000 {
        return false;
    }
    let l3 = headers.l3_offset();
    let Some(arp) = frame.get_mut(l3..l3 + 28) else { return false };
    arp[7] = 2;
    arp.copy_within(8..18, 18);
    arp[8..14].copy_from_slice(&mac.octets());
    arp[14..18].copy_from_slice(&target.to_be_bytes());
    rewrite::set_macs(frame, key.source_mac, mac).is_ok()
}

/// Turns a neighbour solicitation into its advertisement; true if there is one to send back.
pub(crate) fn answer_solicitation(packet: &mut Packet<'_>, headers: &Headers, mac: MacAddr) -> bool {
    let Some((asker, target)) = solicitation(packet.data(), headers) else { return false };
    let (l3, l4) = (headers.l3_offset(), headers.l3_offset() + 40);
    let length = l4 + ADVERTISEMENT_BYTES;
    let fits = match length.checked_sub(packet.len()) {
        Some(missing) => packet.append(missing).is_some(),
        None => packet.truncate(length).is_some(),
    };
    let frame = packet.data_mut();
    if !fits || rewrite::set_macs(frame, headers.key().source_mac, mac).is_err() {
        return false;
    }
    let Some(ip) = frame.get_mut(l3..length) else { return false };
    ip[4..6].copy_from_slice(&(ADVERTISEMENT_BYTES as u16).to_be_bytes());
    ip[8..24].copy_from_slice(&target);
    ip[24..40].copy_from_slice(&asker.v6_bits().to_be_bytes());
    let message = &mut ip[40..];
    message[..4].copy_from_slice(&[ADVERTISEMENT, 0, 0, 0]);
    // Router and solicited; not override: the address's owner precedes a proxy.
    message[4..8].copy_from_slice(&[0xc0, 0, 0, 0]);
    message[8..24].copy_from_slice(&target);
    message[24..26].copy_from_slice(&[2, 1]);
    message[26..32].copy_from_slice(&mac.octets());
    let sum = transport_checksum(Address::from_v6_octets(target), asker, IpProto::ICMPV6, message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    true
}

/// Sender and target of a valid solicitation (RFC 4861 section 7.1.1).
fn solicitation(frame: &[u8], headers: &Headers) -> Option<(Address, [u8; 16])> {
    let key = headers.key();
    let (l3, l4) = (headers.l3_offset(), headers.l4_offset()?);
    if headers.transport() != Transport::Icmpv6
        || key.icmp_type != SOLICITATION
        || key.icmp_code != 0
        || l4 != l3 + 40
    {
        return None;
    }
    let hop_limit = *frame.get(l3 + 7)?;
    let message = frame.get(l4..headers.payload_end())?;
    let target = *message.get(8..)?.first_chunk::<16>()?;
    let asker = key.source;
    let unicast = |address: Address| address != Address::UNSPECIFIED && address.v6_bits() >> 120 != 0xff;
    let sound = hop_limit == 255 && transport_checksum(asker, key.destination, IpProto::ICMPV6, message) == 0;
    (sound && unicast(asker) && unicast(Address::from_v6_octets(target))).then_some((asker, target))
}
