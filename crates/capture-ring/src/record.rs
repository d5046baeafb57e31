// SPDX-License-Identifier: Apache-2.0
//! A captured packet, as the ring carries it.
//!
//! ```text
//!  byte 0        4        8              16       20      22     24    25    26      27      28        30    32
//!       ┌────────┬────────┬──────────────┬────────┬───────┬──────┬─────┬─────┬───────┬───────┬─────────┬─────┬────────
//!       │ size   │captured│ cycles       │original│ inter-│chain │flags│ hop │verdict│reason │ argument│ from│ packet
//!       │ of all │ bytes  │              │ length │ face  │      │     │     │       │       │         │     │ bytes …
//!       └────────┴────────┴──────────────┴────────┴───────┴──────┴─────┴─────┴───────┴───────┴─────────┴─────┴────────
//! ```
//!
//! In the byte order of the machine, as both sides run on it. `size` is a multiple of 8. The low bits of `flags` are
//! the direction; the highest one says that `from` is a role and no port.

/// No chain, argument or port.
pub const NONE_U16: u16 = u16::MAX;
/// No hop, verdict or drop reason.
pub const NONE_U8: u8 = u8::MAX;

/// Bytes before those of the packet.
pub(crate) const HEADER: usize = 32;

/// The direction in which a packet passes its capture point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Direction {
    /// It stays there: it is dropped.
    #[default]
    None = 0,
    /// Into the engine from a port, into an NF, into a router.
    In = 1,
    /// Out of the engine by a port, out of an NF, out of a router.
    Out = 2,
    /// Out of a router, to its kernel.
    ToKernel = 3,
    /// Into a router, from its kernel.
    FromKernel = 4,
}

impl Direction {
    const fn from_raw(raw: u8) -> Self {
        match raw {
            1 => Self::In,
            2 => Self::Out,
            3 => Self::ToKernel,
            4 => Self::FromKernel,
            _ => Self::None,
        }
    }
}

/// Where a packet comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Origin {
    /// It is not known.
    #[default]
    Unknown,
    /// It came in by the port with this number.
    Port(u16),
    /// An NF of the role with this number has made it.
    Nf(u16),
}

/// The flag of a packet that an NF has made.
const MADE: u8 = 1 << 7;

impl Origin {
    /// Its flag and its number.
    #[inline(always)]
    const fn to_raw(self) -> (u8, u16) {
        match self {
            Self::Unknown => (0, NONE_U16),
            Self::Port(port) => (0, port),
            Self::Nf(role) => (MADE, role),
        }
    }

    const fn from_raw(flags: u8, number: u16) -> Self {
        match (flags & MADE, number) {
            (0, NONE_U16) => Self::Unknown,
            (0, port) => Self::Port(port),
            (_, role) => Self::Nf(role),
        }
    }
}

/// What is known of a captured packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// The worker's cycle counter when its burst was captured.
    pub cycles: u64,
    /// Bytes of the whole packet.
    pub original: u32,
    /// Number of the interface in the capture.
    pub interface: u16,
    /// Number of the chain, or [`NONE_U16`].
    pub chain: u16,
    /// The direction in which it passes.
    pub direction: Direction,
    /// Position in the chain, or [`NONE_U8`].
    pub hop: u8,
    /// The NF's verdict as descriptors carry it, or [`NONE_U8`].
    pub verdict: u8,
    /// Number of the drop reason, or [`NONE_U8`].
    pub reason: u8,
    /// The verdict's argument: a port, a role or a chain; or [`NONE_U16`].
    pub argument: u16,
    /// Where the packet comes from.
    pub origin: Origin,
}

impl Record {
    /// A packet at an interface, of which nothing else is known.
    #[must_use]
    pub const fn at(interface: u16, direction: Direction) -> Self {
        Self {
            cycles: 0,
            original: 0,
            interface,
            chain: NONE_U16,
            direction,
            hop: NONE_U8,
            verdict: NONE_U8,
            reason: NONE_U8,
            argument: NONE_U16,
            origin: Origin::Unknown,
        }
    }

    /// The same without what differs from packet to packet: packets that are equal in this share a description.
    #[must_use]
    pub const fn kind(self) -> Self {
        Self { cycles: 0, original: 0, ..self }
    }

    /// The header of a record with so many bytes of the packet.
    #[inline(always)]
    pub(crate) fn to_bytes(self, size: u32, captured: u32) -> [u64; HEADER / 8] {
        let (made, from) = self.origin.to_raw();
        [
            u64::from(size) | u64::from(captured) << 32,
            self.cycles,
            u64::from(self.original) | u64::from(self.interface) << 32 | u64::from(self.chain) << 48,
            u64::from(self.direction as u8 | made)
                | u64::from(self.hop) << 8
                | u64::from(self.verdict) << 16
                | u64::from(self.reason) << 24
                | u64::from(self.argument) << 32
                | u64::from(from) << 48,
        ]
    }

    /// A header: size, captured bytes and the record.
    #[inline(always)]
    pub(crate) const fn from_bytes(words: [u64; HEADER / 8]) -> (u32, u32, Self) {
        let [first, cycles, third, fourth] = words;
        let record = Self {
            cycles,
            original: third as u32,
            interface: (third >> 32) as u16,
            chain: (third >> 48) as u16,
            direction: Direction::from_raw(fourth as u8 & !MADE),
            hop: (fourth >> 8) as u8,
            verdict: (fourth >> 16) as u8,
            reason: (fourth >> 24) as u8,
            argument: (fourth >> 32) as u16,
            origin: Origin::from_raw(fourth as u8, (fourth >> 48) as u16),
        };
        (first as u32, (first >> 32) as u32, record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_its_header() {
        let record = Record {
            cycles: u64::MAX - 5,
            original: 70_000,
            interface: 513,
            chain: 255,
            direction: Direction::ToKernel,
            hop: 15,
            verdict: 3,
            reason: 31,
            argument: 0xabcd,
            origin: Origin::Port(7),
        };
        for origin in [Origin::Unknown, Origin::Port(7), Origin::Nf(0), Origin::Nf(NONE_U16)] {
            let record = Record { origin, ..record };
            assert_eq!(Record::from_bytes(record.to_bytes(96, 64)), (96, 64, record));
        }
        let bare = Record::at(0, Direction::In);
        assert_eq!(Record::from_bytes(bare.to_bytes(32, 0)), (32, 0, bare));
    }
}
