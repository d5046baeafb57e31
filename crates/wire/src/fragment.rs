// SPDX-License-Identifier: Apache-2.0
//! Cuts IPv4 packets into fragments (RFC 791 section 3.2). In: a frame, and the MTU of the next link. Out: for each
//! fragment its headers, and its part of the frame.

use std::ops::Range;

use crate::checksum::internet_checksum;
use crate::{Headers, Network};

/// Longest headers: Ethernet, two tags, IPv4 with options.
const MAX_HEADERS: usize = 22 + 60;
/// "More fragments", in the word of flags and offset.
const MORE: u16 = 0x2000;
/// "Don't fragment".
const DONT: u16 = 0x4000;
const OFFSET: u16 = 0x1fff;

/// How a packet is cut.
#[derive(Clone, Debug)]
pub struct Cut {
    headers: [u8; MAX_HEADERS],
    l3: usize,
    /// Length of the headers.
    front: usize,
    /// End of the packet in the frame.
    end: usize,
    /// Bytes in each fragment but the last, a multiple of 8.
    part: usize,
}

impl Cut {
    /// How a packet is cut for a link with this MTU. `None` if it is not IPv4, fits, must not be cut, or is a fragment
    /// that would end beyond the longest packet.
    #[must_use]
    pub fn of(frame: &[u8], headers: &Headers, mtu: u16) -> Option<Self> {
        if headers.network() != Network::Ipv4 {
            return None;
        }
        let l3 = headers.l3_offset();
        let ip = frame.get(l3..)?;
        let (header_len, total) =
            (usize::from(ip.first()? & 0xf) * 4, u16::from_be_bytes([*ip.get(2)?, *ip.get(3)?]));
        let flags = u16::from_be_bytes([*ip.get(6)?, *ip.get(7)?]);
        let (front, end) = (l3 + header_len, l3 + usize::from(total));
        let part = usize::from(mtu).checked_sub(header_len)? & !7;
        let is_possible = total > mtu && flags & DONT == 0 && part > 0 && end <= frame.len() && front <= end;
        if !is_possible || usize::from(flags & OFFSET) * 8 + (end - front) > usize::from(u16::MAX) {
            return None;
        }
        let mut this = Self { headers: [0; MAX_HEADERS], l3, front, end, part };
        this.headers.get_mut(..front)?.copy_from_slice(frame.get(..front)?);
        Some(this)
    }

    /// Number of fragments, at least 2.
    #[must_use]
    pub const fn count(&self) -> usize {
        (self.end - self.front).div_ceil(self.part)
    }

    /// Length of the headers of each fragment.
    #[must_use]
    pub const fn front(&self) -> usize {
        self.front
    }

    /// Where the bytes of fragment `n` are in the frame.
    #[must_use]
    pub fn part(&self, n: usize) -> Range<usize> {
        let start = (self.front + n * self.part).min(self.end);
        start..(start + self.part).min(self.end)
    }

    /// Writes the headers of fragment `n`, up to where its bytes follow; `None` if `out` is too short.
    #[must_use]
    pub fn write_headers(&self, n: usize, out: &mut [u8]) -> Option<()> {
        out.get_mut(..self.front)?.copy_from_slice(&self.headers[..self.front]);
        let part = self.part(n);
        let ip = out.get_mut(self.l3..self.front)?;
        if n > 0 {
            drop_options(ip.get_mut(20..)?);
        }
        let flags = u16::from_be_bytes([*ip.get(6)?, *ip.get(7)?]);
        let more = if part.end < self.end { MORE } else { flags & MORE };
        let offset = (flags & OFFSET) + ((part.start - self.front) / 8) as u16;
        let length = (ip.len() + part.len()) as u16;
        ip.get_mut(2..4)?.copy_from_slice(&length.to_be_bytes());
        ip.get_mut(6..8)?.copy_from_slice(&(more | offset).to_be_bytes());
        ip.get_mut(10..12)?.fill(0);
        let sum = internet_checksum(ip);
        ip.get_mut(10..12)?.copy_from_slice(&sum.to_be_bytes());
        Some(())
    }
}

/// Replaces options that only the first fragment has (RFC 791 section 3.1) by "no operation".
fn drop_options(options: &mut [u8]) {
    const COPIED: u8 = 0x80;
    let mut at = 0;
    while let Some(kind) = options.get(at).copied() {
        let length = match kind {
            0 => return,
            1 => 1,
            _ => options.get(at + 1).map_or(0, |length| usize::from(*length)),
        };
        let Some(option) = options.get_mut(at..at + length).filter(|option| !option.is_empty()) else {
            return;
        };
        if kind & COPIED == 0 {
            option.fill(1);
        }
        at += length;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{FrameBuilder, MacAddr, parse};

    fn frame(payload: &[u8]) -> Vec<u8> {
        let builder = FrameBuilder::new(MacAddr([2; 6]), MacAddr([4; 6]));
        builder.ip([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).udp(5, 6).payload(payload).to_vec().unwrap()
    }

    fn cut(frame: &[u8], mtu: u16) -> Option<Vec<Vec<u8>>> {
        let cut = Cut::of(frame, &parse(frame).unwrap(), mtu)?;
        let fragment = |n| {
            let mut out = vec![0; cut.front()];
            cut.write_headers(n, &mut out).unwrap();
            out.extend(&frame[cut.part(n)]);
            out
        };
        Some((0..cut.count()).map(fragment).collect())
    }

    /// The reference: puts the payloads where the headers say.
    fn reassembled(fragments: &[Vec<u8>]) -> Vec<u8> {
        let mut whole = Vec::new();
        for fragment in fragments {
            let ip = &fragment[14..];
            assert_eq!(internet_checksum(&ip[..20]), 0);
            let flags = u16::from_be_bytes([ip[6], ip[7]]);
            let at = usize::from(flags & OFFSET) * 8;
            assert_eq!(at, whole.len());
            assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), ip.len());
            whole.extend_from_slice(&ip[20..]);
        }
        let more: Vec<bool> = fragments.iter().map(|fragment| fragment[20] & 0x20 != 0).collect();
        assert!(more.iter().rev().skip(1).all(|more| *more) && !more[more.len() - 1]);
        whole
    }

    proptest! {
        #[test]
        fn fragments_fit_and_make_up_the_packet(payload in prop::collection::vec(any::<u8>(), 0..4000), mtu in 28u16..2000) {
            let mut frame = frame(&payload);
            frame[20] = 0;
            match cut(&frame, mtu) {
                None => prop_assert!(frame.len() - 14 <= usize::from(mtu)),
                Some(fragments) => {
                    prop_assert!(fragments.len() > 1);
                    prop_assert!(fragments.iter().all(|fragment| fragment.len() - 14 <= usize::from(mtu)));
                    let whole = reassembled(&fragments);
                    prop_assert_eq!(&whole[..], &frame[34..]);
                    // A fragment may be cut again.
                    let again = fragments.iter().map(|one| cut(one, 28).unwrap_or_else(|| vec![one.clone()]));
                    prop_assert_eq!(&reassembled(&again.flatten().collect::<Vec<_>>())[..], &frame[34..]);
                }
            }
        }
    }

    #[test]
    fn packets_that_must_not_be_cut_are_left_whole() {
        let mut frame = frame(&[0; 1000]);
        frame[20] = 0x40;
        assert!(cut(&frame, 500).is_none());
        frame[20] = 0;
        assert!(cut(&frame, 500).is_some() && cut(&frame, 27).is_none());
    }

    #[test]
    fn options_of_the_first_fragment_alone_are_not_repeated() {
        // Record route (not copied), then a security option (copied).
        let mut options = [7, 4, 1, 2, 0x82, 3, 9, 0];
        drop_options(&mut options);
        assert_eq!(options, [1, 1, 1, 1, 0x82, 3, 9, 0]);
        let mut broken = [7, 200, 1, 2];
        drop_options(&mut broken);
        assert_eq!(broken, [7, 200, 1, 2]);
    }
}
