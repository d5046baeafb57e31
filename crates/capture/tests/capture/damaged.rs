// SPDX-License-Identifier: Apache-2.0
//! Truncated, damaged, hostile and foreign files.

use std::io::Read;
use std::path::Path;

use crate::common::{Blocks, Lengths, Sample, pcap, pcapng, read, samples};
use netvm_capture::{CaptureReader, LinkType, OpenError, ReadFault, Timestamp};
use pcap_file::{DataLink, Endianness};
use proptest::prelude::*;

/// One byte more than the blocks of these tests have.
const SIXTY_ONE: Lengths = Lengths { claimed: 61, original: 61 };

fn sample(length: usize) -> Sample {
    Sample { timestamp: Timestamp::new(1, 0), orig_len: length as u32, data: vec![1; length] }
}

/// The error for a file that cannot be opened.
#[track_caller]
fn refusal(bytes: Vec<u8>) -> String {
    read(bytes).unwrap_err().to_string()
}

/// The number of frames read and the error that ended reading.
#[track_caller]
fn fault(bytes: Vec<u8>) -> (usize, String) {
    let (samples, error) = read(bytes).unwrap();
    (samples.len(), error.unwrap().to_string())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    /// Truncates a file anywhere: the complete records are read, and an error is reported unless the cut lies between
    /// records.
    #[test]
    fn truncated_files(samples in samples(6), ng: bool, cut in any::<prop::sample::Index>()) {
        let whole = |count: usize| if ng {
            pcapng(&samples[..count], Endianness::Little)
        } else {
            pcap(&samples[..count], Endianness::Little, true, DataLink::ETHERNET)
        };
        let file = whole(samples.len());
        let ends: Vec<usize> = (0..=samples.len()).map(|count| whole(count).len()).collect();
        let cut = cut.index(file.len() + 1);
        let left = ends.iter().filter(|end| **end <= cut).count();
        match read(file[..cut].to_vec()) {
            Ok((found, error)) => {
                prop_assert_eq!(&found, &samples[..left.saturating_sub(1)]);
                match error {
                    None => prop_assert!(ends.contains(&cut) || (ng && cut == Blocks::new(Endianness::Little).bytes.len())),
                    Some(error) => {
                        prop_assert!(!ends.contains(&cut));
                        let is_truncated = matches!(error.fault, ReadFault::Truncated { .. });
                        prop_assert!(is_truncated, "{}", error);
                        prop_assert_eq!(error.frames, left.saturating_sub(1) as u64);
                        let place = if left == 0 { 28 } else { ends[left - 1] };
                        prop_assert_eq!(error.offset, place as u64);
                    }
                }
            }
            Err(OpenError::Empty { .. }) => prop_assert_eq!(cut, 0),
            Err(OpenError::NotACapture { .. }) => prop_assert!(cut < 4),
            Err(error) => prop_assert!(cut < 28 && error.to_string().contains("the file is truncated"), "{error}"),
        }
    }

    /// No content makes the reader panic or loop forever.
    #[test]
    fn damaged_files(samples in samples(6), ng: bool, big: bool, damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let order = if big { Endianness::Big } else { Endianness::Little };
        let mut file = if ng { pcapng(&samples, order) } else { pcap(&samples, order, false, DataLink::ETHERNET) };
        for (place, value) in damage {
            let place = place.index(file.len());
            file[place] = value;
        }
        let length = file.len();
        if let Ok((found, _)) = read(file) {
            prop_assert!(found.len() <= length / 16);
        }
    }

    #[test]
    fn noise(noise in prop::collection::vec(any::<u8>(), 0..400), start in prop::sample::select(STARTS)) {
        let _ = read([start, &noise].concat());
    }
}

const STARTS: &[&[u8]] = &[
    &[0xa1, 0xb2, 0xc3, 0xd4, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 1],
    &[0xd4, 0xc3, 0xb2, 0xa1],
    &[0x0a, 0x0d, 0x0d, 0x0a],
    &[
        0x0a, 0x0d, 0x0d, 0x0a, 0, 0, 0, 28, 0x1a, 0x2b, 0x3c, 0x4d, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 28,
    ],
    &[],
];

#[test]
fn truncation_errors_name_the_position() {
    let mut file = pcap(&[sample(60), sample(60)], Endianness::Big, false, DataLink::ETHERNET);
    file.truncate(file.len() - 10);
    let text = "test: at byte 100, after 1 complete frames: the file is truncated: 10 bytes are missing";
    assert_eq!(fault(file.clone()), (1, text.to_owned()));
    file.truncate(105);
    assert!(fault(file).1.ends_with("11 bytes are missing"));
    // In a block that the reader skips.
    let mut blocks = Blocks::new(Endianness::Big);
    blocks.ethernet().packet(0, 1, 4, &[1; 4]).block(10, &[0; 100_000]);
    blocks.bytes.truncate(blocks.bytes.len() - 70_000);
    let (frames, text) = fault(blocks.bytes);
    assert_eq!(frames, 1);
    assert!(text.starts_with("test: at byte 84, after 1") && text.contains(" 70000 bytes"), "{text}");
}

#[test]
fn foreign_files_are_refused() {
    let text = |bytes: &[u8]| refusal(bytes.to_vec());
    assert_eq!(text(b""), "test is empty: not a pcap or pcapng file");
    assert_eq!(text(b"abc"), "test is not a pcap or pcapng file");
    assert_eq!(text(b"#!/bin/sh\n"), "test is not a pcap or pcapng file");
    assert!(text(&[0x1f, 0x8b, 8, 0]).ends_with("decompress it with gzip -d"));
    assert!(text(&[0xa1, 0xb2, 0xcd, 0x34]).ends_with("convert it with editcap -F pcap"));
    let mut file = pcap(&[], Endianness::Big, false, DataLink::ETHERNET);
    file[5] = 3;
    assert_eq!(text(&file), "test: at byte 0, after 0 complete frames: unknown format version 3.4");
    let mut blocks = Blocks::new(Endianness::Big);
    blocks.bytes[13] = 2;
    assert!(text(&blocks.bytes).ends_with("unknown format version 2.0"));
    blocks.bytes[8] = 0;
    assert!(text(&blocks.bytes).contains("magic"), "{}", text(&blocks.bytes));
    let error = CaptureReader::open(Path::new("/nonexistent/x.pcap")).unwrap_err();
    assert!(error.to_string().starts_with("cannot open /nonexistent/x.pcap: No such file"), "{error}");
    let error = CaptureReader::open(Path::new("/")).unwrap_err();
    assert!(matches!(error, OpenError::Io { .. }), "{error}");
}

#[test]
fn other_link_types_are_refused() {
    let text = |link| refusal(pcap(&[], Endianness::Little, false, link));
    let hdlc = "cannot read test: its link type is 104 (Cisco HDLC), only Ethernet, Linux cooked and raw IP are supported";
    assert_eq!(text(DataLink::C_HDLC), hdlc);
    assert!(text(DataLink::IEEE802_11).contains("105 (802.11)"));

    let mut blocks = Blocks::new(Endianness::Little);
    blocks.ethernet().interface(127, 0, &[]).packet(0, 1, 60, &[1; 60]);
    let text = refusal(blocks.bytes);
    assert!(
        text.contains("the link type of its interface 1 is 127 (802.11 with radiotap headers), only"),
        "{text}"
    );

    // Reported when it is reached, if packets precede it.
    let mut blocks = Blocks::new(Endianness::Little);
    blocks.ethernet().packet(0, 1, 60, &[1; 60]).interface(104, 0, &[]).packet(0, 1, 60, &[1; 60]);
    let (found, error) = read(blocks.bytes).unwrap();
    assert_eq!(found.len(), 1);
    assert!(matches!(error.unwrap().fault, ReadFault::LinkType { interface: Some(1), link: LinkType(104) }));
}

#[test]
fn implausible_lengths_are_refused() {
    let mut file = pcap(&[sample(60)], Endianness::Little, false, DataLink::ETHERNET);
    file[32..36].copy_from_slice(&u32::MAX.to_le_bytes());
    let text = "test: at byte 24, after 0 complete frames: a length of 4294967295 bytes exceeds the limit of 262144: the file is damaged";
    assert_eq!(fault(file), (0, text.to_owned()));

    let damaged = |damage: &dyn Fn(&mut Blocks)| {
        let mut blocks = Blocks::new(Endianness::Big);
        blocks.ethernet();
        damage(&mut blocks);
        fault(blocks.bytes).1
    };
    let text = damaged(&|blocks| blocks.bytes.extend([0, 0, 0, 6, 0xff, 0xff, 0xff, 0xfc, 0, 0, 0, 0]));
    assert!(text.contains("a length of 4294967292 bytes"), "{text}");
    let text = damaged(&|blocks| blocks.bytes.extend([0, 0, 0, 6, 0, 0, 0, 13, 0, 0, 0, 0]));
    assert!(text.contains("not a multiple of 4"), "{text}");
    let text = damaged(&|blocks| blocks.bytes.extend([0, 0, 0, 10, 0, 0, 0, 8, 0, 0, 0, 0]));
    assert!(text.contains("too short"), "{text}");
    let text = damaged(&|blocks| blocks.bytes.extend([0, 0, 0, 10, 0, 0, 0, 12, 0, 0, 0, 16]));
    assert!(text.contains("don't match"), "{text}");
    let text = damaged(&|blocks| {
        blocks.packet_claiming(0, 1, SIXTY_ONE, &[1; 60]);
    });
    assert!(text.contains("a packet of 61 bytes exceeds the 60 bytes of its block"), "{text}");
    let text = damaged(&|blocks| {
        blocks.packet(0, 1, 300_000, &vec![1; 300_000]);
    });
    assert!(text.contains("a length of 300000 bytes exceeds the limit of 262144"), "{text}");
    let text = damaged(&|blocks| {
        blocks.packet(1, 1, 60, &[1; 60]);
    });
    assert!(text.contains("a packet refers to interface 1, which has no description"), "{text}");
    let text = damaged(&|blocks| {
        blocks.packet(0, u64::MAX, 60, &[1; 60]);
    });
    assert!(text.contains("the timestamp is out of range"), "{text}");
    let text = damaged(&|blocks| {
        blocks.block(6, &[0; 16]);
    });
    assert!(text.contains("too short"), "{text}");
    let text = damaged(&|blocks| {
        blocks.interface(1, 0, &[(1, &[b'x'; 20_000])]);
    });
    assert!(text.contains("bytes exceeds the limit of 16384"), "{text}");
    let text = damaged(&|blocks| {
        for _ in 0..1024 {
            blocks.ethernet();
        }
    });
    assert!(text.contains("more than 1024 interfaces"), "{text}");
}

/// The frames that are read although others are not, and the faults.
#[track_caller]
fn rest(bytes: Vec<u8>) -> (Vec<usize>, Vec<String>) {
    let mut reader = CaptureReader::from_source(Path::new("test"), std::io::Cursor::new(bytes)).unwrap();
    let (mut lengths, mut faults) = (Vec::new(), Vec::new());
    while !reader.is_done() {
        match reader.next_frame() {
            Ok(Some(frame)) => lengths.push(frame.data.len()),
            Ok(None) => {}
            Err(error) => faults.push(error.to_string()),
        }
    }
    (lengths, faults)
}

#[test]
fn frames_after_a_bad_packet_are_read() {
    let mut blocks = Blocks::new(Endianness::Big);
    blocks.ethernet().packet(0, 1, 60, &[1; 60]);
    blocks.packet_claiming(0, 1, SIXTY_ONE, &[1; 60]).packet(7, 1, 60, &[1; 60]).packet(
        0,
        u64::MAX,
        60,
        &[1; 60],
    );
    blocks.packet(0, 1, 600_000, &vec![1; 600_000]).interface(104, 0, &[]).packet(1, 1, 60, &[1; 60]);
    blocks.packet(0, 2, 62, &[1; 62]);
    let (lengths, faults) = rest(blocks.bytes);
    assert_eq!(lengths, [60, 62]);
    let kinds =
        ["exceeds the 60 bytes", "interface 7", "timestamp", "a length of 6000", "Cisco HDLC", "Cisco HDLC"];
    assert_eq!(faults.len(), kinds.len(), "{faults:#?}");
    assert!(faults.iter().zip(kinds).all(|(fault, kind)| fault.contains(kind)), "{faults:#?}");
    assert!(faults[1].contains("after 1 complete frames"), "{}", faults[1]);
    // In pcap, the length of a record alone tells where the next one begins.
    let mut file =
        pcap(&[sample(60), sample(300_000), sample(61)], Endianness::Little, false, DataLink::ETHERNET);
    file[16..20].copy_from_slice(&500_000u32.to_le_bytes());
    let (lengths, faults) = rest(file);
    assert_eq!((lengths, faults.len()), (vec![60, 61], 1));
}

#[test]
fn options_that_nobody_needs_are_not_read() {
    for order in [Endianness::Big, Endianness::Little] {
        let mut blocks = Blocks::new(order);
        // if_macaddr of one byte, if_name in a bad encoding, an if_tsresol of two bytes, and a good one.
        blocks.interface(1, 0, &[(6, &[0]), (2, &[0xff, 0xfe]), (9, &[3, 3]), (9, &[3])]);
        blocks.packet(0, 1_000, 60, &[1; 60]);
        let (samples, error) = read(blocks.bytes).unwrap();
        assert!(error.is_none(), "{error:?}");
        assert_eq!((samples.len(), samples[0].timestamp), (1, Timestamp::new(1, 0)), "milliseconds");
    }
}

/// A disk that fails halfway through the file.
struct Failing(Vec<u8>);

impl Read for Failing {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.0.is_empty() {
            return Err(std::io::Error::other("the disk is on fire"));
        }
        let count = buffer.len().min(self.0.len());
        buffer[..count].copy_from_slice(&self.0[..count]);
        self.0.drain(..count);
        Ok(count)
    }
}

#[test]
fn disk_errors_are_reported() {
    let file = pcap(&[sample(60)], Endianness::Little, false, DataLink::ETHERNET);
    let mut reader = CaptureReader::from_source(Path::new("disk"), Failing(file)).unwrap();
    assert!(reader.next_frame().unwrap().is_some());
    let error = reader.next_frame().unwrap_err().to_string();
    assert_eq!(error, "disk: at byte 100, after 1 complete frames: cannot read: the disk is on fire");
    let error = CaptureReader::from_source(Path::new("disk"), Failing(Vec::new())).unwrap_err();
    assert_eq!(error.to_string(), "cannot open disk: the disk is on fire");
}
