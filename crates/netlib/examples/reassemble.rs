// SPDX-License-Identifier: Apache-2.0
//! An NF that reassembles IPv4 packets: the NFs after it see whole packets, with ports. It holds fragments until the
//! packet is complete; the rest of a packet that does not come within 30 seconds never comes.
//!
//! Its `[[nf]]` needs `hold`, for the fragments of all packets that are on the way. A packet that does not fit into a
//! buffer (`buffer_size` of the group) goes on as fragments, in order.

use std::collections::HashMap;
use std::time::Duration;

use netlib::{Burst, NetworkFunction, Options, Outbox, OwnedPacket, Packet, Verdict};
use netvm_wire::checksum::internet_checksum;

/// How long a packet may take (RFC 1122 section 3.3.2 recommends 60 to 120 s, Linux takes 30 s).
const TIMEOUT: Duration = Duration::from_secs(30);
const ETHERNET: usize = 14;
const HEADER: usize = 20;

fn main() -> Result<(), netlib::Error> {
    netlib::run(&Options::new("reassemble"), |_thread| Reassembler::default())
}

/// Addresses, identification and protocol, which all fragments of a packet share.
type Key = [u8; 11];

/// A fragment's place in its packet.
struct Fragment {
    start: usize,
    end: usize,
    is_last: bool,
    key: Key,
}

impl Fragment {
    /// `None` for a packet that is whole, is not IPv4, has options or a tag, or is malformed.
    fn of(frame: &[u8]) -> Option<Self> {
        let ip = frame
            .get(ETHERNET..)
            .filter(|ip| frame[12..14] == [8, 0] && ip.len() >= HEADER && ip[0] == 0x45)?;
        let word = |at: usize| usize::from(u16::from_be_bytes([ip[at], ip[at + 1]]));
        let (length, flags) = (word(2), word(6));
        let (start, is_last) = ((flags & 0x1fff) * 8, flags & 0x2000 == 0);
        let is_sound = (HEADER + 1..=ip.len()).contains(&length) && (is_last || length % 8 == HEADER % 8);
        if (start == 0 && is_last) || !is_sound {
            return None;
        }
        let mut key = [0; 11];
        key[..8].copy_from_slice(&ip[12..20]);
        key[8..10].copy_from_slice(&ip[4..6]);
        key[10] = ip[9];
        Some(Self { start, end: start + length - HEADER, is_last, key })
    }
}

/// The fragments of a packet, in order.
struct Incomplete {
    parts: Vec<(Fragment, OwnedPacket)>,
    since: Duration,
}

impl Incomplete {
    fn is_complete(&self) -> bool {
        let follows = |pair: &[(Fragment, OwnedPacket)]| pair[0].0.end == pair[1].0.start;
        self.parts.first().is_some_and(|(first, _)| first.start == 0)
            && self.parts.last().is_some_and(|(last, _)| last.is_last)
            && self.parts.windows(2).all(follows)
    }

    /// Makes one packet of the first fragment and the bytes of the others; leaves all as they are if it does not fit.
    fn joined(mut self) -> Vec<OwnedPacket> {
        let total = HEADER + self.parts.last().map_or(0, |(last, _)| last.end);
        let (first, others) = self.parts.split_at_mut(1);
        let (fragment, packet) = &mut first[0];
        let mut whole = packet.packet();
        // Without what may pad the frame.
        whole.truncate(ETHERNET + HEADER + fragment.end);
        if u16::try_from(total).is_err() || whole.append(total - HEADER - fragment.end).is_none() {
            return self.parts.into_iter().map(|(_, packet)| packet).collect();
        }
        let frame = whole.data_mut();
        for (fragment, packet) in others {
            let bytes = &packet.data()[ETHERNET + HEADER..][..fragment.end - fragment.start];
            frame[ETHERNET + HEADER + fragment.start..][..bytes.len()].copy_from_slice(bytes);
        }
        let ip = &mut frame[ETHERNET..ETHERNET + HEADER];
        ip[2..4].copy_from_slice(&(total as u16).to_be_bytes());
        ip[6..8].fill(0);
        ip[10..12].fill(0);
        let sum = internet_checksum(ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        // The others are dropped, which frees their buffers.
        self.parts.into_iter().map(|(_, packet)| packet).take(1).collect()
    }
}

/// The NF.
#[derive(Default)]
pub struct Reassembler {
    incomplete: HashMap<Key, Incomplete>,
}

impl Reassembler {
    fn handle(&mut self, packet: Packet<'_>, outbox: &mut Outbox<'_>) -> Verdict {
        let Some(fragment) = Fragment::of(packet.data()) else { return Verdict::Next };
        // Without room, fragments pass as they are.
        let Ok(held) = outbox.hold(packet) else { return Verdict::Next };
        let (key, since) = (fragment.key, outbox.now());
        let packet = self.incomplete.entry(key).or_insert_with(|| Incomplete { parts: Vec::new(), since });
        let place = packet.parts.partition_point(|(other, _)| other.start < fragment.start);
        // Overlapping fragments are an attack or a mistake: the packet is dropped (RFC 5722 section 3).
        let overlaps = packet.parts.get(place).is_some_and(|(next, _)| next.start < fragment.end)
            || place > 0 && packet.parts[place - 1].0.end > fragment.start;
        if overlaps {
            self.incomplete.remove(&key);
            return Verdict::Drop;
        }
        packet.parts.insert(place, (fragment, held));
        if packet.is_complete()
            && let Some(complete) = self.incomplete.remove(&key)
        {
            complete.joined().into_iter().for_each(|packet| outbox.send(packet, Verdict::Next));
        }
        // Of a packet that is held, the verdict does not matter.
        Verdict::Drop
    }
}

impl NetworkFunction for Reassembler {
    fn burst(&mut self, burst: &mut Burst<'_>) {
        burst.for_each_with(|packet, outbox| self.handle(packet, outbox));
    }

    fn send_due(&mut self, outbox: &mut Outbox<'_>) {
        let now = outbox.now();
        self.incomplete.retain(|_, packet| now.saturating_sub(packet.since) < TIMEOUT);
    }

    fn finish(&mut self, outbox: &mut Outbox<'_>) {
        let parts = self.incomplete.drain().flat_map(|(_, packet)| packet.parts);
        parts.for_each(|(_, packet)| outbox.send(packet, Verdict::Next));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use netlib::PortId;
    use netlib::sim::Simulator;
    use netvm_wire::fragment::Cut;
    use netvm_wire::{FrameBuilder, MacAddr, checksum, parse};

    use super::*;

    /// A datagram with this identification and these bytes, and its fragments.
    fn fragmented(id: u16, length: usize, mtu: u16) -> (Vec<u8>, Vec<Vec<u8>>) {
        let payload: Vec<u8> = (0..length).map(|n| (n / 3) as u8).collect();
        let builder = FrameBuilder::new(MacAddr([2; 6]), MacAddr([4; 6]));
        let builder = builder.ip([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).udp(5, 53).payload(&payload);
        let mut whole = builder.to_vec().unwrap();
        whole[18..20].copy_from_slice(&id.to_be_bytes());
        whole[20..22].fill(0);
        whole[24..26].fill(0);
        let sum = internet_checksum(&whole[14..34]);
        whole[24..26].copy_from_slice(&sum.to_be_bytes());
        let cut = Cut::of(&whole, &parse(&whole).unwrap(), mtu).unwrap();
        let fragment = |n| {
            let mut frame = vec![0; cut.front()];
            cut.write_headers(n, &mut frame).unwrap();
            frame.extend(&whole[cut.part(n)]);
            // As Ethernet pads short frames.
            frame.resize(frame.len().max(60), 0xee);
            frame
        };
        let fragments = (0..cut.count()).map(fragment).collect();
        (whole, fragments)
    }

    fn sent(simulator: &mut Simulator, nf: &mut Reassembler, frames: &[&[u8]]) -> Vec<Vec<u8>> {
        let frames: Vec<_> = frames.iter().map(|frame| (PortId(0), *frame)).collect();
        simulator.exchange(nf, &frames).into_iter().map(|outcome| outcome.bytes).collect()
    }

    #[test]
    fn packets_are_put_together_whatever_the_order_of_their_fragments() {
        let mut simulator = Simulator::new(&["in"], &[]).unwrap();
        let mut nf = Reassembler::default();
        let (one, a) = fragmented(1, 3000, 576);
        let (two, b) = fragmented(2, 1400, 1004);
        assert_eq!((a.len(), b.len()), (6, 2));
        // Of two packets at a time, one of them backwards.
        let order = [&a[5], &b[1], &a[4], &a[0], &a[2], &b[0], &a[3], &a[1]];
        let all = sent(&mut simulator, &mut nf, &order.map(Vec::as_slice));
        assert_eq!(all, [two, one.clone()]);
        assert_eq!(checksum::verify(&one, &parse(&one).unwrap()), Ok(()));
        // Many packets: no buffer stays with the NF.
        for id in 0..2000 {
            let (whole, fragments) = fragmented(id, 2000, 576);
            let frames: Vec<&[u8]> = fragments.iter().map(Vec::as_slice).collect();
            assert_eq!(sent(&mut simulator, &mut nf, &frames), [whole]);
        }
    }

    #[test]
    fn what_stays_incomplete_or_overlaps_is_dropped() {
        let mut simulator = Simulator::new(&["in"], &[]).unwrap();
        let mut nf = Reassembler::default();
        let (whole, fragments) = fragmented(1, 1400, 576);
        assert!(simulator.advance(&mut nf, Duration::from_secs(1)).is_empty());
        assert!(sent(&mut simulator, &mut nf, &[&fragments[0], &fragments[2]]).is_empty());
        assert!(simulator.advance(&mut nf, Duration::from_secs(29)).is_empty());
        assert_eq!(nf.incomplete.len(), 1);
        simulator.advance(&mut nf, Duration::from_secs(2));
        assert!(nf.incomplete.is_empty());
        assert!(sent(&mut simulator, &mut nf, &[&fragments[1]]).is_empty());
        // The same bytes twice.
        assert!(sent(&mut simulator, &mut nf, &[&fragments[1]]).is_empty());
        assert!(nf.incomplete.is_empty());
        let frames: Vec<&[u8]> = fragments.iter().map(Vec::as_slice).collect();
        assert_eq!(sent(&mut simulator, &mut nf, &frames), std::slice::from_ref(&whole));
        assert_eq!(sent(&mut simulator, &mut nf, &[&whole]), [whole], "a whole packet passes");
    }

    #[test]
    fn what_does_not_fit_into_a_buffer_goes_on_in_fragments() {
        let mut simulator = Simulator::new(&["in"], &[]).unwrap();
        let mut nf = Reassembler::default();
        let (_, fragments) = fragmented(1, 20_000, 1500);
        let frames: Vec<&[u8]> = fragments.iter().rev().map(Vec::as_slice).collect();
        assert_eq!(sent(&mut simulator, &mut nf, &frames), fragments);
    }
}
