// SPDX-License-Identifier: Apache-2.0
//! ICMP echo requests (RFC 792, RFC 4443). In: addresses. Out: those that did not answer in time.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};

/// How long an address has to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// How long answers that have come by then are read.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(200);
/// Type, code, checksum, identifier, sequence number.
const HEADER: usize = 8;
const V4_REQUEST: u8 = 8;
const V4_REPLY: u8 = 0;
const V6_REQUEST: u8 = 128;
const V6_REPLY: u8 = 129;

/// Sockets for pings, each of IPv4 or not, in the network namespace in which they were made.
#[derive(Debug)]
pub(super) struct Sockets(Vec<(bool, UdpSocket)>);

impl Sockets {
    /// Those for some addresses, in the namespace of this thread.
    ///
    /// # Errors
    /// This process may not have such a socket.
    pub(super) fn open(addresses: &[IpAddr]) -> io::Result<Self> {
        let mut sockets = Vec::new();
        for is_v4 in [true, false].into_iter().filter(|v4| addresses.iter().any(|to| to.is_ipv4() == *v4)) {
            let (family, protocol) = if is_v4 {
                (AddressFamily::INET, ipproto::ICMP)
            } else {
                (AddressFamily::INET6, ipproto::ICMPV6)
            };
            let socket = socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(protocol))?;
            sockets.push((is_v4, UdpSocket::from(socket)));
        }
        Ok(Self(sockets))
    }
}

/// Pings addresses, all at once. Takes up to a second.
///
/// # Errors
/// The kernel's error.
pub(super) fn unanswered(sockets: &Sockets, addresses: &[IpAddr]) -> io::Result<Vec<IpAddr>> {
    let mut waiting: BTreeMap<u16, IpAddr> = (0..).zip(addresses.iter().copied()).collect();
    let own = std::process::id() as u16;
    let Sockets(sockets) = sockets;
    for (is_v4, socket) in sockets {
        for (sequence, to) in waiting.iter().filter(|(_, to)| to.is_ipv4() == *is_v4) {
            // An address without a route does not answer.
            let _ = socket.send_to(&request(*is_v4, own, *sequence), SocketAddr::new(*to, 0));
        }
    }
    let end = Instant::now() + ANSWER_TIMEOUT;
    for (is_v4, socket) in sockets {
        while waiting.values().any(|to| to.is_ipv4() == *is_v4) {
            let now = Instant::now();
            if now > end + DRAIN_TIMEOUT {
                break;
            }
            // The other socket may have used the time up, while answers came to this one.
            let left = end.saturating_duration_since(now).max(Duration::from_millis(1));
            socket.set_read_timeout(Some(left))?;
            let mut packet = [0; 512];
            let (length, from) = match socket.recv_from(&mut packet) {
                Ok(received) => received,
                Err(_) if now >= end => break,
                Err(_) => continue,
            };
            let answered = packet.get(..length).and_then(|packet| reply(*is_v4, own, packet));
            if let Some(sequence) = answered.filter(|sequence| waiting.get(sequence) == Some(&from.ip())) {
                waiting.remove(&sequence);
            }
        }
    }
    Ok(waiting.into_values().collect())
}

fn request(is_v4: bool, id: u16, sequence: u16) -> [u8; HEADER] {
    let ([a, b], [c, d]) = (id.to_be_bytes(), sequence.to_be_bytes());
    let kind = if is_v4 { V4_REQUEST } else { V6_REQUEST };
    let sum = u32::from(u16::from_be_bytes([kind, 0])) + u32::from(id) + u32::from(sequence);
    let sum = (sum & 0xffff) + (sum >> 16);
    // Of ICMPv6, the kernel makes it.
    let [e, f] = (!((sum + (sum >> 16)) as u16)).to_be_bytes();
    [kind, 0, e, f, a, b, c, d]
}

/// The sequence number of a reply to this process. IPv4 packets come with their header.
fn reply(is_v4: bool, id: u16, packet: &[u8]) -> Option<u16> {
    let header = if is_v4 { usize::from(packet.first()? & 15) * 4 } else { 0 };
    let [kind, 0, _, _, a, b, c, d] = *packet.get(header..)?.first_chunk::<HEADER>()? else { return None };
    let is_reply = kind == if is_v4 { V4_REPLY } else { V6_REPLY };
    (is_reply && u16::from_be_bytes([a, b]) == id).then(|| u16::from_be_bytes([c, d]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_machine_answer_and_others_do_not() {
        let loopback = ["127.0.0.1", "127.0.0.2", "::1"].map(|text| text.parse().unwrap());
        // Reserved for documentation (RFC 5737): nobody has it.
        let nobody: IpAddr = "192.0.2.77".parse().unwrap();
        let all = [&loopback[..], &[nobody]].concat();
        match Sockets::open(&all) {
            Ok(sockets) => assert_eq!(unanswered(&sockets, &all).unwrap(), [nobody]),
            Err(error) => println!("SKIP: no raw sockets: {error}"),
        }
    }

    #[test]
    fn a_request_has_the_checksum_of_rfc_1071_and_replies_are_told_apart() {
        let bytes = request(true, 0xffff, 0x1234);
        let sum: u32 = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        let mut packet = vec![0x45; 20];
        packet.extend([V4_REPLY, 0, 1, 2, 0x12, 0x34, 0, 5]);
        assert_eq!(reply(true, 0x1234, &packet), Some(5));
        assert_eq!(reply(true, 0x1235, &packet), None);
        assert_eq!(reply(false, 0x1234, &[V6_REPLY, 0, 1, 2, 0x12, 0x34, 0, 6]), Some(6));
        packet[20] = V4_REQUEST;
        assert_eq!(reply(true, 0x1234, &packet), None);
        assert_eq!(reply(true, 0x1234, &packet[..22]), None);
        assert_eq!(reply(true, 0x1234, &[]), None);
    }

    /// Whatever comes, and wherever it ends: a sequence number only of a whole reply to this process.
    #[test]
    fn damaged_replies_are_none() {
        let mut packet = vec![0x45; 20];
        packet.extend([V4_REPLY, 0, 1, 2, 0x12, 0x34, 0, 5]);
        for length in 0..packet.len() {
            assert_eq!(reply(true, 0x1234, &packet[..length]), None);
        }
        for (at, byte) in (0..packet.len()).flat_map(|at| (0..=255).map(move |byte| (at, byte))) {
            let mut damaged = packet.clone();
            damaged[at] = byte;
            let is_same =
                damaged[0] & 15 == 5 && damaged[20..22] == [V4_REPLY, 0] && damaged[24..26] == [0x12, 0x34];
            assert!(is_same || reply(true, 0x1234, &damaged).is_none(), "{at} {byte}");
            let _ = reply(false, 0x1234, &damaged);
        }
    }
}
