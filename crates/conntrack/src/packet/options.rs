// SPDX-License-Identifier: Apache-2.0
//! Options of TCP headers (RFC 9293 section 3.2).

use std::ops::Range;

/// Padding.
pub(crate) const NOTHING: u8 = 1;
/// The largest segment that its sender receives (RFC 9293 section 3.7.1).
pub(crate) const MSS: u8 = 2;
/// The shift of windows (RFC 7323 section 2.2).
pub(crate) const WINDOW_SCALE: u8 = 3;
/// Selective acknowledgments are permitted (RFC 2018 section 2).
pub(crate) const SACK_PERMITTED: u8 = 4;
/// Selective acknowledgments (RFC 2018 section 3).
pub(crate) const SACK: u8 = 5;
/// A time and an echo (RFC 7323 section 3.2).
pub(crate) const TIMESTAMPS: u8 = 8;

/// An option: its kind, and where its value is.
#[derive(Clone, Debug)]
pub(crate) struct TcpOption {
    pub(crate) kind: u8,
    pub(crate) value: Range<usize>,
}

/// The options in these bytes, which follow the first 20 of a TCP header, without padding. One that does not fit ends
/// them.
pub(crate) fn options(bytes: &[u8]) -> impl Iterator<Item = TcpOption> + '_ {
    const END: u8 = 0;
    let mut at = 0;
    std::iter::from_fn(move || {
        while *bytes.get(at)? == NOTHING {
            at += 1;
        }
        let (kind, length) = (*bytes.get(at)?, usize::from(*bytes.get(at + 1)?));
        let value = at + 2..at + length;
        at += length;
        (kind != END && length >= 2 && at <= bytes.len()).then_some(TcpOption { kind, value })
    })
}

/// The value of the first option of this kind, if it has this length.
pub(crate) fn option<const LENGTH: usize>(bytes: &[u8], kind: u8) -> Option<[u8; LENGTH]> {
    let found = options(bytes).find(|it| it.kind == kind)?;
    bytes.get(found.value)?.try_into().ok()
}
