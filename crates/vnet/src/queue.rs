//! A queue: packets in and out of an open interface, one for each system call.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::ifreq::Request;

mod receive_burst;
mod send_burst;

pub use receive_burst::{MOST_PARTS, MOST_RECEIVED, ReceiveBurst};
pub use send_burst::SendBurst;

const TUNGETIFF: libc::Ioctl = 0x8004_54d2;

/// What a queue's descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tap,
    Socket,
}

impl SendError {
    pub(crate) fn last() -> Self {
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => Self::Full,
            Some(libc::EMSGSIZE) => Self::TooLong,
            Some(libc::ENETDOWN | libc::EIO | libc::ENXIO | libc::EBADFD) => Self::Down,
            _ => Self::Refused,
        }
    }
}

/// One queue of an interface, with one owner.
#[derive(Debug)]
pub struct Queue {
    fd: Arc<OwnedFd>,
    kind: Kind,
}

/// A received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its bytes.
    pub length: usize,
    /// The VLAN tag that the kernel or a NIC took out of it, from behind the addresses.
    pub tag: Option<[u8; 4]>,
}

/// No packet was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveError {
    /// There is none, or the interface is down or gone.
    Empty,
    /// A packet longer than the room was lost.
    TooLong,
    /// A packet was lost that a header cannot describe: a tunnel's segment.
    Unknown,
}

impl ReceiveError {
    pub(crate) fn last() -> Self {
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINVAL) => Self::Unknown,
            _ => Self::Empty,
        }
    }
}

/// A packet was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The interface has no room now.
    Full,
    /// It is longer than the interface's MTU allows.
    TooLong,
    /// The interface is down or gone.
    Down,
    /// The kernel refuses the packet or its header.
    Refused,
}

impl Queue {
    pub(crate) fn new(fd: OwnedFd, kind: Kind) -> Self {
        Self { fd: Arc::new(fd), kind }
    }

    /// Whether there is a packet to receive, or the interface is gone.
    #[inline]
    #[must_use]
    pub fn is_readable(&self) -> bool {
        let mut fd = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure.
        unsafe { libc::poll(&raw mut fd, 1, 0) != 0 }
    }

    pub(crate) const fn kind(&self) -> Kind {
        self.kind
    }

    /// Watches its TAP device.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch(Arc::clone(&self.fd))
    }

    /// Counts packets that the kernel dropped because there was no room; `None` if this kind of interface counts them
    /// itself (`ip
    /// -s link`: dropped).
    #[must_use]
    pub fn drops(&self) -> Option<Drops> {
        let socket = (self.kind == Kind::Socket).then(|| Arc::clone(&self.fd))?;
        Some(Drops { socket, total: Arc::default() })
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Watches whether the TAP device of a queue still exists, in any namespace.
#[derive(Clone, Debug)]
pub struct Watch(Arc<OwnedFd>);

impl Watch {
    /// Whether it exists.
    #[must_use]
    pub fn exists(&self) -> bool {
        Request::new("any").and_then(|request| request.send(self.0.as_fd(), TUNGETIFF)).is_ok()
    }
}

/// The count of packets that the kernel lost.
#[derive(Clone, Debug)]
pub struct Drops {
    socket: Arc<OwnedFd>,
    /// Reading resets the kernel's count.
    total: Arc<AtomicU64>,
}

impl Drops {
    /// Packets so far.
    #[must_use]
    pub fn get(&self) -> u64 {
        let mut counts = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut length = size_of_val(&counts) as libc::socklen_t;
        let (level, option) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
        // SAFETY: room for the counts, and its length.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                level,
                option,
                (&raw mut counts).cast(),
                &raw mut length,
            )
        };
        let new = if result == 0 { counts.tp_drops.into() } else { 0 };
        self.total.fetch_add(new, Ordering::Relaxed) + new
    }
}
