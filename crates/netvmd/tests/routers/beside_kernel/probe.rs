// SPDX-License-Identifier: Apache-2.0
//! What becomes of a datagram on its way through a router.

use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, ipproto};
use rustix::thread::LinkNameSpaceType;

/// Of the receivers.
const PORT: u16 = 7777;
/// Without a sign for so long, a datagram is lost.
const LOSS_TIMEOUT: Duration = Duration::from_millis(250);

/// A datagram to send.
#[derive(Clone, Copy)]
pub struct Probe {
    pub from: IpAddr,
    pub to: IpAddr,
    /// Bytes of its payload.
    pub size: usize,
    pub ttl: u32,
}

impl Probe {
    /// `family` of `to` and of the client's own address.
    pub fn to(to: &str) -> Self {
        let to: IpAddr = to.parse().unwrap();
        let from = if to.is_ipv4() { super::CLIENT_V4 } else { super::CLIENT_V6 };
        Self { from: from.parse().unwrap(), to, size: 16, ttl: 64 }
    }

    pub fn from(self, from: &str) -> Self {
        Self { from: from.parse().unwrap(), ..self }
    }

    pub const fn size(self, size: usize) -> Self {
        Self { size, ..self }
    }

    pub const fn ttl(self, ttl: u32) -> Self {
        Self { ttl, ..self }
    }
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// This host received it.
    Arrived(usize),
    /// The sender received this ICMP or ICMPv6 error: type, code, and MTU.
    Error(u8, u8, u16),
    Lost,
}

/// Runs `work` in a network namespace. Sockets that it opens stay there.
pub fn inside<T: Send>(namespace: &str, work: impl FnOnce() -> T + Send) -> T {
    let namespace = File::open(format!("/run/netns/{namespace}")).unwrap();
    std::thread::scope(|scope| {
        let enter = || {
            let network = Some(LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(namespace.as_fd(), network).unwrap();
            work()
        };
        scope.spawn(enter).join().unwrap()
    })
}

/// Sockets of a client and of the hosts that may receive its datagrams.
pub struct Prober {
    client: String,
    /// By host and family.
    receivers: Vec<[UdpSocket; 2]>,
    /// ICMP errors at the client.
    errors: [OwnedFd; 2],
    number: u64,
}

impl Prober {
    pub fn new(client: &str, receivers: &[String]) -> Self {
        let receiver = |namespace: &String| {
            inside(namespace, || {
                ["0.0.0.0", "::"].map(|any| {
                    let any: IpAddr = any.parse().unwrap();
                    let socket = match any {
                        IpAddr::V4(_) => UdpSocket::bind((any, PORT)).unwrap(),
                        IpAddr::V6(_) => only_v6(),
                    };
                    socket.set_nonblocking(true).unwrap();
                    socket
                })
            })
        };
        let errors = inside(client, || {
            [(AddressFamily::INET, ipproto::ICMP), (AddressFamily::INET6, ipproto::ICMPV6)].map(
                |(family, protocol)| {
                    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
                    rustix::net::socket_with(family, SocketType::RAW, flags, Some(protocol)).unwrap()
                },
            )
        });
        let receivers = receivers.iter().map(receiver).collect();
        Self { client: client.to_owned(), receivers, errors, number: 0 }
    }

    /// Sends a datagram and waits for a sign of it.
    pub fn send(&mut self, probe: Probe) -> Outcome {
        self.number += 1;
        let mut payload = vec![0; probe.size];
        payload[..8].copy_from_slice(&self.number.to_be_bytes());
        let sent = inside(&self.client, || -> io::Result<()> {
            let socket = UdpSocket::bind((probe.from, 0))?;
            match probe.to {
                IpAddr::V4(_) => socket.set_ttl(probe.ttl)?,
                IpAddr::V6(_) => rustix::net::sockopt::set_ipv6_unicast_hops(&socket, Some(probe.ttl as u8))?,
            }
            socket.send_to(&payload, SocketAddr::from((probe.to, PORT))).map(drop)
        });
        // For example while a link is down.
        if sent.is_err() {
            return Outcome::Lost;
        }
        let deadline = Instant::now() + LOSS_TIMEOUT;
        let family = usize::from(probe.to.is_ipv6());
        let number = self.number.to_be_bytes();
        let mut bytes = [0; 2048];
        while Instant::now() < deadline {
            for (host, sockets) in self.receivers.iter().enumerate() {
                while let Ok(length) = sockets[family].recv(&mut bytes) {
                    if bytes[..length].starts_with(&number) {
                        return Outcome::Arrived(host);
                    }
                }
            }
            while let Ok((_, length)) =
                rustix::net::recv(&self.errors[family], &mut bytes[..], RecvFlags::empty())
            {
                if let Some(outcome) = error_of(&bytes[..length], family, &number) {
                    return outcome;
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Outcome::Lost
    }
}

fn only_v6() -> UdpSocket {
    let socket =
        rustix::net::socket_with(AddressFamily::INET6, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .unwrap();
    rustix::net::sockopt::set_ipv6_v6only(&socket, true).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from((IpAddr::from([0; 16]), PORT))).unwrap();
    socket.into()
}

/// The error that an ICMP packet reports about the datagram with this number.
fn error_of(packet: &[u8], family: usize, number: &[u8; 8]) -> Option<Outcome> {
    // With its header, if it is IPv4.
    let icmp = if family == 0 { packet.get(usize::from(packet.first()? & 15) * 4..)? } else { packet };
    let (kind, code) = (*icmp.first()?, *icmp.get(1)?);
    let is_error = if family == 0 { [3, 4, 11, 12].contains(&kind) } else { kind < 128 };
    let is_ours = icmp.windows(8).any(|window| window == number);
    let mtu = u16::from_be_bytes([*icmp.get(6)?, *icmp.get(7)?]);
    let has_mtu = (family, kind, code) == (0, 3, 4) || (family, kind) == (1, 2);
    (is_error && is_ours).then_some(Outcome::Error(kind, code, if has_mtu { mtu } else { 0 }))
}
