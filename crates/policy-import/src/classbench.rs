// SPDX-License-Identifier: Apache-2.0
//! ClassBench filter sets (Taylor and Turner, "ClassBench: A Packet Classification Benchmark", INFOCOM 2005), as
//! `db_generator` writes them, a rule a line, the first with the highest priority:
//!
//! ```text
//! @SOURCE/LENGTH DESTINATION/LENGTH LOW : HIGH LOW : HIGH PROTOCOL/MASK FLAGS/MASK
//! ```
//!
//! - Addresses are IPv4, or IPv6 as in the sets of classbench-ng; bits beyond the length are ignored. A rule matches
//!   only packets of its version, even if both lengths are 0.
//! - Port ranges are source, then destination, compared as numbers for every protocol.
//! - PROTOCOL/MASK are hexadecimal after `0x`, else decimal: mask 0 means every protocol, 0xFF one, other masks each
//!   protocol with these bits.
//! - FLAGS/MASK, 16 bits, are optional. `db_generator` takes them from seed files of real filters, by protocol. For TCP
//!   the high byte holds the flags: 0x0200/0x1200 is SYN without ACK, 0x1000/0x1000 is ACK. For ICMP it is the type,
//!   and the low byte the code: 0x0303/0xffff is port unreachable. The paper does not define them; under this reading,
//!   published sets hold values that operators use. Headers of five fields have no flags, so they are ignored by
//!   default ([`Flags`]).
//! - Extra numbers (`db_generator -extra`) are ignored with a note.
//! - Blanks and tabs separate; lines may end in CRLF; empty lines and lines that start with `#` are skipped.
//!
//! Each rule line becomes one rule, so a rule's number is its index among them.

use netvm_wire::{IpProto, NetError};
use thiserror::Error;

use super::algebra::{Field, Ranges, prefix_range};
use super::{Imported, ImportedRule, IpVersion, Note, NoteReason, Token};
use netvm_policy::Actions;
use netvm_policy::Masked;
use netvm_policy::Match;

/// Use of the flags column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Flags {
    /// Ignore it: rules have five fields.
    #[default]
    Ignore,
    /// Match TCP flags, and ICMP type and code.
    Match,
}

/// A text is not a ClassBench filter set. Lines and columns count from 1.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ClassBenchError {
    /// An unexpected word.
    #[error("line {line}, column {column}: expected {expected}, found {found}")]
    Syntax {
        /// Line.
        line: u32,
        /// Column, in characters.
        column: u32,
        /// The expected word.
        expected: &'static str,
        /// The word found.
        found: Token,
    },
    /// An invalid prefix length.
    #[error("line {line}, column {column}: {source}")]
    Prefix {
        /// Line.
        line: u32,
        /// Column, in characters.
        column: u32,
        /// The error.
        source: NetError,
    },
    /// Source and destination are of different versions.
    #[error("line {line}: source and destination must both be IPv4 or both IPv6")]
    Versions {
        /// Line.
        line: u32,
    },
    /// An inverted range.
    #[error("line {line}, column {column}: the range {first} : {last} is empty: write {last} : {first}")]
    Backwards {
        /// Line.
        line: u32,
        /// Column, in characters.
        column: u32,
        /// Its start.
        first: u16,
        /// Its end.
        last: u16,
    },
}

/// Parses a filter set; every rule gets `actions`.
///
/// # Errors
/// The first malformed line.
pub fn parse(text: &str, actions: Actions, flags: Flags) -> Result<Imported, ClassBenchError> {
    let mut imported = Imported::default();
    let mut seen = Seen::default();
    for (line, text) in (1..).zip(text.lines()) {
        let words = text.trim();
        if words.is_empty() || words.starts_with('#') {
            continue;
        }
        let matches = Line { line, text, at: 0 }.rule(flags, &mut seen)?;
        imported.rules.push(ImportedRule { line, matches, actions, ..ImportedRule::default() });
    }
    imported.notes = seen.notes();
    Ok(imported)
}

/// First line and count of ignored columns.
#[derive(Default)]
struct Seen([(u32, usize); 3]);

impl Seen {
    const REASONS: [(NoteReason, &str); 3] = [
        (NoteReason::FlagsIgnored, "flags"),
        (NoteReason::FlagsUnknown, "flags of another protocol than TCP and ICMP"),
        (NoteReason::ExtraFields, "extra fields"),
    ];

    fn add(&mut self, why: NoteReason, line: u32) {
        let kinds = self.0.iter_mut().zip(Self::REASONS);
        for ((first, count), _) in kinds.filter(|(_, (kind, _))| *kind == why) {
            *first = if *count == 0 { line } else { *first };
            *count += 1;
        }
    }

    fn notes(self) -> Vec<Note> {
        let kinds = self.0.into_iter().zip(Self::REASONS).filter(|((_, count), _)| *count > 0);
        let note = |((line, count), (why, what))| Note::new(line, format!("{what} ({count} rules)"), why);
        kinds.map(note).collect()
    }
}

/// A line, read from left to right.
struct Line<'a> {
    line: u32,
    text: &'a str,
    at: usize,
}

impl<'a> Line<'a> {
    fn rule(mut self, flags: Flags, seen: &mut Seen) -> Result<Match, ClassBenchError> {
        if !self.skip("@") {
            return Err(self.expected("`@` and the source"));
        }
        let (version, source) = self.prefix("the source as ADDRESS/LENGTH")?;
        let (other, destination) = self.prefix("the destination as ADDRESS/LENGTH")?;
        if version != other {
            return Err(ClassBenchError::Versions { line: self.line });
        }
        let source_ports = self.ports()?;
        let destination_ports = self.ports()?;
        let protocol = self.masked(0xff, "the protocol as 0xVV/0xMM")?;
        let mut matches = Match { ether_type: vec![version.ether_type()], ..Match::default() };
        Field::Source(version).set(&mut matches, &source);
        Field::Destination(version).set(&mut matches, &destination);
        Field::SourcePorts.set(&mut matches, &source_ports);
        Field::DestinationPorts.set(&mut matches, &destination_ports);
        let protocols = with_bits(protocol.0 as u8, protocol.1 as u8);
        Field::Protocol.set(&mut matches, &protocols);
        if self.peek().is_none() {
            return Ok(matches);
        }
        let (value, mask) = self.masked(0xffff, "the flags as 0xVVVV/0xMMMM")?;
        if mask != 0 {
            match flags {
                Flags::Ignore => seen.add(NoteReason::FlagsIgnored, self.line),
                Flags::Match if !set_flags(&mut matches, value, mask) => {
                    seen.add(NoteReason::FlagsUnknown, self.line);
                }
                Flags::Match => {}
            }
        }
        if self.peek().is_some() {
            while self.peek().is_some() {
                self.number(u32::MAX, "an extra number")?;
            }
            seen.add(NoteReason::ExtraFields, self.line);
        }
        Ok(matches)
    }

    /// The rest, from the next word on.
    fn rest(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        let word = rest.trim_start();
        self.at += rest.len() - word.len();
        word
    }

    fn peek(&mut self) -> Option<char> {
        self.rest().chars().next()
    }

    fn skip(&mut self, sign: &str) -> bool {
        let found = self.rest().starts_with(sign);
        self.at += if found { sign.len() } else { 0 };
        found
    }

    fn prefix(&mut self, expected: &'static str) -> Result<(IpVersion, Ranges), ClassBenchError> {
        let column = self.column();
        let word = self.rest().split_whitespace().next().unwrap_or_default();
        let address_and_length = word.split_once('/').and_then(|(address, length)| {
            let digits = length.bytes().all(|byte| byte.is_ascii_digit());
            Some((address.parse().ok()?, length.parse::<u8>().ok().filter(|_| digits)?))
        });
        let Some((address, length)) = address_and_length else { return Err(self.expected(expected)) };
        let (version, value) = IpVersion::split(address);
        if length > version.bits() {
            let family = if version == IpVersion::V4 { "IPv4" } else { "IPv6" };
            let source = NetError::Length { length, family, max: version.bits() };
            return Err(ClassBenchError::Prefix { line: self.line, column, source });
        }
        self.at += word.len();
        let (first, last) = prefix_range(value, length, version.bits());
        Ok((version, Ranges::one(first, last)))
    }

    fn ports(&mut self) -> Result<Ranges, ClassBenchError> {
        let column = {
            self.rest();
            self.column()
        };
        let first = self.number(0xffff, "a range of ports as LOW : HIGH")? as u16;
        if !self.skip(":") {
            return Err(self.expected("`:` and the highest port"));
        }
        let last = self.number(0xffff, "the highest port")? as u16;
        if first > last {
            return Err(ClassBenchError::Backwards { line: self.line, column, first, last });
        }
        Ok(Ranges::one(first.into(), last.into()))
    }

    fn masked(&mut self, most: u32, expected: &'static str) -> Result<(u32, u32), ClassBenchError> {
        let value = self.number(most, expected)?;
        if !self.skip("/") {
            return Err(self.expected("`/` and a mask"));
        }
        Ok((value, self.number(most, "a mask")?))
    }

    /// A number, hexadecimal after `0x`.
    fn number(&mut self, most: u32, expected: &'static str) -> Result<u32, ClassBenchError> {
        let rest = self.rest();
        let hex = rest.strip_prefix("0x").or_else(|| rest.strip_prefix("0X"));
        let (digits, radix) = hex.map_or((rest, 10), |digits| (digits, 16));
        let digits = &digits[..digits.find(|sign: char| !sign.is_digit(radix)).unwrap_or(digits.len())];
        match u32::from_str_radix(digits, radix) {
            Ok(number) if number <= most => {
                self.at += digits.len() + if radix == 16 { 2 } else { 0 };
                Ok(number)
            }
            _ => Err(self.expected(expected)),
        }
    }

    /// Column of the next word.
    fn column(&mut self) -> u32 {
        self.rest();
        let before = &self.text[..self.at];
        before.chars().count() as u32 + 1
    }

    fn expected(&mut self, expected: &'static str) -> ClassBenchError {
        let word = self.rest().split_whitespace().next();
        let found = Token::of(word);
        ClassBenchError::Syntax { line: self.line, column: self.column(), expected, found }
    }
}

/// The bytes whose bits in the mask are those of `value`.
fn with_bits(value: u8, mask: u8) -> Ranges {
    let fits = |byte: &u8| byte & mask == value & mask;
    Ranges::union((0..=u8::MAX).filter(fits).map(|byte| (byte.into(), byte.into())))
}

/// Adds the flags to the match; false if the protocol has none or the mask has other bits.
fn set_flags(matches: &mut Match, value: u32, mask: u32) -> bool {
    let [value_high, value_low] = (value as u16).to_be_bytes();
    let [mask_high, mask_low] = (mask as u16).to_be_bytes();
    match matches.protocol[..] {
        [IpProto::TCP] if mask_low == 0 => {
            matches.tcp_flags = Some(Masked::<u8>::new(value_high, mask_high));
            true
        }
        [IpProto::ICMP | IpProto::ICMPV6] => {
            Field::IcmpType.set(matches, &with_bits(value_high, mask_high));
            Field::IcmpCode.set(matches, &with_bits(value_low, mask_low));
            true
        }
        _ => false,
    }
}
