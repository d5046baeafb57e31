// SPDX-License-Identifier: Apache-2.0
//! Ranges of TCP, UDP and SCTP ports.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A non-empty range of ports, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRange {
    first: u16,
    last: u16,
}

/// Why a text is not a port range.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParsePortRangeError {
    /// The text is neither a port nor two.
    #[error("`{0}` is not a port or a range of ports: write 80 or 1024-65535")]
    Syntax(String),
    /// The ends are in the wrong order.
    #[error("the range {0}-{1} is empty: write {1}-{0}")]
    Backwards(u16, u16),
}

impl PortRange {
    /// Every port.
    pub const ANY: Self = Self { first: 0, last: u16::MAX };

    /// The range from `first` to `last`; `None` if empty.
    #[must_use]
    pub const fn new(first: u16, last: u16) -> Option<Self> {
        if first <= last { Some(Self { first, last }) } else { None }
    }

    /// One port.
    #[must_use]
    pub const fn single(port: u16) -> Self {
        Self { first: port, last: port }
    }

    /// Lowest port.
    #[must_use]
    pub const fn first(self) -> u16 {
        self.first
    }

    /// Highest port.
    #[must_use]
    pub const fn last(self) -> u16 {
        self.last
    }

    /// Whether the range contains the port.
    #[inline]
    #[must_use]
    pub const fn contains(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }

    /// Whether the ranges have a port in common.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

impl From<u16> for PortRange {
    fn from(port: u16) -> Self {
        Self::single(port)
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { self.first.fmt(f) } else { write!(f, "{}-{}", self.first, self.last) }
    }
}

impl FromStr for PortRange {
    type Err = ParsePortRangeError;

    /// Parses `80` or `1024-65535`; spaces around the numbers are allowed.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |part: &str| {
            let part = part.trim();
            let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            let number = if digits { part.parse().ok() } else { None };
            number.ok_or_else(|| ParsePortRangeError::Syntax(text.to_owned()))
        };
        let (first, last) = match text.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(text)?, number(text)?),
        };
        Self::new(first, last).ok_or(ParsePortRangeError::Backwards(first, last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_survive_the_text_round_trip() {
        assert_eq!("80".parse(), Ok(PortRange::single(80)));
        assert_eq!("0-65535".parse(), Ok(PortRange::ANY));
        assert_eq!(" 1024 - 2048 ".parse::<PortRange>().unwrap().to_string(), "1024-2048");
        assert_eq!(PortRange::single(80).to_string(), "80");
        assert_eq!("9-8".parse::<PortRange>().unwrap_err().to_string(), "the range 9-8 is empty: write 8-9");
        for wrong in ["", "-", "80-", "-80", "+80", "80-90-100", "65536", "http"] {
            assert_eq!(wrong.parse::<PortRange>(), Err(ParsePortRangeError::Syntax(wrong.to_owned())));
        }
    }

    #[test]
    fn both_ends_are_in_the_range() {
        let range = PortRange::new(10, 20).unwrap();
        assert!(!range.contains(9) && range.contains(10) && range.contains(20) && !range.contains(21));
        assert!(range.overlaps(PortRange::single(20)) && !range.overlaps(PortRange::single(21)));
        assert_eq!(PortRange::new(2, 1), None);
    }
}
