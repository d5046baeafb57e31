// SPDX-License-Identifier: Apache-2.0
//! The connection to an IPFIX collector, over UDP or TCP. A collector that is away costs a bounded wait of the
//! exporter's own thread, and nobody else anything.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Longest wait for a TCP connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// A TCP collector that takes nothing for so long is away.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Shortest and longest pause between attempts to connect.
const RETRY_INTERVALS: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(30)];

/// Transport protocol of an IPFIX session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// UDP (RFC 7011 section 10.3).
    Udp,
    /// TCP (section 10.4).
    Tcp,
}

/// Where a collector listens: `ipfix:udp:HOST:PORT` or `ipfix:tcp:HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// How it is reached.
    pub transport: Transport,
    /// Host and port.
    pub host: String,
}

/// A target that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a collector: write ipfix:udp:HOST:PORT or ipfix:tcp:HOST:PORT, such as ipfix:udp:192.0.2.1:4739"
)]
pub struct ParseTargetError(String);

impl FromStr for Target {
    type Err = ParseTargetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseTargetError(text.to_owned());
        let rest = text.strip_prefix("ipfix:").ok_or_else(wrong)?;
        let (transport, host) = rest.split_once(':').ok_or_else(wrong)?;
        let transport = match transport {
            "udp" => Transport::Udp,
            "tcp" => Transport::Tcp,
            _ => return Err(wrong()),
        };
        let (name, port) = host.rsplit_once(':').ok_or_else(wrong)?;
        if name.is_empty() || port.parse::<u16>().map_or(true, |port| port == 0) {
            return Err(wrong());
        }
        Ok(Self { transport, host: host.to_owned() })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = match self.transport {
            Transport::Udp => "udp",
            Transport::Tcp => "tcp",
        };
        write!(f, "ipfix:{transport}:{}", self.host)
    }
}

/// What became of an attempt to send.
#[derive(Debug)]
pub(super) enum Sent {
    /// The message is with the kernel, or will be: it is taken.
    Taken,
    /// Not now; nothing is wrong.
    Busy,
    /// The collector is away. The message is not taken over TCP; over UDP it may be lost.
    Away(io::Error),
}

enum Socket {
    Udp(UdpSocket),
    Tcp(TcpStream),
}

/// A session with a collector, or attempts at one.
pub(in crate::export) struct Collector {
    target: Target,
    addresses: Vec<SocketAddr>,
    socket: Option<Socket>,
    /// The rest of a message that TCP took a part of.
    unsent: Vec<u8>,
    progress: Instant,
    retry_at: Instant,
    pause: Duration,
    /// A session began since [`Collector::is_new_session`] was asked.
    began: bool,
}

impl Collector {
    /// Looks the host up; connects when there is something to send.
    ///
    /// # Errors
    /// The resolver's, if the host has no address.
    pub(in crate::export) fn new(target: &Target) -> io::Result<Self> {
        let addresses: Vec<_> = target.host.to_socket_addrs()?.collect();
        if addresses.is_empty() {
            return Err(io::Error::new(ErrorKind::NotFound, "the host has no address"));
        }
        let now = Instant::now();
        Ok(Self {
            target: target.clone(),
            addresses,
            socket: None,
            unsent: Vec::new(),
            progress: now,
            retry_at: now,
            pause: RETRY_INTERVALS[0],
            began: false,
        })
    }

    /// Whether templates must be sent anew, because a session has begun. Ask before each message.
    pub(super) fn is_new_session(&mut self) -> bool {
        std::mem::take(&mut self.began)
    }

    pub(super) const fn target(&self) -> &Target {
        &self.target
    }

    /// Makes sure that there is a session.
    pub(super) fn connect(&mut self) -> Sent {
        if self.socket.is_some() {
            return Sent::Taken;
        }
        if Instant::now() < self.retry_at {
            return Sent::Away(ErrorKind::NotConnected.into());
        }
        match self.open() {
            Ok(socket) => {
                (self.socket, self.began, self.pause) = (Some(socket), true, RETRY_INTERVALS[0]);
                self.progress = Instant::now();
                Sent::Taken
            }
            Err(error) => self.lose(error),
        }
    }

    fn open(&self) -> io::Result<Socket> {
        let mut last = ErrorKind::NotFound.into();
        for address in &self.addresses {
            let opened = match self.target.transport {
                Transport::Udp => {
                    let any: SocketAddr =
                        if address.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
                    UdpSocket::bind(any).and_then(|socket| {
                        socket.connect(address)?;
                        Ok(Socket::Udp(socket))
                    })
                }
                Transport::Tcp => TcpStream::connect_timeout(address, CONNECT_TIMEOUT).and_then(|stream| {
                    stream.set_nonblocking(true)?;
                    Ok(Socket::Tcp(stream))
                }),
            };
            match opened {
                Ok(socket) => return Ok(socket),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn lose(&mut self, error: io::Error) -> Sent {
        self.socket = None;
        self.unsent.clear();
        self.retry_at = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(RETRY_INTERVALS[1]);
        Sent::Away(error)
    }

    /// Sends a message; call [`Collector::connect`] before.
    pub(super) fn send(&mut self, message: &[u8]) -> Sent {
        match &mut self.socket {
            None => Sent::Away(ErrorKind::NotConnected.into()),
            // The error is that of an earlier message: an ICMP error came back.
            Some(Socket::Udp(socket)) => match socket.send(message) {
                Ok(_) => Sent::Taken,
                Err(error) => match socket.send(message) {
                    Ok(_) | Err(_) => Sent::Away(error),
                },
            },
            Some(Socket::Tcp(_)) => match self.flush() {
                Sent::Taken => {
                    self.unsent.extend_from_slice(message);
                    match self.flush() {
                        Sent::Away(error) => Sent::Away(error),
                        Sent::Taken | Sent::Busy => Sent::Taken,
                    }
                }
                other => other,
            },
        }
    }

    /// Sends the rest of the last message; busy while there is one.
    pub(super) fn flush(&mut self) -> Sent {
        let Some(Socket::Tcp(stream)) = &mut self.socket else { return Sent::Taken };
        while !self.unsent.is_empty() {
            match stream.write(&self.unsent) {
                Ok(0) => return self.lose(ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.unsent.drain(..count);
                    self.progress = Instant::now();
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if self.progress.elapsed() > STALL_TIMEOUT {
                        return self.lose(io::Error::new(ErrorKind::TimedOut, "it takes no data"));
                    }
                    return Sent::Busy;
                }
                Err(error) => return self.lose(error),
            }
        }
        self.progress = Instant::now();
        Sent::Taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_or_refused_with_the_way_to_write_them() {
        for text in ["ipfix:udp:127.0.0.1:4739", "ipfix:tcp:[::1]:4739", "ipfix:udp:collector.example:1"] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "udp:1.2.3.4:5",
            "ipfix:sctp:1.2.3.4:5",
            "ipfix:udp:host",
            "ipfix:udp:host:0",
            "ipfix:udp::9",
        ] {
            let error = text.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains("write ipfix:udp:HOST:PORT"), "{error}");
        }
    }
}
