//! Work that a driver leaves to the card, as its last context descriptor says (SDM 3.3.6).

/// A checksum to be computed: over the bytes from `from` to `end` (`None`: all), stored at `at`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// First byte that is summed.
    pub from: u16,
    /// Where the checksum is.
    pub at: u16,
    /// Last byte that is summed.
    pub end: Option<u16>,
}

/// Context of the last context descriptor.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TxContext {
    pub(crate) ip: Sum,
    pub(crate) transport: Sum,
    pub(crate) segment: u16,
    pub(crate) tcp: bool,
}
