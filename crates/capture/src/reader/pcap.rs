// SPDX-License-Identifier: Apache-2.0
//! Reads the libpcap format (draft-ietf-opsawg-pcap).

use pcap_file::Endianness;
use pcap_file::pcap::{PcapHeader, PcapParseError, PcapParser, PcapTsResolution};

use super::Record;
use super::window::Window;
use crate::MAX_FRAME;
use crate::error::ReadFault;
use crate::ethernet::Link;
use crate::format::{Precision, Timestamp};
use crate::link_type::LinkType;

pub(super) const HEADER: usize = 24;
const RECORD_HEADER: usize = 16;

/// The longest record that is skipped; a longer one is damage.
const MAX_SKIPPED: usize = 64 << 20;

pub(super) struct Pcap {
    parser: PcapParser,
    link: Link,
    /// The last fault concerns one record, after which reading can go on.
    resumes: bool,
}

impl Pcap {
    /// Reads the file header, after its magic number was checked.
    pub(super) fn new(window: &mut Window) -> Result<Self, ReadFault> {
        let bytes = window.look(HEADER)?;
        let Ok((_, parser)) = PcapParser::new(bytes) else {
            return Err(ReadFault::Truncated { missing: HEADER.saturating_sub(bytes.len()) as u64 });
        };
        let PcapHeader { version_major, version_minor, datalink, .. } = parser.header();
        // Before version 2.3, of 1993, the two lengths of a record were swapped.
        if version_major != 2 || version_minor < 3 {
            return Err(ReadFault::Version(version_major, version_minor));
        }
        let link = LinkType::from(datalink);
        let link = Link::of(link).ok_or(ReadFault::LinkType { interface: None, link })?;
        window.take(HEADER);
        Ok(Self { parser, link, resumes: false })
    }

    pub(super) fn precision(&self) -> Precision {
        match self.parser.header().ts_resolution {
            PcapTsResolution::MicroSecond => Precision::Micro,
            PcapTsResolution::NanoSecond => Precision::Nano,
        }
    }

    /// Whether reading can go on after the last fault.
    pub(super) const fn resumes(&self) -> bool {
        self.resumes
    }

    pub(super) fn next(&mut self, window: &mut Window) -> Result<Option<Record>, ReadFault> {
        window.begin();
        let bytes = window.look(RECORD_HEADER)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let Some([.., a, b, c, d, _, _, _, _]) = bytes.first_chunk::<RECORD_HEADER>() else {
            return Err(ReadFault::Truncated { missing: (RECORD_HEADER - bytes.len()) as u64 });
        };
        let length = match self.parser.header().endianness {
            Endianness::Big => u32::from_be_bytes([*a, *b, *c, *d]),
            Endianness::Little => u32::from_le_bytes([*a, *b, *c, *d]),
        } as usize;
        self.resumes = false;
        if length > MAX_FRAME {
            let fault = ReadFault::TooLong { length, limit: MAX_FRAME };
            let is_plausible = length <= MAX_SKIPPED && length <= self.parser.header().snaplen as usize;
            if is_plausible && window.skip((RECORD_HEADER + length) as u64)? == 0 {
                self.resumes = true;
            }
            return Err(fault);
        }
        let whole = RECORD_HEADER + length;
        let bytes = window.look(whole)?;
        let record = match self.parser.next_raw_packet(bytes) {
            Ok((_, record)) => record,
            Err(PcapParseError::IncompleteBuffer(..) | PcapParseError::Validation(_)) => {
                return Err(ReadFault::Truncated { missing: whole.saturating_sub(bytes.len()) as u64 });
            }
        };
        // A fraction of a second or more is invalid, but the time is unambiguous.
        let fraction = match self.precision() {
            Precision::Micro => u64::from(record.ts_frac) * 1000,
            Precision::Nano => u64::from(record.ts_frac),
        };
        let timestamp = Timestamp(Timestamp::new(record.ts_sec, 0).0 + fraction);
        let orig_len = record.orig_len.max(record.incl_len);
        let range = window.take(whole);
        let data = range.start + RECORD_HEADER..range.end;
        Ok(Some(Record { timestamp, orig_len, data, link: self.link }))
    }
}
