// SPDX-License-Identifier: Apache-2.0
//! The frames that a sender sends, changed in place for each burst.

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::time::{ClockId, clock_gettime};

use super::{BURST, Destination, FCS, STAMP, Stream, check};

/// Bytes of headers.
pub(super) const ETHERNET: usize = 14;
const TAG: usize = 4;
pub(super) const IP: usize = 20;
pub(super) const UDP: usize = 8;

/// The frames of a burst.
pub(super) struct Frames {
    bytes: Vec<Vec<u8>>,
    /// Bytes in front of the IP header.
    l2: usize,
    destinations: Vec<Destination>,
    is_multi: bool,
    is_spread: bool,
    is_timed: bool,
    /// The next destination.
    next: usize,
    /// Flows so far.
    flow: u32,
}

impl Frames {
    pub(super) fn new(stream: &Stream) -> Self {
        let is_tagged = stream.destinations.iter().any(|to| to.vlan.is_some());
        let l2 = if is_tagged { ETHERNET + TAG } else { ETHERNET };
        Self {
            bytes: vec![frame(usize::from(stream.size - FCS), l2); BURST],
            l2,
            destinations: stream.destinations.clone(),
            is_multi: stream.is_multi,
            is_spread: stream.is_spread,
            is_timed: stream.is_timed,
            next: 0,
            flow: 0,
        }
    }

    /// Writes the destinations and flows of the next burst.
    pub(super) fn prepare(&mut self, count: usize) {
        let (ip, udp) = (self.l2, self.l2 + IP);
        for (n, frame) in self.bytes[..count].iter_mut().enumerate() {
            let Destination { mac, vlan, address } = self.destinations[self.next];
            if self.is_spread || n + 1 == count {
                self.next = (self.next + 1) % self.destinations.len();
            }
            frame[..6].copy_from_slice(&mac.0);
            if let Some(vlan) = vlan {
                frame[ETHERNET..ETHERNET + 2].copy_from_slice(&vlan.to_be_bytes());
            }
            frame[ip + 16..udp].copy_from_slice(&address);
            if self.is_multi {
                // Four billion flows before one repeats: 24 bits of the source address, 8 of the port.
                self.flow = self.flow.wrapping_add(1);
                let [port, host @ ..] = self.flow.to_be_bytes();
                frame[ip + 13..ip + 16].copy_from_slice(&host);
                frame[udp + 1] = port;
            }
            let sum = checksum(&frame[ip..udp]);
            frame[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
        }
        if self.is_timed {
            let now = clock_gettime(ClockId::Realtime);
            let nanos = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
            self.bytes[0][STAMP..STAMP + 8].copy_from_slice(&nanos.to_be_bytes());
        }
    }

    /// Sends the first `count` frames; returns how many the interface took.
    pub(super) fn pass(&mut self, socket: &OwnedFd, count: usize) -> io::Result<usize> {
        // SAFETY: all zeros are valid structures of numbers and null pointers.
        let (mut parts, mut messages): ([libc::iovec; BURST], [libc::mmsghdr; BURST]) = unsafe { zeroed() };
        for ((part, message), frame) in parts.iter_mut().zip(&mut messages).zip(&mut self.bytes) {
            *part = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() };
            (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (part, 1);
        }
        let (mut done, mut refused) = (0, 0);
        while done < count {
            let left = &mut messages[done..count];
            // SAFETY: every message has one part, a frame's memory; all outlive the call.
            let result =
                unsafe { libc::sendmmsg(socket.as_raw_fd(), left.as_mut_ptr(), left.len() as u32, 0) };
            match check(result) {
                Ok(passed) => done += passed as usize,
                // The packet is dropped, as on a link that is too slow.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::EAGAIN)) => {
                    (done, refused) = (done + 1, refused + 1);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(count - refused)
    }
}

/// A UDP packet in a frame of `length` bytes, without FCS. `l2`: bytes of the Ethernet header, VLAN tag included.
fn frame(length: usize, l2: usize) -> Vec<u8> {
    let mut frame = vec![0; length];
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    if l2 > ETHERNET {
        frame[12..14].copy_from_slice(&[0x81, 0]);
    }
    frame[l2 - 2..l2].copy_from_slice(&[8, 0]);
    let (ip, udp) = frame[l2..].split_at_mut(IP);
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&((length - l2) as u16).to_be_bytes());
    (ip[8], ip[9]) = (64, 17);
    ip[12..16].copy_from_slice(&[10, 0, 0, 1]);
    // Ports 4096 and 9 (discard); no checksum.
    udp[..4].copy_from_slice(&[16, 0, 0, 9]);
    udp[4..6].copy_from_slice(&((length - l2 - IP) as u16).to_be_bytes());
    frame
}

/// The checksum of an IPv4 header (RFC 1071); the field itself is ignored.
fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2).enumerate().filter(|(index, _)| *index != 5);
    let sum: u32 = words.map(|(_, word)| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !(folded + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use netvm_wire::MacAddr;

    use super::*;

    fn to(n: u8, vlan: Option<u16>) -> Destination {
        Destination { mac: MacAddr([2, 0, 0, 0, 0, n]), vlan, address: [10, 1, 0, n] }
    }

    fn frames(is_multi: bool) -> Frames {
        let destinations = vec![to(1, None)];
        Frames::new(&Stream {
            interface: "near".to_owned(),
            queues: 1,
            size: 64,
            is_multi,
            is_spread: false,
            is_timed: false,
            destinations,
        })
    }

    #[test]
    fn the_checksum_is_that_of_the_header() {
        // A header whose checksum is known, with another in its place.
        let header =
            [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xff, 0xff, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7];
        assert_eq!(checksum(&header), 0xb861);
    }

    #[test]
    fn destinations_take_turns_by_burst_or_by_packet() {
        let destinations: Vec<_> = (0..3).map(|n| to(n, None)).collect();
        for is_spread in [false, true] {
            let destinations = destinations.clone();
            let stream = Stream {
                interface: "near".to_owned(),
                queues: 1,
                size: 64,
                is_multi: true,
                is_spread,
                is_timed: false,
                destinations,
            };
            let mut frames = Frames::new(&stream);
            let mut seen = Vec::new();
            for _ in 0..2 {
                frames.prepare(2);
                seen.extend(frames.bytes[..2].iter().map(|frame| (frame[5], frame[33])));
            }
            let expected = if is_spread { [0, 1, 2, 0] } else { [0, 0, 1, 1] };
            assert_eq!(seen, expected.map(|n| (n, n)));
        }
    }

    #[test]
    fn tagged_packets_are_those_without_a_tag_but_for_it() {
        let frames = |vlan: Option<u16>| {
            let stream = Stream {
                interface: "near".to_owned(),
                queues: 1,
                size: if vlan.is_some() { 68 } else { 64 },
                is_multi: true,
                is_spread: true,
                is_timed: false,
                destinations: vec![to(7, vlan)],
            };
            let mut frames = Frames::new(&stream);
            frames.prepare(BURST);
            frames.bytes
        };
        for (plain, mut tagged) in frames(None).into_iter().zip(frames(Some(0x0123))) {
            assert_eq!(tagged.drain(12..16).collect::<Vec<_>>(), [0x81, 0, 0x01, 0x23]);
            assert_eq!(tagged, plain);
        }
    }

    #[test]
    fn every_packet_is_a_flow_or_none_is() {
        let mut multi = frames(true);
        let mut seen = HashSet::new();
        for _ in 0..10_000 {
            multi.prepare(BURST);
            seen.extend(multi.bytes.iter().map(|frame| frame[26..38].to_vec()));
        }
        assert_eq!(seen.len(), 10_000 * BURST);
        let mut single = frames(false);
        single.prepare(BURST);
        assert_eq!(single.bytes.iter().collect::<HashSet<_>>().len(), 1);
        assert_eq!(single.bytes[0].len(), 60);
    }

    #[test]
    fn the_first_packet_of_a_burst_has_the_time() {
        let stream = Stream {
            interface: "near".to_owned(),
            queues: 1,
            size: 64,
            is_multi: true,
            is_spread: false,
            is_timed: true,
            destinations: vec![to(1, None)],
        };
        let mut frames = Frames::new(&stream);
        let mut stamp = |n: usize| {
            frames.prepare(2);
            u64::from_be_bytes(frames.bytes[n][STAMP..STAMP + 8].try_into().unwrap())
        };
        let (first, second) = (stamp(0), stamp(0));
        assert!(first > 1_600_000_000_000_000_000 && second >= first, "{first} {second}");
        assert_eq!(stamp(1), 0);
    }
}
