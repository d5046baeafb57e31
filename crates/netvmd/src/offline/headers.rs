// SPDX-License-Identifier: Apache-2.0
//! Parses the headers of a ClassBench trace: on each line source, destination, source port, destination port and
//! protocol.
//!
//! Numbers are decimal. An address is a 32-bit number (IPv4) or in IPv4 or IPv6 notation. Further columns
//! (`trace_generator` writes two), empty lines and lines that start with `#` are ignored.

use std::net::IpAddr;

use netvm_policy_import::Token;
use netvm_wire::{Address, ConnState, EtherType, FlowKey, Fragment, IpProto, MacAddr, TcpFlags};
use thiserror::Error;

/// A line is not a header. Lines count from 1.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HeaderError {
    /// An unexpected word.
    #[error("line {line}: expected {expected}, found {found}")]
    Word {
        /// Line.
        line: u64,
        /// The expected field.
        expected: &'static str,
        /// The word found.
        found: Token,
    },
    /// Source and destination are of different versions.
    #[error("line {line}: source and destination must both be IPv4 or both IPv6")]
    Versions {
        /// Line.
        line: u64,
    },
}

/// Parses a line; `None` if it is empty or a comment.
pub(crate) fn read(line: u64, text: &[u8]) -> Result<Option<FlowKey>, HeaderError> {
    let mut words = Words { line, text };
    if matches!(words.peek(), None | Some(b'#')) {
        return Ok(None);
    }
    let source = words.address("a source address")?;
    let destination = words.address("a destination address")?;
    let source_port = words.number("a source port (0 to 65535)", u16::MAX.into())?;
    let destination_port = words.number("a destination port (0 to 65535)", u16::MAX.into())?;
    let protocol = words.number("a protocol (0 to 255)", u8::MAX.into())?;
    let ether_type = match (source.is_v4(), destination.is_v4()) {
        (true, true) => EtherType::IPV4,
        (false, false) => EtherType::IPV6,
        _ => return Err(HeaderError::Versions { line }),
    };
    Ok(Some(FlowKey {
        source,
        destination,
        source_mac: MacAddr::ZERO,
        destination_mac: MacAddr::ZERO,
        source_port: source_port as u16,
        destination_port: destination_port as u16,
        ether_type,
        vlan: None,
        inner_vlan: None,
        arp_operation: 0,
        protocol: IpProto(protocol as u8),
        tcp_flags: TcpFlags::empty(),
        dscp: 0,
        icmp_type: 0,
        icmp_code: 0,
        fragment: Fragment::Whole,
        state: ConnState::Untracked,
    }))
}

/// A line, read from left to right.
struct Words<'a> {
    line: u64,
    text: &'a [u8],
}

impl<'a> Words<'a> {
    fn peek(&mut self) -> Option<u8> {
        self.text = self.text.trim_ascii_start();
        self.text.first().copied()
    }

    fn next(&mut self) -> &'a [u8] {
        self.peek();
        let end = self.text.iter().position(u8::is_ascii_whitespace).unwrap_or(self.text.len());
        let (word, rest) = self.text.split_at(end);
        self.text = rest;
        word
    }

    fn number(&mut self, expected: &'static str, most: u32) -> Result<u32, HeaderError> {
        let word = self.next();
        decimal(word).filter(|number| *number <= most).ok_or_else(|| self.not(expected, word))
    }

    fn address(&mut self, expected: &'static str) -> Result<Address, HeaderError> {
        let word = self.next();
        if let Some(bits) = decimal(word) {
            return Ok(Address::from_v4_bits(bits));
        }
        let text = std::str::from_utf8(word).unwrap_or_default();
        let address = text.parse::<IpAddr>().map_err(|_| self.not(expected, word))?;
        Ok(address.into())
    }

    fn not(&self, expected: &'static str, word: &[u8]) -> HeaderError {
        let found = match word {
            [] => Token::EndOfLine,
            word => Token::Word(String::from_utf8_lossy(word).into_owned()),
        };
        HeaderError::Word { line: self.line, expected, found }
    }
}

/// A decimal number of up to 32 bits.
fn decimal(word: &[u8]) -> Option<u32> {
    if word.is_empty() || word.len() > 10 {
        return None;
    }
    let mut number = 0_u64;
    for byte in word {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number = number * 10 + u64::from(digit);
    }
    u32::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(text: &str) -> String {
        read(1, text.as_bytes()).unwrap().unwrap().five_tuple().unwrap().to_string()
    }

    #[test]
    fn addresses_are_numbers_or_in_ip_notation() {
        assert_eq!(tuple("167772161 4294967295 80 65535 6"), "10.0.0.1:80 > 255.255.255.255:65535 tcp");
        assert_eq!(tuple("\t10.0.0.1  0.0.0.0\t0 0 17 3 1\r\n"), "10.0.0.1:0 > 0.0.0.0:0 udp");
        assert_eq!(tuple("2001:db8::1 ::1 1 2 6 extra"), "[2001:db8::1]:1 > [::1]:2 tcp");
    }

    #[test]
    fn lines_without_a_header_are_skipped() {
        for text in ["", "\n", " \t\r\n", "# source destination", "  #"] {
            assert_eq!(read(1, text.as_bytes()), Ok(None));
        }
    }

    #[test]
    fn errors_name_the_field() {
        let says = |text: &str| read(7, text.as_bytes()).unwrap_err().to_string();
        assert_eq!(
            says("1 2 3"),
            "line 7: expected a destination port (0 to 65535), found the end of the line"
        );
        assert_eq!(says("1 2 3 65536 6"), "line 7: expected a destination port (0 to 65535), found `65536`");
        assert_eq!(says("1 2 3 4 tcp"), "line 7: expected a protocol (0 to 255), found `tcp`");
        assert_eq!(says("1 2 3 4 256"), "line 7: expected a protocol (0 to 255), found `256`");
        assert_eq!(says("4294967296 2 3 4 6"), "line 7: expected a source address, found `4294967296`");
        assert_eq!(says("-1 2 3 4 6"), "line 7: expected a source address, found `-1`");
        assert_eq!(says("1 10.0.0 3 4 6"), "line 7: expected a destination address, found `10.0.0`");
        assert_eq!(says("1 ::1 3 4 6"), "line 7: source and destination must both be IPv4 or both IPv6");
        assert!(read(1, b"\xff 1 2 3 4").is_err());
    }
}
