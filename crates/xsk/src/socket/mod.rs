// SPDX-License-Identifier: Apache-2.0
//! The packet path of one AF_XDP socket, bound to one queue of an interface.
//!
//! A round of a worker is `rx`, work, `tx`, `completed`, `fill`, `kick`. Only `kick` makes a system call, at most one,
//! and only if the kernel asks for it.

mod release;
mod setup;
mod stats;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libc::xdp_desc;

use crate::buffers::{BufferLayout, BufferSet, RxFrame, TxFrame};
use crate::errors::KickError;
use crate::kernel::cores::QueueCore;
use crate::kernel::ring::{Consumer, Producer};
use crate::kernel::sys;
use release::Probe;
use stats::MisuseCounters;

pub use release::StillHeld;
pub(crate) use setup::{REGISTER, Setup};
pub use stats::{DropCounter, XskStats};

/// A socket bound to one queue of an interface.
///
/// One thread at a time uses it (it is `Send`, not `Sync`). Either the caller or the kernel has a buffer.
/// [`fill`](Xsk::fill) (to receive into) and [`tx`](Xsk::tx) (to send) pass it to the kernel; [`rx`](Xsk::rx) and
/// [`completed`](Xsk::completed) return it, and [`close`](Xsk::close) returns the rest. One bit per buffer tracks this,
/// so a buffer that is given or returned twice is detected.
///
/// Dropping the socket closes it without returning buffers.
#[derive(Debug)]
pub struct Xsk {
    fill: Producer<u64>,
    rx: Consumer<xdp_desc>,
    tx: Producer<xdp_desc>,
    completion: Consumer<u64>,
    layout: BufferLayout,
    /// Buffers that the kernel has, and those in `refused`.
    held: BufferSet,
    /// Buffers of frames that cannot be sent, until `completed` returns them. Never grows beyond its initial
    /// capacity.
    refused: Vec<u32>,
    /// Frames given to the kernel and not yet completed.
    in_flight: u32,
    zero_copy: bool,
    busy_poll: bool,
    misuse: MisuseCounters,
    kernel_core: QueueCore,
    socket: OwnedFd,
    probe: Probe,
    interface: String,
}

impl Xsk {
    /// Passes free buffers to the kernel to receive into. Returns how many it took, from the front; the rest did not
    /// fit in the fill ring and stay with the caller. A buffer that does not exist or that the kernel already has is
    /// taken and counted ([`XskStats::fill_refused`]).
    #[inline]
    pub fn fill(&mut self, buffers: &[u32]) -> usize {
        let taken = self.fill.room(buffers.len());
        let mut written = 0;
        for &buffer in buffers.iter().take(taken) {
            if self.held.insert(buffer) {
                self.fill.write(written, self.layout.address(buffer, 0));
                written += 1;
            } else {
                self.misuse.fill_refused += 1;
            }
        }
        if written != 0 {
            self.fill.publish(written);
        }
        taken
    }

    /// Free entries in the fill ring.
    #[inline]
    pub fn fill_free(&mut self) -> usize {
        self.fill.room(self.fill.size() as usize)
    }

    /// Takes received frames in order of arrival and returns how many. Their buffers now belong to the caller.
    #[inline]
    pub fn rx(&mut self, out: &mut [RxFrame]) -> usize {
        let count = self.rx.available(out.len());
        let mut slots = out.iter_mut();
        let mut kept = 0;
        for ahead in 0..count {
            let descriptor = self.rx.read(ahead);
            match self.layout.frame(descriptor.addr, descriptor.len) {
                Some(frame) if self.held.remove(frame.buffer) => {
                    if let Some(slot) = slots.next() {
                        *slot = frame;
                        kept += 1;
                    }
                }
                _ => self.misuse.rx_unknown += 1,
            }
        }
        if count != 0 {
            self.rx.release(count);
        }
        kept
    }

    /// Passes frames to the kernel to send in order. Returns how many it took, from the front; the unsent tail stays
    /// with the caller. The kernel sends at the next [`kick`](Xsk::kick) at the latest.
    ///
    /// A frame that is empty or exceeds its buffer is taken and counted ([`XskStats::tx_refused`]) but not sent;
    /// [`completed`](Xsk::completed) returns its buffer like the others. A frame whose buffer does not exist or is with
    /// the kernel is also taken and counted, but its buffer returns only as often as the kernel returns it.
    #[inline]
    pub fn tx(&mut self, frames: &[TxFrame]) -> usize {
        let room = self.tx.room(frames.len());
        let mut taken = 0;
        let mut written = 0;
        for frame in frames.iter().take(room) {
            if self.layout.holds(frame) {
                if self.held.insert(frame.buffer) {
                    let addr = self.layout.address(frame.buffer, frame.offset);
                    self.tx.write(written, xdp_desc { addr, len: u32::from(frame.len), options: 0 });
                    written += 1;
                } else {
                    self.misuse.tx_refused += 1;
                }
            } else if !self.refuse(frame.buffer) {
                break;
            }
            taken += 1;
        }
        if written != 0 {
            self.in_flight += written as u32;
            self.tx.publish(written);
        }
        taken
    }

    /// Keeps the buffer of a frame that cannot be sent for `completed`; false if there is no room.
    #[cold]
    fn refuse(&mut self, buffer: u32) -> bool {
        if self.refused.len() == self.refused.capacity() {
            return false;
        }
        if self.held.insert(buffer) {
            self.refused.push(buffer);
        }
        self.misuse.tx_refused += 1;
        true
    }

    /// Takes back the buffers of frames that were sent, or dropped on the way, and returns how many.
    #[inline]
    pub fn completed(&mut self, out: &mut [u32]) -> usize {
        let mut slots = out.iter_mut();
        let mut kept = 0;
        while !self.refused.is_empty()
            && let Some(slot) = slots.next()
        {
            if let Some(buffer) = self.refused.pop() {
                self.held.remove(buffer);
                *slot = buffer;
                kept += 1;
            }
        }
        let count = self.completion.available(slots.len());
        for ahead in 0..count {
            // The kernel uses the lowest bit of the address itself, so this may be the byte before the frame. Buffers
            // start at even addresses, so it is still within the buffer.
            match self.layout.locate(self.completion.read(ahead)) {
                Some((buffer, _)) if self.held.remove(buffer) => {
                    self.in_flight = self.in_flight.saturating_sub(1);
                    if let Some(slot) = slots.next() {
                        *slot = buffer;
                        kept += 1;
                    }
                }
                _ => self.misuse.completed_unknown += 1,
            }
        }
        if count != 0 {
            self.completion.release(count);
        }
        kept
    }

    /// Wakes the kernel if it asks for it, to send frames or to read the fill ring. At most one system call; none if
    /// nothing is pending. Call it once per round, even if the round did nothing: a frame may be waiting in the ring
    /// since the interface was busy.
    ///
    /// # Errors
    /// [`KickError`] if the interface is down or gone. A busy interface is not an error.
    #[inline]
    pub fn kick(&mut self) -> Result<(), KickError> {
        let send = self.has_to_send();
        let receive = self.fill.needs_wakeup();
        if send || receive || self.busy_poll { self.wake(send, receive) } else { Ok(()) }
    }

    /// [Kicks](Xsk::kick), and returns whether the kernel needs another kick to send the rest. It does not while the
    /// interface is down: the frames wait for the next ones.
    #[inline]
    pub fn kick_to_send(&mut self) -> bool {
        self.kick().is_ok() && self.has_to_send()
    }

    /// Whether the kernel sends more frames only after another [`kick`](Xsk::kick): in copy mode each sends a limited
    /// number.
    #[inline]
    #[must_use]
    pub fn has_to_send(&self) -> bool {
        // In copy mode the flag of the tx ring is always set, and frames that the kernel took complete on their own.
        self.in_flight != 0 && self.tx.needs_wakeup() && (self.zero_copy || self.tx.is_pending())
    }

    #[inline(never)]
    fn wake(&self, send: bool, receive: bool) -> Result<(), KickError> {
        let fd = self.socket.as_fd();
        // Only sendto and recvfrom busy poll; poll does not.
        let result = match (send, receive) {
            (true, true) if !self.busy_poll => sys::wake_both(fd),
            (true, _) => sys::wake_send(fd),
            (false, _) => sys::wake_receive(fd),
        };
        match result {
            Ok(()) => Ok(()),
            Err(e) => match e.raw_os_error() {
                Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR) => Ok(()),
                Some(libc::ENETDOWN) => Err(KickError::Down),
                Some(libc::ENXIO) => Err(KickError::Gone),
                _ => Err(KickError::System(e)),
            },
        }
    }

    /// Frames passed to the kernel and not yet returned by [`completed`](Xsk::completed).
    #[inline]
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Buffers in any ring of the socket, or refused and not yet taken back.
    #[inline]
    #[must_use]
    pub fn held(&self) -> u32 {
        self.held.count()
    }

    /// The core on which the kernel received the queue's last packet; `None` before the first one. A thread that polls
    /// on that core may keep the kernel's own threads (threaded NAPI, `ksoftirqd`) from receiving more.
    #[must_use]
    pub fn kernel_core(&self) -> Option<u32> {
        self.kernel_core.get()
    }

    /// Whether the driver uses the buffers directly. Otherwise the kernel copies packets.
    #[must_use]
    pub fn zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Closes the socket and returns all its buffers, in ascending order, once the kernel has released them. Frames
    /// still in the tx ring are not sent. Takes some milliseconds, so a worker leaves it to another thread.
    ///
    /// # Errors
    /// [`StillHeld`] if the kernel has not released them after five seconds; the caller can wait again.
    pub fn close(self) -> Result<Vec<u32>, StillHeld> {
        let Self { fill, rx, tx, completion, held, socket, probe, interface, .. } = self;
        // The mappings keep the socket open too.
        drop((fill, rx, tx, completion, socket));
        probe.wait(interface, held.to_vec())
    }
}

impl AsFd for Xsk {
    /// For `poll` and `epoll`: readable when frames are in the rx ring. Wait for `POLLIN` only, as `POLLOUT` is nearly
    /// always set, and call [`kick`](Xsk::kick) and `rx` first. It does not report that the interface went away.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
