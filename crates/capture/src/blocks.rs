// SPDX-License-Identifier: Apache-2.0
//! Blocks of pcapng for a live capture of many interfaces, appended to memory that the caller writes out.
//!
//! [`CaptureWriter`](crate::CaptureWriter) copies files; this writes what a file cannot hold there: an interface for
//! each place, the direction of a packet, a comment, and what was lost. Source: draft-ietf-opsawg-pcapng, sections 4.1
//! to 4.6. Everything is little-endian, and times are in nanoseconds.

use crate::format::Timestamp;

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;

const COMMENT: u16 = 1;
const END: u16 = 0;
const APPLICATION: u16 = 4;
const NAME: u16 = 2;
const DESCRIPTION: u16 = 3;
const RESOLUTION: u16 = 9;
const FLAGS: u16 = 2;
const DROP_COUNT: u16 = 4;
const RECEIVED: u16 = 4;
const IF_DROP: u16 = 5;
const ACCEPTED: u16 = 6;

/// Nanoseconds: 10 to the power of minus 9.
const NANOSECONDS: u8 = 9;
const ETHERNET: u32 = 1;
/// Bytes of a packet's block besides the packet, its padding and its options.
const PACKET_FRAME: usize = 32;

/// Direction of a packet, in its flags (section 4.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PacketDirection {
    /// Not known.
    Unknown = 0,
    /// Into what captures.
    Inbound = 1,
    /// Out of it.
    Outbound = 2,
}

/// The options of packets that have them in common, encoded once.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct PacketOptions(Vec<u8>);

impl PacketOptions {
    /// A direction, and a comment unless it is empty.
    #[must_use]
    pub fn new(direction: PacketDirection, comment: &str) -> Self {
        let mut bytes = Vec::new();
        if direction != PacketDirection::Unknown {
            option(&mut bytes, FLAGS, &u32::from(direction as u8).to_le_bytes());
        }
        if !comment.is_empty() {
            option(&mut bytes, COMMENT, comment.as_bytes());
        }
        Self(bytes)
    }
}

/// What an interface has counted at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct InterfaceCounts {
    /// Packets that passed.
    pub received: u64,
    /// Those that the filter accepted.
    pub accepted: u64,
    /// Those of the latter that were lost, because they were not read in time.
    pub lost: u64,
}

/// The beginning of a file: a section, and its interfaces, each with a name and a description.
pub fn begin<'a>(
    out: &mut Vec<u8>,
    application: &str,
    snaplen: u32,
    interfaces: impl IntoIterator<Item = (&'a str, &'a str)>,
) {
    block(out, SECTION, |out| {
        out.extend(0x1a2b_3c4d_u32.to_le_bytes());
        out.extend([1, 0, 0, 0]);
        // The section's length is not known.
        out.extend([0xff; 8]);
        option(out, APPLICATION, application.as_bytes());
        option(out, END, &[]);
    });
    for (name, description) in interfaces {
        block(out, INTERFACE, |out| {
            out.extend(ETHERNET.to_le_bytes());
            out.extend(snaplen.to_le_bytes());
            option(out, NAME, name.as_bytes());
            option(out, DESCRIPTION, description.as_bytes());
            option(out, RESOLUTION, &[NANOSECONDS]);
            option(out, END, &[]);
        });
    }
}

/// A packet of an interface.
#[derive(Clone, Copy, Debug)]
pub struct LivePacket<'a> {
    /// Number of the interface.
    pub interface: u32,
    /// When it was captured.
    pub time: Timestamp,
    /// Bytes of the whole packet.
    pub original: u32,
    /// What was captured of it.
    pub data: &'a [u8],
    /// Packets of the interface that were lost since the one before.
    pub lost: u64,
}

/// Appends a packet.
#[inline]
pub fn packet(out: &mut Vec<u8>, packet: &LivePacket<'_>, options: &PacketOptions) {
    let padded = packet.data.len().next_multiple_of(4);
    let lost_bytes = if packet.lost > 0 { 12 } else { 0 };
    let options_bytes = match options.0.len() + lost_bytes {
        0 => 0,
        bytes => bytes + 4,
    };
    let total = (PACKET_FRAME + padded + options_bytes) as u32;
    out.reserve(total as usize);
    let nanos = packet.time.as_nanos();
    let mut head = [0u8; 28];
    for (field, value) in head.chunks_exact_mut(4).zip([
        PACKET,
        total,
        packet.interface,
        (nanos >> 32) as u32,
        nanos as u32,
        packet.data.len() as u32,
        packet.original,
    ]) {
        field.copy_from_slice(&value.to_le_bytes());
    }
    out.extend_from_slice(&head);
    out.extend_from_slice(packet.data);
    out.extend_from_slice(&[0; 3][..padded - packet.data.len()]);
    if options_bytes > 0 {
        out.extend_from_slice(&options.0);
        if packet.lost > 0 {
            option(out, DROP_COUNT, &packet.lost.to_le_bytes());
        }
        out.extend_from_slice(&[0; 4]);
    }
    out.extend_from_slice(&total.to_le_bytes());
}

/// Appends what an interface has counted.
pub fn statistics(out: &mut Vec<u8>, interface: u32, time: Timestamp, counts: InterfaceCounts) {
    let nanos = time.as_nanos();
    block(out, STATISTICS, |out| {
        out.extend(interface.to_le_bytes());
        out.extend(((nanos >> 32) as u32).to_le_bytes());
        out.extend((nanos as u32).to_le_bytes());
        option(out, RECEIVED, &counts.received.to_le_bytes());
        option(out, ACCEPTED, &counts.accepted.to_le_bytes());
        option(out, IF_DROP, &counts.lost.to_le_bytes());
        option(out, END, &[]);
    });
}

/// Appends an option, padded to 4 bytes; a value that is too long is cut.
fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(u16::MAX.into())];
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&(value.len() as u16).to_le_bytes());
    out.extend_from_slice(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Appends a block: its type, its length before and behind, and a body of whole words.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    // Options are padded from the start of the block, not of the memory.
    let mut inner = Vec::new();
    body(&mut inner);
    let total = (inner.len() + 12) as u32;
    out.extend(kind.to_le_bytes());
    out.extend(total.to_le_bytes());
    out.extend(inner);
    out.extend(total.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use pcap_file::pcapng::PcapNgReader;
    use pcap_file::pcapng::blocks::Block;
    use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;

    use super::*;

    #[test]
    fn another_reader_understands_every_block() {
        let mut out = Vec::new();
        begin(&mut out, "netvm", 0, [("uplink", "port uplink"), ("out:1", "hop 1")]);
        let options = PacketOptions::new(PacketDirection::Outbound, "chain out, dropped: rule");
        for length in 0..9u8 {
            let data: Vec<u8> = (0..length).collect();
            let time = Timestamp(1_700_000_000_123_456_789 + u64::from(length));
            let lost = u64::from(length % 2);
            let next = LivePacket { interface: 1, time, original: 90, data: &data, lost };
            packet(&mut out, &next, &options);
            packet(&mut out, &LivePacket { lost: 0, interface: 0, ..next }, &PacketOptions::default());
        }
        statistics(&mut out, 1, Timestamp(5), InterfaceCounts { received: 9, accepted: 9, lost: 4 });
        assert!(out.len().is_multiple_of(4));

        let mut reader = PcapNgReader::new(&out[..]).unwrap();
        let (mut packets, mut names, mut counted) = (Vec::new(), Vec::new(), 0);
        while let Some(block) = reader.next_block() {
            match block.unwrap().0 {
                Block::EnhancedPacket(packet) => packets.push(packet.into_owned()),
                Block::InterfaceDescription(interface) => names.push(format!("{:?}", interface.options)),
                Block::InterfaceStatistics(_) => counted += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((packets.len(), counted), (18, 1));
        assert!(names[1].contains("out:1") && names[1].contains("hop 1"), "{names:?}");
        for (n, pair) in packets.chunks(2).enumerate() {
            let data: Vec<u8> = (0..n as u8).collect();
            assert_eq!((&pair[0].data[..], pair[0].original_len, pair[0].interface_id), (&data[..], 90, 1));
            assert_eq!(pair[0].timestamp.as_nanos(), 1_700_000_000_123_456_789 + n as u128);
            let has =
                |wanted: &str| pair[0].options.iter().any(|option| format!("{option:?}").contains(wanted));
            assert!(has("chain out, dropped: rule") && has("Flags"), "{:?}", pair[0].options);
            let lost = pair[0].options.iter().any(|o| matches!(o, EnhancedPacketOption::DropCount(1)));
            assert_eq!(lost, n % 2 == 1);
            assert_eq!((&pair[1].data[..], pair[1].options.len()), (&data[..], 0));
        }
    }
}
