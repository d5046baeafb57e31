// SPDX-License-Identifier: Apache-2.0
//! Ethernet headers for captures without them: Linux cooked (what `-i any` captures) and raw IP.

use crate::link_type::LinkType;

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// The packet type of both cooked headers: sent to the broadcast address.
const BROADCAST: u8 = 1;

/// How frames of a link type become Ethernet frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// They are Ethernet frames.
    Ethernet,
    /// Linux cooked: <https://www.tcpdump.org/linktypes/LINKTYPE_LINUX_SLL.html>.
    Cooked,
    /// Its second version: <https://www.tcpdump.org/linktypes/LINKTYPE_LINUX_SLL2.html>.
    Cooked2,
    /// An IP header comes first.
    Ip,
}

impl Link {
    /// `None` if frames of this type cannot become Ethernet frames.
    pub(crate) const fn of(link: LinkType) -> Option<Self> {
        match link.0 {
            1 => Some(Self::Ethernet),
            113 => Some(Self::Cooked),
            276 => Some(Self::Cooked2),
            12 | 14 | 101 | 228 | 229 => Some(Self::Ip),
            _ => None,
        }
    }

    /// Bytes of the header that the Ethernet header replaces.
    const fn header(self) -> usize {
        match self {
            Self::Ethernet => ETHERNET,
            Self::Cooked => 16,
            Self::Cooked2 => 20,
            Self::Ip => 0,
        }
    }

    /// Writes the frame with an Ethernet header to `out`; returns its original length. Unknown addresses are zero, and
    /// a frame without its whole header has EtherType 0.
    pub(crate) fn write(self, frame: &[u8], orig_len: u32, out: &mut Vec<u8>) -> u32 {
        let (header, rest) = frame.split_at_checked(self.header()).unwrap_or((&[], frame));
        let field = |at: usize| header.get(at..at + 2).map_or([0, 0], |bytes| [bytes[0], bytes[1]]);
        let (kind, address_length, address, ether_type) = match self {
            Self::Ethernet => {
                out.clear();
                out.extend_from_slice(frame);
                return orig_len;
            }
            Self::Cooked => (field(0)[1], field(4)[1], header.get(6..12), field(14)),
            Self::Cooked2 => (field(10)[0], field(10)[1], header.get(12..18), field(0)),
            Self::Ip => (0, 0, None, ether_type_of_ip(rest)),
        };
        let destination = if kind == BROADCAST { [0xff; 6] } else { [0; 6] };
        let source = address.filter(|_| address_length == 6).unwrap_or(&[0; 6]);
        out.clear();
        out.extend_from_slice(&destination);
        out.extend_from_slice(source);
        out.extend_from_slice(&ether_type);
        out.extend_from_slice(rest);
        let (removed, added) = (header.len() as u32, ETHERNET as u32);
        orig_len.saturating_sub(removed).saturating_add(added).max(out.len() as u32)
    }
}

fn ether_type_of_ip(packet: &[u8]) -> [u8; 2] {
    match packet.first().map(|byte| byte >> 4) {
        Some(4) => [0x08, 0x00],
        Some(6) => [0x86, 0xdd],
        _ => [0, 0],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ethernet(link: u16, frame: &[u8]) -> (Vec<u8>, u32) {
        let mut out = vec![9; 3];
        let orig_len = Link::of(LinkType(link)).unwrap().write(frame, frame.len() as u32 + 5, &mut out);
        (out, orig_len)
    }

    #[test]
    fn cooked_and_raw_frames_become_ethernet() {
        let cooked = [0, 1, 0, 1, 0, 6, 2, 0, 0, 0, 0, 7, 0, 0, 0x08, 0x00, 0x45, 1];
        let expected = [255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 7, 0x08, 0x00, 0x45, 1];
        assert_eq!(ethernet(113, &cooked), (expected.to_vec(), 21));
        let cooked = [0x86, 0xdd, 0, 0, 0, 0, 0, 3, 0, 1, 4, 6, 2, 0, 0, 0, 0, 8, 0, 0, 0x60];
        let expected = [0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 8, 0x86, 0xdd, 0x60];
        assert_eq!(ethernet(276, &cooked), (expected.to_vec(), 20));
        for (link, first, ether_type) in [(101, 0x45, [8, 0]), (229, 0x60, [0x86, 0xdd]), (228, 0x10, [0, 0])]
        {
            let (frame, orig_len) = ethernet(link, &[first, 2, 3]);
            assert_eq!(frame[..12], [0; 12]);
            assert_eq!((&frame[12..14], &frame[14..], orig_len), (&ether_type[..], &[first, 2, 3][..], 22));
        }
        assert_eq!(ethernet(1, &cooked), (cooked.to_vec(), 26));
    }

    #[test]
    fn short_headers_are_no_addresses() {
        for length in 0..16 {
            let (frame, _) = ethernet(113, &[1; 16][..length]);
            assert_eq!(frame[..ETHERNET], [0; ETHERNET]);
            assert_eq!(frame.len(), ETHERNET + length);
        }
        assert_eq!(Link::of(LinkType(105)), None);
    }
}
