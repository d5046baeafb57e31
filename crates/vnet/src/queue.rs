// SPDX-License-Identifier: Apache-2.0
//! A queue: packets in and out of an open interface, a burst for each system call where the kernel can do that.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::ifreq::device_of;

mod control;
mod receive_burst;
mod ring;
mod send_burst;

pub use receive_burst::{MAX_PARTS, MAX_RECEIVED, ReceiveBurst};
pub use send_burst::SendBurst;

use ring::{Operation, Ring};

/// What a queue's descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tap,
    Socket,
}

impl SendError {
    pub(crate) fn last() -> Self {
        Self::of(io::Error::last_os_error().raw_os_error())
    }

    fn of(error: Option<i32>) -> Self {
        match error {
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
    /// Of a TAP device, if the kernel allows it.
    ring: Option<Ring>,
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
    /// There is none, or the interface is down or gone. A packet may have come for a later place of the burst.
    Empty,
    /// A packet longer than the room was lost.
    TooLong,
    /// A packet was lost that a header cannot describe: a tunnel's segment.
    Unknown,
}

impl ReceiveError {
    pub(crate) fn last() -> Self {
        Self::of(io::Error::last_os_error().raw_os_error())
    }

    const fn of(error: Option<i32>) -> Self {
        match error {
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
        let ring = (kind == Kind::Tap).then(|| Ring::open(fd.as_fd()).ok()).flatten();
        Self { fd: Arc::new(fd), kind, ring }
    }

    /// The same without io_uring: a TAP device then takes one system call for each packet.
    #[must_use]
    pub fn without_io_uring(self) -> Self {
        Self { ring: None, ..self }
    }

    /// Whether it is a TAP device's and takes one system call for a burst, by io_uring.
    #[must_use]
    pub const fn uses_io_uring(&self) -> bool {
        self.ring.is_some()
    }

    /// Reads or writes several packets of a TAP device in one system call; `None` if there is only one, or no ring.
    ///
    /// # Safety
    /// The parts may still be read, or written to.
    unsafe fn run<'a>(
        &mut self,
        operation: Operation,
        packets: impl ExactSizeIterator<Item = &'a [libc::iovec]>,
    ) -> Option<&[i32]> {
        if packets.len() < 2 {
            return None;
        }
        // SAFETY: as the caller promises.
        let is_good = unsafe { self.ring.as_mut()?.run(self.fd.as_fd(), operation, packets) }.is_ok();
        if !is_good {
            self.ring = None;
        }
        self.ring.as_ref().map(Ring::results)
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
        device_of(self.0.as_fd()).is_ok()
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
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
