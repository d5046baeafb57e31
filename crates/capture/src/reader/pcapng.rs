// SPDX-License-Identifier: Apache-2.0
//! Reads the pcapng format (draft-ietf-opsawg-pcapng).
//!
//! `pcap-file` parses sections and interface descriptions and keeps what later blocks need, but gets only the options
//! that matter for timestamps (`described`): a capture must not be refused for a comment in a bad encoding. This module
//! parses packets itself. It skips all other blocks, of any length, and packets that it cannot read in blocks with a
//! good length.

use pcap_file::Endianness;
use pcap_file::pcapng::blocks::{
    ENHANCED_PACKET_BLOCK, INTERFACE_DESCRIPTION_BLOCK, PACKET_BLOCK, SECTION_HEADER_BLOCK,
    SIMPLE_PACKET_BLOCK,
};
use pcap_file::pcapng::{PcapNgFormatError, PcapNgParseError, PcapNgParser};

use super::Record;
use super::options::{described, number, section};
use super::window::{MAX_BLOCK, Window};
use crate::MAX_FRAME;
use crate::error::ReadFault;
use crate::ethernet::Link;
use crate::format::{Precision, Timestamp};
use crate::link_type::LinkType;

/// Type and length at the start of a block, and the length again at its end.
const HEADER: usize = 8;
const TRAILER: usize = 4;
const MIN_BLOCK: usize = HEADER + TRAILER;
/// Interface descriptions are kept, so these limits bound the memory that a file can make the reader use.
const MAX_INTERFACES: usize = 1024;
const MAX_DESCRIPTION: usize = 16 * 1024;

pub(super) struct Pcapng {
    parser: PcapNgParser,
    /// Time of the last packet, for packets without a timestamp.
    last: Timestamp,
    /// The last fault concerns one block, after which reading can go on.
    resumes: bool,
}

/// Type and length of a block.
struct Block {
    kind: u32,
    length: usize,
}

/// Location of a packet in the body of its block.
struct Packet {
    timestamp: Option<Timestamp>,
    orig_len: u32,
    start: usize,
    length: usize,
    link: Link,
}

impl Pcapng {
    /// Reads the first section header, after its type was checked, and everything up to the first packet.
    pub(super) fn new(window: &mut Window) -> Result<Self, ReadFault> {
        let bytes = window.look(16)?;
        let endianness = section_endianness(bytes)?;
        let length = block_length(bytes, endianness)?;
        let bytes = look_within(window, length, MAX_BLOCK)?;
        let (_, parser) = PcapNgParser::new(&section(bytes, endianness)?)?;
        check_version(&parser)?;
        window.take(length);
        Ok(Self { parser, last: Timestamp::default(), resumes: false })
    }

    /// Reads up to the next packet and returns whether there is one.
    pub(super) fn advance(&mut self, window: &mut Window) -> Result<bool, ReadFault> {
        while let Some(block) = self.peek(window)? {
            match block.kind {
                SECTION_HEADER_BLOCK | INTERFACE_DESCRIPTION_BLOCK => self.describe(window, &block)?,
                ENHANCED_PACKET_BLOCK | SIMPLE_PACKET_BLOCK | PACKET_BLOCK => return Ok(true),
                _ => self.skip(window, &block)?,
            }
        }
        Ok(false)
    }

    /// Whether reading can go on after the last fault.
    pub(super) const fn resumes(&self) -> bool {
        self.resumes
    }

    pub(super) fn next(&mut self, window: &mut Window) -> Result<Option<Record>, ReadFault> {
        self.resumes = false;
        if !self.advance(window)? {
            return Ok(None);
        }
        let Some(block) = self.peek(window)? else { return Ok(None) };
        if block.length > MAX_BLOCK {
            self.resumes = self.skip(window, &block).is_ok();
            return Err(ReadFault::TooLong { length: block.length, limit: MAX_BLOCK });
        }
        let Block { kind, length } = block;
        let bytes = look_within(window, length, MAX_BLOCK)?;
        let (_, block) = self.parser.next_raw_block(bytes)?;
        let packet = match kind {
            SIMPLE_PACKET_BLOCK => self.simple(&block.body),
            _ => self.enhanced(kind, &block.body),
        };
        let packet = packet.and_then(|packet| within(packet, block.body.len()));
        let start = window.take(length).start;
        let packet = packet.inspect_err(|_| self.resumes = true)?;
        let timestamp = packet.timestamp.unwrap_or(self.last);
        self.last = timestamp;
        let start = start + HEADER + packet.start;
        let orig_len = packet.orig_len.max(packet.length as u32);
        Ok(Some(Record { timestamp, orig_len, data: start..start + packet.length, link: packet.link }))
    }

    /// The finest resolution of the interfaces described so far.
    pub(super) fn precision(&self) -> Precision {
        let is_fine = self.parser.interfaces().iter().any(|interface| {
            let resolution = interface.ts_resolution();
            // 2^-19 s is the finest power of two that is not finer than a microsecond.
            resolution.resolution() > if resolution.is_bin() { 19 } else { 6 }
        });
        if is_fine { Precision::Nano } else { Precision::Micro }
    }

    /// Header of the next block; `None` at the end of the file.
    fn peek(&self, window: &mut Window) -> Result<Option<Block>, ReadFault> {
        window.begin();
        let bytes = window.look(MIN_BLOCK)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let Some(header) = bytes.first_chunk::<MIN_BLOCK>() else {
            return Err(ReadFault::Truncated { missing: (MIN_BLOCK - bytes.len()) as u64 });
        };
        let kind = number(self.endianness(), [header[0], header[1], header[2], header[3]]);
        // A new section has its own byte order; its type is the same in both.
        let endianness =
            if kind == SECTION_HEADER_BLOCK { section_endianness(header)? } else { self.endianness() };
        Ok(Some(Block { kind, length: block_length(header, endianness)? }))
    }

    fn endianness(&self) -> Endianness {
        self.parser.section().endianness
    }

    fn describe(&mut self, window: &mut Window, block: &Block) -> Result<(), ReadFault> {
        let is_section = block.kind == SECTION_HEADER_BLOCK;
        if !is_section && self.parser.interfaces().len() == MAX_INTERFACES {
            return Err(ReadFault::Interfaces(MAX_INTERFACES));
        }
        let bytes = look_within(window, block.length, if is_section { MAX_BLOCK } else { MAX_DESCRIPTION })?;
        let plain = if is_section {
            section(bytes, section_endianness(bytes)?)?
        } else {
            described(bytes, self.endianness())?
        };
        self.parser.next_raw_block(&plain)?;
        window.take(block.length);
        if is_section {
            check_version(&self.parser)?;
        } else if let Some((number, interface)) = (0..).zip(self.parser.interfaces()).last() {
            let link = LinkType::from(interface.linktype);
            if Link::of(link).is_none() {
                // Each of its packets has the same fault.
                self.resumes = true;
                return Err(ReadFault::LinkType { interface: Some(number), link });
            }
        }
        Ok(())
    }

    fn skip(&self, window: &mut Window, block: &Block) -> Result<(), ReadFault> {
        let missing = window.skip((block.length - TRAILER) as u64)?;
        if missing > 0 {
            return Err(ReadFault::Truncated { missing: missing + TRAILER as u64 });
        }
        let bytes = look_within(window, TRAILER, MAX_BLOCK)?;
        let trailer = bytes.first_chunk().map_or(0, |bytes| number(self.endianness(), *bytes));
        if trailer as usize != block.length {
            let mismatch = PcapNgFormatError::BlockLengthMismatch(block.length as u32, trailer);
            return Err(PcapNgParseError::from(mismatch).into());
        }
        window.take(TRAILER);
        Ok(())
    }

    /// Parses an enhanced packet block. The obsolete packet block differs only in its 16-bit interface.
    fn enhanced(&self, kind: u32, body: &[u8]) -> Result<Packet, ReadFault> {
        const FIXED: usize = 20;
        let fixed = fixed_part::<FIXED>(body)?;
        let word = |n: usize| number(self.endianness(), [fixed[n], fixed[n + 1], fixed[n + 2], fixed[n + 3]]);
        let interface = match (kind, self.endianness()) {
            (ENHANCED_PACKET_BLOCK, _) => word(0),
            (_, Endianness::Big) => u16::from_be_bytes([fixed[0], fixed[1]]).into(),
            (_, Endianness::Little) => u16::from_le_bytes([fixed[0], fixed[1]]).into(),
        };
        let link = self.link(interface)?;
        let time = self.parser.state().decode_timestamp(interface, word(4), word(8));
        let nanos = u64::try_from(time.map_err(|_| ReadFault::Timestamp)?.as_nanos());
        let timestamp = Some(Timestamp(nanos.map_err(|_| ReadFault::Timestamp)?));
        Ok(Packet { timestamp, orig_len: word(16), start: FIXED, length: word(12) as usize, link })
    }

    /// Parses a simple packet block: of the first interface, truncated to its snap length, without a time.
    fn simple(&self, body: &[u8]) -> Result<Packet, ReadFault> {
        const FIXED: usize = 4;
        let orig_len = number(self.endianness(), *fixed_part::<FIXED>(body)?);
        let interface = self.parser.interfaces().first().ok_or(ReadFault::UnknownInterface(0))?;
        let snaplen = if interface.snaplen == 0 { u32::MAX } else { interface.snaplen };
        let (length, link) = (orig_len.min(snaplen) as usize, self.link(0)?);
        Ok(Packet { timestamp: None, orig_len, start: FIXED, length, link })
    }

    /// The link of an interface.
    fn link(&self, interface: u32) -> Result<Link, ReadFault> {
        let known = self.parser.interfaces().get(interface as usize);
        let link = LinkType::from(known.ok_or(ReadFault::UnknownInterface(interface))?.linktype);
        Link::of(link).ok_or(ReadFault::LinkType { interface: Some(interface), link })
    }
}

/// The packet, if its block of `body` bytes holds it.
fn within(packet: Packet, body: usize) -> Result<Packet, ReadFault> {
    let room = body.saturating_sub(packet.start);
    if packet.length > MAX_FRAME {
        return Err(ReadFault::TooLong { length: packet.length, limit: MAX_FRAME });
    }
    if packet.length > room {
        return Err(ReadFault::PacketLength { claimed: packet.length, room });
    }
    Ok(packet)
}

/// The byte order of the section header at the start of `bytes`, by its byte-order magic.
fn section_endianness(bytes: &[u8]) -> Result<Endianness, ReadFault> {
    let Some([.., a, b, c, d]) = bytes.first_chunk::<12>() else {
        return Err(ReadFault::Truncated { missing: (12 - bytes.len()) as u64 });
    };
    match u32::from_be_bytes([*a, *b, *c, *d]) {
        0x1a2b_3c4d => Ok(Endianness::Big),
        0x4d3c_2b1a => Ok(Endianness::Little),
        magic => Err(PcapNgParseError::from(PcapNgFormatError::InvalidMagicNumber(magic)).into()),
    }
}

fn block_length(bytes: &[u8], endianness: Endianness) -> Result<usize, ReadFault> {
    let Some([_, _, _, _, a, b, c, d]) = bytes.first_chunk::<HEADER>() else {
        return Err(ReadFault::Truncated { missing: (HEADER - bytes.len()) as u64 });
    };
    let length = number(endianness, [*a, *b, *c, *d]) as usize;
    let fault = |fault: PcapNgFormatError| Err(PcapNgParseError::from(fault).into());
    if length < MIN_BLOCK {
        return fault(PcapNgFormatError::BlockTooShort(MIN_BLOCK, length));
    }
    if !length.is_multiple_of(4) {
        return fault(PcapNgFormatError::BlockNotAligned(length));
    }
    Ok(length)
}

/// The next `length` bytes, if within a limit of at most [`MAX_BLOCK`].
fn look_within(window: &mut Window, length: usize, limit: usize) -> Result<&[u8], ReadFault> {
    if length > limit {
        return Err(ReadFault::TooLong { length, limit });
    }
    let bytes = window.look(length)?;
    let missing = length.saturating_sub(bytes.len()) as u64;
    bytes.get(..length).ok_or(ReadFault::Truncated { missing })
}

fn fixed_part<const N: usize>(body: &[u8]) -> Result<&[u8; N], ReadFault> {
    let short =
        || PcapNgParseError::from(PcapNgFormatError::BlockTooShort(MIN_BLOCK + N, MIN_BLOCK + body.len()));
    body.first_chunk().ok_or_else(|| short().into())
}

fn check_version(parser: &PcapNgParser) -> Result<(), ReadFault> {
    let section = parser.section();
    match section.major_version {
        1 => Ok(()),
        major => Err(ReadFault::Version(major, section.minor_version)),
    }
}
