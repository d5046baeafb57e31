// SPDX-License-Identifier: Apache-2.0
//! What a program leaves of a packet that it passes on: a digest of the flow and of the first bytes behind it. MAC
//! addresses, tags, TTL and checksums are not in it, nor lengths, as a long segment may be cut.
//!
//! Packets that are equal in all of that have the same digest: the same datagram, sent twice.

use dpdk::Mbuf;
use netvm_wire::{FlowHasher, FlowKey, Headers, Network, Transport, parse_prefix};

/// Bytes of a packet that are read.
const FRONT: usize = 160;
/// EtherType and payload of a frame without IP.
const OTHER: core::ops::Range<usize> = 12..60;

/// The digest of a packet: at least 2.
pub(crate) fn digest_of(mbuf: &Mbuf) -> u64 {
    let mut front = [0; FRONT];
    let copied = mbuf.copy_to(&mut front);
    let front = &front[..copied];
    let words = match parse_prefix(front, mbuf.pkt_len() as usize) {
        Ok(headers) if headers.key().is_ip() => of_ip(front, &headers),
        _ => {
            let mut words = [0; 6];
            for (n, word) in words.iter_mut().enumerate() {
                *word = word_at(front, OTHER.start + 8 * n);
            }
            words
        }
    };
    let [a, b, c, d, e, f] = words;
    let hasher = FlowHasher::shared();
    hasher.words([hasher.words([a, b, c, d, e]), f, 0, 0, 0]).max(2)
}

fn of_ip(front: &[u8], headers: &Headers) -> [u64; 6] {
    let flow = flow_hash(headers.key());
    // Identification, and where in the datagram a fragment is.
    let datagram = match headers.network() {
        Network::Ipv4 => word_at(front, headers.l3_offset() + 4) & 0xffff_ffff,
        _ => 0,
    };
    let (first, second) = match (headers.l4_offset(), headers.transport()) {
        // The numbers of sequence and acknowledgement.
        (Some(at), Transport::Tcp) => (word_at(front, at + 4), 0),
        // What follows length and checksum.
        (Some(at), Transport::Udp) => (word_at(front, at + 8), word_at(front, at + 16)),
        // What follows the checksum.
        (Some(at), Transport::Icmp | Transport::Icmpv6) => (word_at(front, at + 4), word_at(front, at + 12)),
        (Some(at), _) => (word_at(front, at + 16), word_at(front, at + 24)),
        (None, _) => (word_at(front, headers.payload_offset()), 0),
    };
    // Time to live and protocol come after these four bytes.
    [flow, datagram, first, second, u64::from(headers.key().protocol.0), 0]
}

/// Eight bytes at an offset; those behind the end are 0.
fn word_at(bytes: &[u8], offset: usize) -> u64 {
    let mut word = [0; 8];
    let there = bytes.get(offset..).unwrap_or_default();
    let count = there.len().min(8);
    word[..count].copy_from_slice(&there[..count]);
    u64::from_le_bytes(word)
}

/// The hash of one direction of a flow: addresses, protocol and ports; without IP, MAC addresses and EtherType.
pub(crate) fn flow_hash(key: &FlowKey) -> u64 {
    if let Some(tuple) = key.five_tuple() {
        return tuple.plain_hash();
    }
    let [from, to] = [key.source_mac, key.destination_mac].map(|mac| {
        let [a, b, c, d, e, f] = mac.0;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    });
    FlowHasher::shared().words([from, to, key.ether_type.0.into(), 0, 1])
}
