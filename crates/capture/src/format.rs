// SPDX-License-Identifier: Apache-2.0
//! Frames, timestamps and formats of captures.

use std::fmt;
use std::path::Path;

/// Nanoseconds since 1970-01-01 00:00:00 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(pub u64);

impl Timestamp {
    const PER_SECOND: u64 = 1_000_000_000;

    /// A time from seconds and nanoseconds, up to the year 2554.
    #[must_use]
    pub const fn new(seconds: u32, nanoseconds: u32) -> Self {
        Self(seconds as u64 * Self::PER_SECOND + nanoseconds as u64)
    }

    /// Nanoseconds since the epoch.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole seconds since the epoch.
    #[must_use]
    pub const fn seconds(self) -> u64 {
        self.0 / Self::PER_SECOND
    }

    /// Nanoseconds after the last whole second.
    #[must_use]
    pub const fn subsec_nanos(self) -> u32 {
        (self.0 % Self::PER_SECOND) as u32
    }
}

impl fmt::Display for Timestamp {
    /// Formats as seconds with nine decimals.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.seconds(), self.subsec_nanos())
    }
}

/// A captured frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Capture time. A simple packet block of pcapng has none and gets the time of the frame before.
    pub timestamp: Timestamp,
    /// Length on the wire, at least that of `data`, which may be truncated.
    pub orig_len: u32,
    /// The frame, from its Ethernet header.
    pub data: &'a [u8],
}

/// Format of a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Format {
    /// The libpcap format (draft-ietf-opsawg-pcap).
    #[default]
    Pcap,
    /// The newer pcapng format (draft-ietf-opsawg-pcapng).
    Pcapng,
}

impl Format {
    /// The format that a file name's extension stands for.
    #[must_use]
    pub fn from_extension(path: &Path) -> Option<Self> {
        let extension = path.extension()?.to_str()?.to_ascii_lowercase();
        match extension.as_str() {
            "pcapng" | "ntar" => Some(Self::Pcapng),
            "pcap" | "cap" | "dmp" => Some(Self::Pcap),
            _ => None,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pcap => "pcap",
            Self::Pcapng => "pcapng",
        })
    }
}

/// Resolution of timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Precision {
    /// Microseconds, for older tools.
    Micro,
    /// Nanoseconds.
    #[default]
    Nano,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_select_formats() {
        let of = |name: &str| Format::from_extension(Path::new(name));
        assert_eq!(of("a/b.pcap"), Some(Format::Pcap));
        assert_eq!(of("b.PcapNG"), Some(Format::Pcapng));
        assert_eq!(of("b.pcap.pcapng"), Some(Format::Pcapng));
        assert_eq!((of("b"), of("b.txt"), of(".pcap")), (None, None, None));
    }

    #[test]
    fn a_time_displays_as_seconds() {
        let time = Timestamp::new(u32::MAX, 42);
        assert_eq!(time.to_string(), "4294967295.000000042");
        assert_eq!(
            (time.seconds(), time.subsec_nanos(), time.as_nanos()),
            (4_294_967_295, 42, 4_294_967_295_000_000_042)
        );
    }
}
