// SPDX-License-Identifier: Apache-2.0
//! [`Mapped`]: what a connection says of its mappings, in a byte, so that it goes along when the connection moves.

/// Which packets from outside reach an end inside by its mapping (RFC 4787 section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Filtering {
    /// Those of the ends that it has sent to.
    #[default]
    AddressAndPort,
    /// Those of the addresses that they have sent to, from any port.
    AddressDependent,
    /// All.
    EndpointIndependent,
}

/// Whether source and target have mappings, and what these are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mapped(u8);

impl Mapped {
    /// It has none.
    pub(crate) const NONE: Self = Self(0);

    const SOURCE: u8 = 0x80;
    const TARGET: u8 = 0x40;
    /// With filtering by address and port, and without filtering: the order of blocks, which is 0 without blocks, and
    /// else the logarithm of their size, plus 1.
    const ORDER: u8 = 0x1f;
    const ENDPOINT_INDEPENDENT: u8 = 0x20;
    /// With filtering by address: this and the order, so that 5 bits are enough; from [`Self::WRAPS`] on in the values
    /// that are left with [`Self::ENDPOINT_INDEPENDENT`].
    const BY_ADDRESS: u8 = Self::ORDERS;
    /// How many orders there are.
    const ORDERS: u8 = u16::BITS as u8 + 1;
    /// The first order that is not beside the others.
    const WRAPS: u8 = Self::ORDER + 1 - Self::BY_ADDRESS;

    /// As a byte of a record.
    pub(crate) const fn byte(self) -> u8 {
        self.0
    }

    /// Undoes [`Mapped::byte`]; `None` for a byte that it never is.
    pub(crate) const fn of_byte(byte: u8) -> Option<Self> {
        if Self(byte).order() < Self::ORDERS { Some(Self(byte)) } else { None }
    }

    /// Its source has a mapping of a pool with blocks of this size, a power of two, and this filtering.
    pub(crate) const fn with_source(self, block_size: Option<u16>, filtering: Filtering) -> Self {
        let order = match block_size {
            Some(size) => order_of(size) + 1,
            None => 0,
        };
        let kind = match filtering {
            Filtering::AddressAndPort => order,
            Filtering::EndpointIndependent => Self::ENDPOINT_INDEPENDENT | order,
            Filtering::AddressDependent if order < Self::WRAPS => Self::BY_ADDRESS + order,
            Filtering::AddressDependent => {
                Self::ENDPOINT_INDEPENDENT | (Self::BY_ADDRESS + order - Self::WRAPS)
            }
        };
        Self(self.0 & Self::TARGET | Self::SOURCE | kind)
    }

    /// It leads to its target by a mapping of this kind of another connection, which lasts as long as this one.
    pub(crate) const fn with_target(self, kind: Self) -> Self {
        Self(self.0 | Self::TARGET | kind.kind().0)
    }

    /// Without whose mapping it is.
    pub(crate) const fn kind(self) -> Self {
        Self(self.0 & !(Self::SOURCE | Self::TARGET))
    }

    pub(crate) const fn is_any(self) -> bool {
        self.has_source() || self.has_target()
    }

    pub(crate) const fn has_source(self) -> bool {
        self.0 & Self::SOURCE != 0
    }

    pub(crate) const fn has_target(self) -> bool {
        self.0 & Self::TARGET != 0
    }

    pub(crate) const fn filtering(self) -> Filtering {
        match (self.is_by_address(), self.0 & Self::ENDPOINT_INDEPENDENT) {
            (true, _) => Filtering::AddressDependent,
            (false, 0) => Filtering::AddressAndPort,
            (false, _) => Filtering::EndpointIndependent,
        }
    }

    /// Ports of the block that the end outside is of.
    pub(crate) const fn block_size(self) -> Option<u16> {
        match self.order() {
            0 => None,
            order => Some(1 << (order - 1)),
        }
    }

    const fn is_by_address(self) -> bool {
        self.0 & Self::ORDER >= Self::BY_ADDRESS
    }

    const fn order(self) -> u8 {
        match (self.is_by_address(), self.0 & Self::ENDPOINT_INDEPENDENT) {
            (false, _) => self.0 & Self::ORDER,
            (true, 0) => (self.0 & Self::ORDER) - Self::BY_ADDRESS,
            (true, _) => (self.0 & Self::ORDER) - Self::BY_ADDRESS + Self::WRAPS,
        }
    }
}

/// The logarithm of a size, rounded down.
const fn order_of(size: u16) -> u8 {
    match size.checked_ilog2() {
        Some(order) => order as u8,
        None => 0,
    }
}

/// The largest power of two that is not above a size.
pub(crate) const fn block_size(size: u16) -> u16 {
    1 << order_of(size)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_byte_says_size_and_filtering() {
        let mut bytes = BTreeSet::new();
        let sizes = [None].into_iter().chain((0..16).map(|order| Some(1u16 << order)));
        for size in sizes {
            for filtering in
                [Filtering::AddressAndPort, Filtering::AddressDependent, Filtering::EndpointIndependent]
            {
                let mapped = Mapped::NONE.with_source(size, filtering);
                assert_eq!((mapped.block_size(), mapped.filtering()), (size, filtering));
                assert_eq!(Mapped::of_byte(mapped.byte()), Some(mapped));
                assert!(mapped.has_source() && !mapped.has_target());
                let target = Mapped::NONE.with_target(mapped);
                assert_eq!((target.block_size(), target.filtering()), (size, filtering));
                bytes.insert(mapped.byte());
            }
        }
        let known = (0x80..0xc0).filter(|byte| Mapped::of_byte(*byte).is_some());
        assert_eq!(known.collect::<BTreeSet<u8>>(), bytes, "no other byte means anything");
    }
}
