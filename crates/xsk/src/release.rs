//! Waiting until the kernel has let go of a queue.
//!
//! After `close` the kernel gives up a socket's queue and memory later, in a work item that needs the RTNL lock, and
//! only once the receiver of every frame that was sent has freed it. Until then a driver that copies nothing
//! still has the addresses of our buffers and may write into them. Nothing reports that moment. But the kernel refuses to
//! bind a second socket to a queue until then: so a socket of its own, made ready beforehand with one page of memory,
//! tries to bind to the queue, and when it can, the queue was free.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::sys::{self, Mapping};

/// How long [`crate::Xsk::close`] waits.
const PATIENCE: Duration = Duration::from_secs(5);

/// A socket that is ready to be bound.
#[derive(Debug)]
pub(crate) struct Probe {
    socket: OwnedFd,
    /// Registered with the socket.
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

    /// Whether the queue is free. Copy mode is asked for, in which the driver is not touched. The probe does not go
    /// into the socket map, so no packet reaches it.
    fn is_free(&self) -> io::Result<bool> {
        match sys::bind(self.socket.as_fd(), self.ifindex, self.queue, libc::XDP_COPY) {
            Ok(()) => Ok(true),
            Err(e) => match e.raw_os_error() {
                // When an interface goes, it takes its queues from their sockets before anything else.
                Some(libc::ENODEV) => Ok(true),
                Some(libc::EBUSY | libc::EINTR) => Ok(false),
                _ => Err(e),
            },
        }
    }

    /// Waits for the queue to be free, then gives the buffers out.
    pub(crate) fn wait(self, interface: String, buffers: Vec<u32>) -> Result<Vec<u32>, StillHeld> {
        let queue = self.queue;
        StillHeld { interface, queue, buffers, reason: None, probe: self }.wait(PATIENCE)
    }
}

/// A closed socket whose buffers the kernel has not let go of. They must not be used yet.
#[derive(Debug, thiserror::Error)]
#[error(
    "queue {queue} of {interface} was closed, but the kernel still holds {} buffers{}: frames it sent are still queued \
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
    /// How many buffers are held.
    #[must_use]
    pub fn count(&self) -> usize {
        self.buffers.len()
    }

    /// Waits for up to `patience` and returns the buffers.
    ///
    /// # Errors
    /// Itself, when the kernel still holds them after that.
    pub fn wait(mut self, patience: Duration) -> Result<Vec<u32>, Self> {
        let end = Instant::now() + patience;
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
