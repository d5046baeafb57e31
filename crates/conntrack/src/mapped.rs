//! [`Mapped`]: what a connection says of its mappings, in a byte, so that it goes along when the connection moves.

/// Which packets from outside reach an end inside by its mapping (RFC 4787 section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Filtering {
    /// Those of the ends that it has sent to.
    #[default]
    AddressAndPort,
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
    const ENDPOINT_INDEPENDENT: u8 = 0x20;
    /// The logarithm of the size of blocks, plus 1.
    const BLOCK: u8 = 0x1f;

    /// As a byte of a record.
    pub(crate) const fn byte(self) -> u8 {
        self.0
    }

    /// Undoes [`Mapped::byte`]; `None` for a byte that it never is.
    pub(crate) const fn of_byte(byte: u8) -> Option<Self> {
        if byte & Self::BLOCK <= u16::BITS as u8 { Some(Self(byte)) } else { None }
    }

    /// Its source has a mapping of a pool with blocks of this size, a power of two, and this filtering.
    pub(crate) const fn with_source(self, block_size: Option<u16>, filtering: Filtering) -> Self {
        let block = match block_size {
            Some(size) => order_of(size) + 1,
            None => 0,
        };
        let filtering = match filtering {
            Filtering::AddressAndPort => 0,
            Filtering::EndpointIndependent => Self::ENDPOINT_INDEPENDENT,
        };
        Self(self.0 & Self::TARGET | Self::SOURCE | filtering | block)
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
        match self.0 & Self::ENDPOINT_INDEPENDENT {
            0 => Filtering::AddressAndPort,
            _ => Filtering::EndpointIndependent,
        }
    }

    /// Ports of the block that the end outside is of.
    pub(crate) const fn block_size(self) -> Option<u16> {
        match self.0 & Self::BLOCK {
            0 => None,
            order => Some(1 << (order - 1)),
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
