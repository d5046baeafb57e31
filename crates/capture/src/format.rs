//! What captures hold, and in which forms.

use std::fmt;
use std::path::Path;

/// A point in time: nanoseconds since 1970-01-01 00:00:00 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(pub u64);

impl Timestamp {
    const PER_SECOND: u64 = 1_000_000_000;

    /// From seconds and nanoseconds; it has room until the year 2554.
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

    /// What is left beside the whole seconds.
    #[must_use]
    pub const fn subsec_nanos(self) -> u32 {
        (self.0 % Self::PER_SECOND) as u32
    }
}

impl fmt::Display for Timestamp {
    /// Seconds with nine decimals.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.seconds(), self.subsec_nanos())
    }
}

/// A frame of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// When it was captured. A simple packet block of pcapng has no time: it gets that of the frame before.
    pub timestamp: Timestamp,
    /// Bytes that it had on the wire; at least those of `data`, which may have been cut.
    pub orig_len: u32,
    /// The frame, from its Ethernet header on.
    pub data: &'a [u8],
}

/// The form of a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Format {
    /// The one of libpcap (draft-ietf-opsawg-pcap).
    #[default]
    Pcap,
    /// The newer one (draft-ietf-opsawg-pcapng).
    Pcapng,
}

impl Format {
    /// The form that the extension of a file's name stands for, if any.
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

/// The resolution of time stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Precision {
    /// Microseconds: what older tools read.
    Micro,
    /// Nanoseconds.
    #[default]
    Nano,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_name_formats() {
        let of = |name: &str| Format::from_extension(Path::new(name));
        assert_eq!(of("a/b.pcap"), Some(Format::Pcap));
        assert_eq!(of("b.PcapNG"), Some(Format::Pcapng));
        assert_eq!(of("b.pcap.pcapng"), Some(Format::Pcapng));
        assert_eq!((of("b"), of("b.txt"), of(".pcap")), (None, None, None));
    }

    #[test]
    fn a_time_reads_as_seconds() {
        let time = Timestamp::new(u32::MAX, 42);
        assert_eq!(time.to_string(), "4294967295.000000042");
        assert_eq!(
            (time.seconds(), time.subsec_nanos(), time.as_nanos()),
            (4_294_967_295, 42, 4_294_967_295_000_000_042)
        );
    }
}
