// SPDX-License-Identifier: Apache-2.0
//! Waits until the kernel has released a queue.
//!
//! After `close` the kernel releases a socket's queue and memory later, in a work item that needs the RTNL lock, and
//! only after the receiver of every sent frame has freed it. Until then a zero-copy driver still has the addresses of
//! the buffers and may write to them. The kernel does not report the release, but it refuses to bind a second socket to
//! the queue until then. So a probe socket, prepared in advance with one page of memory, tries to bind to the queue;
//! when that succeeds, the queue is free.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::kernel::sys::{self, Mapping};

/// How long [`crate::Xsk::close`] waits.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A socket ready to bind.
#[derive(Debug)]
pub(crate) struct Probe {
    socket: OwnedFd,
    /// The UMEM of the probe.
    _memory: Mapping,
    ifindex: u32,
    queue: u32,
}

impl Probe {
    pub(crate) fn new(ifindex: u32, queue: u32) -> io::Result<Self> {
        const CHUNK: u32 = 2048;
        const ENTRIES: u32 = 2;
        let socket = sys::socket(libc::AF_XDP, libc::SOCK_RAW)?;
        let memory = Mapping::anonymous(sys::page_size())?;
        let registration = libc::xdp_umem_reg {
            addr: memory.address().as_ptr().addr() as u64,
            len: memory.bytes() as u64,
            chunk_size: CHUNK,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        sys::set_option(socket.as_fd(), libc::SOL_XDP, libc::XDP_UMEM_REG, &registration)?;
        for ring in [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING] {
            sys::set_option(socket.as_fd(), libc::SOL_XDP, ring, &ENTRIES)?;
        }
        Ok(Self { socket, _memory: memory, ifindex, queue })
    }

    /// Whether the queue is free. Binds in copy mode, which does not touch the driver. The probe is not in the socket
    /// map, so it receives no packet.
    fn is_free(&self) -> io::Result<bool> {
        match sys::bind(self.socket.as_fd(), self.ifindex, self.queue, libc::XDP_COPY) {
            Ok(()) => Ok(true),
            Err(e) => match e.raw_os_error() {
                // When an interface goes away, the kernel first detaches its queues from their sockets.
                Some(libc::ENODEV) => Ok(true),
                Some(libc::EBUSY | libc::EINTR) => Ok(false),
                _ => Err(e),
            },
        }
    }

    /// Waits until the queue is free, then returns the buffers.
    pub(crate) fn wait(self, interface: String, buffers: Vec<u32>) -> Result<Vec<u32>, StillHeld> {
        let queue = self.queue;
        StillHeld { interface, queue, buffers, reason: None, probe: self }.wait(TIMEOUT)
    }
}

/// A closed socket whose buffers the kernel still holds. The caller must not use them yet.
#[derive(Debug, thiserror::Error)]
#[error(
    "queue {queue} of {interface} was closed but the kernel still holds {} buffers{}: frames it sent are still queued \
     somewhere, or a forked process has a copy of the socket: wait again",
    buffers.len(),
    reason.as_ref().map(|e| format!(" ({e})")).unwrap_or_default()
)]
pub struct StillHeld {
    interface: String,
    queue: u32,
    buffers: Vec<u32>,
    reason: Option<io::Error>,
    probe: Probe,
}

impl StillHeld {
    /// Number of buffers held.
    #[must_use]
    pub fn count(&self) -> usize {
        self.buffers.len()
    }

    /// Waits up to `timeout` and returns the buffers.
    ///
    /// # Errors
    /// `self` again if the kernel still holds the buffers.
    pub fn wait(mut self, timeout: Duration) -> Result<Vec<u32>, Self> {
        let end = Instant::now() + timeout;
        let mut pause = Duration::from_micros(100);
        loop {
            match self.probe.is_free() {
                Ok(true) => return Ok(self.buffers),
                Ok(false) => self.reason = None,
                Err(e) => self.reason = Some(e),
            }
            let now = Instant::now();
            if now >= end {
                return Err(self);
            }
            sleep(pause.min(end - now));
            pause = (pause * 2).min(Duration::from_millis(5));
        }
    }
}
