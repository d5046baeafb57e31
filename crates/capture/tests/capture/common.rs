// SPDX-License-Identifier: Apache-2.0
//! Builds captures for tests without this crate's code.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::borrow::Cow;
use std::io::Cursor;
use std::path::Path;

use netvm_capture::{CaptureReader, OpenError, ReadError, Timestamp};
use pcap_file::pcap::{PcapHeader, PcapTsResolution, PcapWriter, RawPcapPacket};
use pcap_file::{DataLink, Endianness};
use proptest::prelude::*;

/// A frame as written or read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    pub timestamp: Timestamp,
    pub orig_len: u32,
    pub data: Vec<u8>,
}

/// Frames with times that pcap can hold.
pub fn samples(most: usize) -> impl Strategy<Value = Vec<Sample>> {
    let length = prop_oneof![8 => 0usize..100, 1 => 1400usize..9100];
    let data = length.prop_flat_map(|length| prop::collection::vec(any::<u8>(), length));
    let sample =
        (any::<u32>(), 0u32..1_000_000_000, data, 0u32..10_000).prop_map(|(seconds, nanos, data, cut)| {
            Sample { timestamp: Timestamp::new(seconds, nanos), orig_len: data.len() as u32 + cut, data }
        });
    prop::collection::vec(sample, 0..most)
}

/// The frames of a capture, and the error that ended it early.
pub fn read(bytes: Vec<u8>) -> Result<(Vec<Sample>, Option<ReadError>), OpenError> {
    let mut reader = CaptureReader::from_source(Path::new("test"), Cursor::new(bytes))?;
    let mut samples = Vec::new();
    loop {
        match reader.next_frame() {
            Ok(Some(frame)) => samples.push(Sample {
                timestamp: frame.timestamp,
                orig_len: frame.orig_len,
                data: frame.data.to_owned(),
            }),
            Ok(None) => return Ok((samples, None)),
            Err(error) => {
                let is_done = reader.is_done();
                assert!(!is_done || matches!(reader.next_frame(), Ok(None)), "nothing follows the end");
                return Ok((samples, Some(error)));
            }
        }
    }
}

/// Builds a pcap file.
pub fn pcap(samples: &[Sample], endianness: Endianness, nano: bool, datalink: DataLink) -> Vec<u8> {
    let ts_resolution = if nano { PcapTsResolution::NanoSecond } else { PcapTsResolution::MicroSecond };
    let header = PcapHeader { endianness, ts_resolution, datalink, ..PcapHeader::default() };
    let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
    for sample in samples {
        let nanos = sample.timestamp.subsec_nanos();
        let packet = RawPcapPacket {
            ts_sec: sample.timestamp.seconds() as u32,
            ts_frac: if nano { nanos } else { nanos / 1000 },
            incl_len: sample.data.len() as u32,
            orig_len: sample.orig_len,
            data: Cow::Borrowed(&sample.data),
        };
        writer.write_raw_packet(&packet).unwrap();
    }
    writer.into_inner()
}

/// The lengths in an enhanced packet block.
#[derive(Clone, Copy)]
pub struct Lengths {
    /// Of the data that follow.
    pub claimed: u32,
    /// Of the packet on the wire.
    pub original: u32,
}

/// Builds pcapng blocks byte by byte, so that tests can make them wrong.
pub struct Blocks {
    pub bytes: Vec<u8>,
    endianness: Endianness,
}

impl Blocks {
    /// A file with a section header.
    pub fn new(endianness: Endianness) -> Self {
        let mut blocks = Self { bytes: Vec::new(), endianness };
        blocks.section(endianness);
        blocks
    }

    pub fn u16(&self, value: u16) -> [u8; 2] {
        if self.endianness.is_big() { value.to_be_bytes() } else { value.to_le_bytes() }
    }

    pub fn u32(&self, value: u32) -> [u8; 4] {
        if self.endianness.is_big() { value.to_be_bytes() } else { value.to_le_bytes() }
    }

    /// Adds any block and pads `body`.
    pub fn block(&mut self, kind: u32, body: &[u8]) -> &mut Self {
        let padding = body.len().next_multiple_of(4) - body.len();
        let length = (body.len() + padding + 12) as u32;
        let (kind, length) = (self.u32(kind), self.u32(length));
        self.bytes.extend([&kind[..], &length, body, &[0; 3][..padding], &length].concat());
        self
    }

    /// Adds a section header.
    pub fn section(&mut self, endianness: Endianness) -> &mut Self {
        self.endianness = endianness;
        let body = [&self.u32(0x1a2b_3c4d)[..], &self.u16(1), &self.u16(0), &[0xff; 8]].concat();
        self.block(0x0a0d_0d0a, &body)
    }

    /// Adds an interface description; options are code and value.
    pub fn interface(&mut self, link: u16, snaplen: u32, options: &[(u16, &[u8])]) -> &mut Self {
        let mut body = [&self.u16(link)[..], &[0, 0], &self.u32(snaplen)].concat();
        for (code, value) in options {
            body.extend([&self.u16(*code)[..], &self.u16(value.len() as u16), value].concat());
            body.resize(body.len().next_multiple_of(4), 0);
        }
        if !options.is_empty() {
            body.extend([0; 4]);
        }
        self.block(1, &body)
    }

    /// Adds an Ethernet interface with the default resolution.
    pub fn ethernet(&mut self) -> &mut Self {
        self.interface(1, 0, &[])
    }

    /// Adds an enhanced packet block.
    pub fn packet(&mut self, interface: u32, time: u64, orig_len: u32, data: &[u8]) -> &mut Self {
        let claimed = data.len() as u32;
        self.packet_claiming(interface, time, Lengths { claimed, original: orig_len }, data)
    }

    /// Adds an enhanced packet block whose captured length differs from its data.
    pub fn packet_claiming(&mut self, interface: u32, time: u64, lengths: Lengths, data: &[u8]) -> &mut Self {
        let words = [interface, (time >> 32) as u32, time as u32, lengths.claimed, lengths.original];
        let fixed: Vec<u8> = words.iter().flat_map(|word| self.u32(*word)).collect();
        self.block(6, &[&fixed, data].concat())
    }
}

/// Builds a pcapng file with one interface that counts nanoseconds.
pub fn pcapng(samples: &[Sample], endianness: Endianness) -> Vec<u8> {
    let mut blocks = Blocks::new(endianness);
    blocks.interface(1, 0, &[(9, &[9])]);
    for sample in samples {
        blocks.packet(0, sample.timestamp.as_nanos(), sample.orig_len, &sample.data);
    }
    blocks.bytes
}
