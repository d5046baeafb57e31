// SPDX-License-Identifier: Apache-2.0
//! Link types and their names.

use std::fmt;

use pcap_file::DataLink;

/// Link-layer type of a capture (registry: tcpdump.org/linktypes.html).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkType(pub u16);

impl LinkType {
    /// Ethernet.
    pub const ETHERNET: Self = Self(1);

    const NAMES: [(u16, &'static str); 20] = [
        (0, "BSD loopback"),
        (1, "Ethernet"),
        (9, "PPP"),
        (12, "raw IP"),
        (14, "raw IP"),
        (50, "PPP in HDLC framing"),
        (51, "PPP over Ethernet"),
        (101, "raw IP"),
        (104, "Cisco HDLC"),
        (105, "802.11"),
        (108, "OpenBSD loopback"),
        (113, "Linux cooked, as captured on `any`"),
        (127, "802.11 with radiotap headers"),
        (147, "user-defined"),
        (189, "USB"),
        (192, "per-packet information"),
        (228, "raw IPv4"),
        (229, "raw IPv6"),
        (253, "netlink"),
        (276, "Linux cooked v2, as captured on `any`"),
    ];
}

impl From<DataLink> for LinkType {
    /// Drops the upper half of the field in a pcap header, which describes the frame check sequence.
    fn from(link: DataLink) -> Self {
        Self(u32::from(link) as u16)
    }
}

impl fmt::Display for LinkType {
    /// `113 (Linux cooked, ...)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((_, name)) = Self::NAMES.iter().find(|(number, _)| *number == self.0) {
            return write!(f, "{} ({name})", self.0);
        }
        match DataLink::from(u32::from(self.0)) {
            DataLink::Unknown(number) => write!(f, "{number} (unknown)"),
            known => write!(f, "{} ({known:?})", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_types_display_their_names() {
        assert_eq!(LinkType::ETHERNET.to_string(), "1 (Ethernet)");
        assert_eq!(LinkType(101).to_string(), "101 (raw IP)");
        assert_eq!(LinkType(201).to_string(), "201 (BLUETOOTH_HCI_H4_WITH_PHDR)");
        assert_eq!(LinkType(60_000).to_string(), "60000 (unknown)");
        // Ethernet with an FCS of 4 bytes.
        assert_eq!(LinkType::from(DataLink::from(0x2400_0001)), LinkType::ETHERNET);
    }
}
