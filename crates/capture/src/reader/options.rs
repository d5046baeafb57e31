// SPDX-License-Identifier: Apache-2.0
//! Section headers and interface descriptions of pcapng without options, but for those that say what timestamps mean.
//! In: a whole block. Out: a block that `pcap-file` does not refuse for an option that nobody needs, such as a name in
//! a bad encoding.

use pcap_file::Endianness;
use pcap_file::pcapng::{PcapNgFormatError, PcapNgParseError};

use crate::error::ReadFault;

/// Bytes of a section header without options: type, length, magic, version, section length, length.
const SECTION: usize = 28;
/// Bytes of an interface description before its options: type, length, link type, reserved, snap length.
const INTERFACE: usize = 16;
/// Bytes of the length at the end of a block.
const TRAILER: usize = 4;
/// Options that are kept: code and length (`if_tsresol`, `if_tsoffset`).
const KEPT_OPTIONS: [(u16, usize); 2] = [(9, 1), (14, 8)];

/// A section header without options.
pub(super) fn section(block: &[u8], endianness: Endianness) -> Result<Vec<u8>, ReadFault> {
    let fixed = checked(block, SECTION, endianness)?.get(..SECTION - TRAILER).unwrap_or_default();
    Ok(finished(fixed.to_vec(), endianness))
}

/// An interface description with the options that say what timestamps mean, as far as they are well-formed.
pub(super) fn described(block: &[u8], endianness: Endianness) -> Result<Vec<u8>, ReadFault> {
    let block = checked(block, INTERFACE + TRAILER, endianness)?;
    let mut plain = block.get(..INTERFACE).unwrap_or_default().to_vec();
    let mut options = block.get(INTERFACE..block.len() - TRAILER).unwrap_or_default();
    while let Some(([a, b, c, d], rest)) = options.split_first_chunk::<4>() {
        let (code, length) = (short(endianness, [*a, *b]), usize::from(short(endianness, [*c, *d])));
        let padded = length.next_multiple_of(4);
        if code == 0 || rest.len() < length {
            break;
        }
        if KEPT_OPTIONS.contains(&(code, length)) {
            plain.extend([*a, *b, *c, *d]);
            plain.extend(rest.get(..length).unwrap_or_default());
            plain.resize(plain.len() + padded - length, 0);
        }
        options = rest.get(padded..).unwrap_or_default();
    }
    plain.extend([0; 4]);
    Ok(finished(plain, endianness))
}

/// A block of at least `shortest` bytes whose length stands at both ends.
fn checked(block: &[u8], shortest: usize, endianness: Endianness) -> Result<&[u8], ReadFault> {
    let fault = |fault: PcapNgFormatError| Err(PcapNgParseError::from(fault).into());
    if block.len() < shortest {
        return fault(PcapNgFormatError::BlockTooShort(shortest, block.len()));
    }
    let trailer = block.last_chunk().map_or(0, |bytes| number(endianness, *bytes));
    if trailer as usize != block.len() {
        return fault(PcapNgFormatError::BlockLengthMismatch(block.len() as u32, trailer));
    }
    Ok(block)
}

/// The block with its lengths.
fn finished(mut block: Vec<u8>, endianness: Endianness) -> Vec<u8> {
    let length = (block.len() + TRAILER) as u32;
    let bytes = match endianness {
        Endianness::Big => length.to_be_bytes(),
        Endianness::Little => length.to_le_bytes(),
    };
    if let Some(place) = block.get_mut(4..8) {
        place.copy_from_slice(&bytes);
    }
    block.extend(bytes);
    block
}

const fn short(endianness: Endianness, bytes: [u8; 2]) -> u16 {
    match endianness {
        Endianness::Big => u16::from_be_bytes(bytes),
        Endianness::Little => u16::from_le_bytes(bytes),
    }
}

pub(super) fn number(endianness: Endianness, bytes: [u8; 4]) -> u32 {
    match endianness {
        Endianness::Big => u32::from_be_bytes(bytes),
        Endianness::Little => u32::from_le_bytes(bytes),
    }
}
