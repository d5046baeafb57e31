//! One AF_XDP socket: the packets of one queue.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libc::xdp_desc;

use crate::buffers::{BufferLayout, BufferSet, RxFrame, TxFrame};
use crate::errors::KickError;
use crate::options::{BusyPoll, RingSizes};
use crate::release::{Probe, StillHeld};
use crate::ring::{Consumer, Producer};
use crate::sys::{self, Mapping};
use crate::umem::Umem;

/// A socket bound to one queue of an interface.
///
/// One thread uses it (it is `Send`, not `Sync`). A buffer belongs either to the caller or to the kernel: it goes to the
/// kernel by [`fill`](Xsk::fill) (to receive into) or [`tx`](Xsk::tx) (to be sent) and comes back by
/// [`rx`](Xsk::rx) or [`completed`](Xsk::completed), or by [`close`](Xsk::close), which returns all that are out. A
/// bit per buffer keeps that account, so that a buffer given twice or returned unasked is caught.
///
/// A round of a worker is: `rx`, work, `tx`, `completed`, `fill`, [`kick`](Xsk::kick). Only `kick` makes a system
/// call, at most one, and only when the kernel asks for it. Dropping the socket closes it without returning buffers.
#[derive(Debug)]
pub struct Xsk {
    fill: Producer<u64>,
    rx: Consumer<xdp_desc>,
    tx: Producer<xdp_desc>,
    completion: Consumer<u64>,
    layout: BufferLayout,
    /// Buffers that the kernel has, and those in `refused`.
    held: BufferSet,
    /// Buffers of frames that cannot be sent, until `completed` returns them. Never grows past its first capacity.
    refused: Vec<u32>,
    /// Frames given to the kernel and not yet completed.
    in_flight: u32,
    zero_copy: bool,
    busy_poll: bool,
    errors: Misuse,
    socket: OwnedFd,
    probe: Probe,
    interface: String,
}

/// What was wrong with buffers and frames on either side; see [`XskStats`] for each.
#[derive(Clone, Copy, Debug, Default)]
struct Misuse {
    fill_refused: u64,
    tx_refused: u64,
    rx_unknown: u64,
    completed_unknown: u64,
}

/// Counters of a socket since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XskStats {
    /// Packets that the kernel dropped: longer than the room in a buffer, or no buffer in the fill ring (copy mode).
    pub rx_dropped: u64,
    /// Packets that the kernel dropped since the rx ring was full: the worker is too slow.
    pub rx_ring_full: u64,
    /// How often the kernel found the fill ring empty: too few buffers given.
    pub fill_empty: u64,
    /// Addresses in the fill ring that the kernel did not take.
    pub rx_invalid: u64,
    /// Frames in the tx ring that the kernel did not take. Their buffers come back by [`Xsk::close`] only.
    pub tx_invalid: u64,
    /// How often the kernel found the tx ring empty.
    pub tx_empty: u64,
    /// Buffers given to [`Xsk::fill`] that do not exist or that the kernel had already.
    pub fill_refused: u64,
    /// Frames given to [`Xsk::tx`] that are empty, leave their buffer, or whose buffer does not exist or was with the kernel.
    pub tx_refused: u64,
    /// Received frames outside of every buffer, or in a buffer that the kernel did not have: dropped.
    pub rx_unknown: u64,
    /// Completions of a buffer that does not exist or that the kernel did not have: ignored.
    pub completed_unknown: u64,
}

/// Reads how many packets the kernel has dropped for want of room at a socket, from any thread.
///
/// It keeps the socket open: drop it before [`Xsk::close`], which else waits in vain.
#[derive(Debug)]
pub struct DropCounter(OwnedFd);

impl DropCounter {
    /// [`XskStats::rx_dropped`] and [`XskStats::rx_ring_full`] together.
    ///
    /// # Errors
    /// Those of `getsockopt`.
    pub fn get(&self) -> io::Result<u64> {
        let kernel = kernel_stats(self.0.as_fd())?;
        Ok(kernel.rx_dropped.saturating_add(kernel.rx_ring_full))
    }
}

fn kernel_stats(socket: BorrowedFd<'_>) -> io::Result<libc::xdp_statistics> {
    sys::option(socket, libc::SOL_XDP, libc::XDP_STATISTICS)
}

/// A failed step: what was tried, and the error.
pub(crate) type Failed = (&'static str, io::Error);

pub(crate) const REGISTER: &str = "register the packet memory";

/// What a socket is made with.
pub(crate) struct Setup<'a> {
    pub(crate) interface: &'a str,
    pub(crate) ifindex: u32,
    pub(crate) queue: u32,
    pub(crate) umem: &'a Umem,
    pub(crate) rings: RingSizes,
    pub(crate) busy_poll: Option<BusyPoll>,
}

impl Xsk {
    /// Registers memory and rings with a new socket and maps the rings (kernels before 6.6 map them only now). The
    /// socket is still to be bound.
    pub(crate) fn new(socket: OwnedFd, setup: &Setup<'_>) -> Result<Self, Failed> {
        let &Setup { interface, ifindex, queue, umem, rings, busy_poll } = setup;
        let step = |step| move |e| (step, e);
        let fd = socket.as_fd();
        umem.register(fd).map_err(step(REGISTER))?;
        for (_, option, entries) in rings.each() {
            sys::set_option(fd, libc::SOL_XDP, option, &entries).map_err(step("make the rings"))?;
        }
        if let Some(busy_poll) = busy_poll {
            set_busy_poll(fd, busy_poll).map_err(step("set up busy polling"))?;
        }
        lift_limits(fd, rings.tx, umem.stride());

        let offsets: libc::xdp_mmap_offsets = sys::option(fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)
            .map_err(step("ask for the rings' layout"))?;
        let map = |place, entries_at: u64, entries: u32, entry: usize| {
            let bytes = entries_at.saturating_add(u64::from(entries) * entry as u64);
            Mapping::ring(fd, place, bytes as usize)
        };
        let (address, descriptor) = (size_of::<u64>(), size_of::<xdp_desc>());
        let failed = step("map the rings");
        let fill = map(sys::FILL_RING, offsets.fr.desc, rings.fill, address)
            .and_then(|m| Producer::new(m, &offsets.fr, rings.fill))
            .map_err(failed)?;
        let completion = map(sys::COMPLETION_RING, offsets.cr.desc, rings.completion, address)
            .and_then(|m| Consumer::new(m, &offsets.cr, rings.completion))
            .map_err(failed)?;
        let rx = map(libc::XDP_PGOFF_RX_RING, offsets.rx.desc, rings.rx, descriptor)
            .and_then(|m| Consumer::new(m, &offsets.rx, rings.rx))
            .map_err(failed)?;
        let tx = map(libc::XDP_PGOFF_TX_RING, offsets.tx.desc, rings.tx, descriptor)
            .and_then(|m| Producer::new(m, &offsets.tx, rings.tx))
            .map_err(failed)?;
        let probe = Probe::new(ifindex, queue).map_err(step("make a second socket to close it by"))?;
        Ok(Self {
            fill,
            rx,
            tx,
            completion,
            layout: umem.layout(),
            held: BufferSet::new(umem.buffers()),
            refused: Vec::with_capacity(rings.tx as usize),
            in_flight: 0,
            zero_copy: false,
            busy_poll: busy_poll.is_some(),
            errors: Misuse::default(),
            socket,
            probe,
            interface: interface.to_owned(),
        })
    }

    /// Binds the socket to its queue, with flags such as `XDP_COPY`, and reads what came of them.
    pub(crate) fn bind(&mut self, ifindex: u32, queue: u32, flags: u16) -> io::Result<()> {
        sys::bind(self.as_fd(), ifindex, queue, flags)?;
        let options: libc::xdp_options = sys::option(self.as_fd(), libc::SOL_XDP, libc::XDP_OPTIONS)?;
        self.zero_copy = options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0;
        Ok(())
    }

    /// Gives free buffers to the kernel to receive into. Returns how many of them, from the first on, it took; the rest
    /// found no room in the fill ring and stay the caller's. A number that is no buffer or that the kernel has already
    /// is taken and counted ([`XskStats::fill_refused`]).
    #[inline]
    pub fn fill(&mut self, buffers: &[u32]) -> usize {
        let taken = self.fill.room(buffers.len());
        let mut written = 0;
        for &buffer in buffers.iter().take(taken) {
            if self.held.insert(buffer) {
                self.fill.write(written, self.layout.address(buffer, 0));
                written += 1;
            } else {
                self.errors.fill_refused += 1;
            }
        }
        if written != 0 {
            self.fill.publish(written);
        }
        taken
    }

    /// Room in the fill ring.
    #[inline]
    pub fn fill_free(&mut self) -> usize {
        self.fill.room(self.fill.size() as usize)
    }

    /// Takes received frames; their buffers are the caller's from now on. Returns how many there were, in the order of
    /// arrival.
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
                _ => self.errors.rx_unknown += 1,
            }
        }
        if count != 0 {
            self.rx.release(count);
        }
        kept
    }

    /// Hands frames to the kernel to be sent in order. Returns how many of them, from the first on, it took; the unsent
    /// tail stays the caller's. The kernel sends at the next [`kick`](Xsk::kick) at the latest.
    ///
    /// A frame that is empty or leaves its buffer is taken, counted ([`XskStats::tx_refused`]) and not sent; its buffer comes
    /// back by [`completed`](Xsk::completed) like the others. So is one whose buffer does not exist or is with the
    /// kernel, but that comes back only as often as the kernel returns it.
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
                    self.errors.tx_refused += 1;
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

    /// Keeps the buffer of a frame that cannot be sent for `completed`. False when there is no room for it.
    #[cold]
    fn refuse(&mut self, buffer: u32) -> bool {
        if self.refused.len() == self.refused.capacity() {
            return false;
        }
        if self.held.insert(buffer) {
            self.refused.push(buffer);
        }
        self.errors.tx_refused += 1;
        true
    }

    /// Takes buffers back whose frames were sent (or dropped on the way). Returns how many.
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
            // The kernel uses the lowest bit of the address for itself, so this may be a byte before the frame's: buffers
            // start at even addresses, so it is in the buffer.
            match self.layout.locate(self.completion.read(ahead)) {
                Some((buffer, _)) if self.held.remove(buffer) => {
                    self.in_flight = self.in_flight.saturating_sub(1);
                    if let Some(slot) = slots.next() {
                        *slot = buffer;
                        kept += 1;
                    }
                }
                _ => self.errors.completed_unknown += 1,
            }
        }
        if count != 0 {
            self.completion.release(count);
        }
        kept
    }

    /// Wakes the kernel where it asks for it: to send what is in the tx ring, to see new buffers in the fill ring. At most
    /// one system call; none when nothing waits. To be called once a round, also when the round did nothing: a frame
    /// can wait in the ring since the interface was busy.
    ///
    /// # Errors
    /// [`KickError`] when the interface is down or gone. That it is busy is no error.
    #[inline]
    pub fn kick(&mut self) -> Result<(), KickError> {
        // In copy mode the flag of the tx ring is always set, and frames that the kernel took complete by themselves.
        let send = self.in_flight != 0 && self.tx.needs_wakeup() && (self.zero_copy || self.tx.is_pending());
        let receive = self.fill.needs_wakeup();
        if send || receive || self.busy_poll { self.wake(send, receive) } else { Ok(()) }
    }

    #[inline(never)]
    fn wake(&self, send: bool, receive: bool) -> Result<(), KickError> {
        let fd = self.socket.as_fd();
        // Busy polling is done by sendto and recvfrom, not by poll.
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

    /// Frames given to the kernel that have not come back by [`completed`](Xsk::completed).
    #[inline]
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Buffers that the socket has: with the kernel in any of its rings, or refused and not yet taken back.
    #[inline]
    #[must_use]
    pub fn held(&self) -> u32 {
        self.held.count()
    }

    /// Whether the driver uses the buffers itself. Otherwise the kernel copies between them and buffers of its own.
    #[must_use]
    pub fn zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Counters of the kernel and of this end.
    ///
    /// # Errors
    /// Those of `getsockopt`.
    pub fn stats(&self) -> io::Result<XskStats> {
        let kernel = kernel_stats(self.as_fd())?;
        let Misuse { fill_refused, tx_refused, rx_unknown, completed_unknown } = self.errors;
        Ok(XskStats {
            rx_dropped: kernel.rx_dropped,
            rx_ring_full: kernel.rx_ring_full,
            fill_empty: kernel.rx_fill_ring_empty_descs,
            rx_invalid: kernel.rx_invalid_descs,
            tx_invalid: kernel.tx_invalid_descs,
            tx_empty: kernel.tx_ring_empty_descs,
            fill_refused,
            tx_refused,
            rx_unknown,
            completed_unknown,
        })
    }

    /// What another thread counts dropped packets by, while this one uses the socket.
    ///
    /// # Errors
    /// No more file descriptors.
    pub fn drop_counter(&self) -> io::Result<DropCounter> {
        self.socket.try_clone().map(DropCounter)
    }

    /// Closes the socket and returns every buffer that it has, in order, once the kernel has let go of them: frames in the
    /// tx ring that it has not taken are not sent. Takes some milliseconds, so a worker hands the socket to another
    /// thread for this.
    ///
    /// # Errors
    /// [`StillHeld`] when the kernel has not let go after five seconds; it can be waited for again.
    pub fn close(self) -> Result<Vec<u32>, StillHeld> {
        let Self { fill, rx, tx, completion, held, socket, probe, interface, .. } = self;
        // The mappings keep the socket alive too.
        drop((fill, rx, tx, completion, socket));
        probe.wait(interface, held.to_vec())
    }
}

impl AsFd for Xsk {
    /// For `poll` and `epoll`: readable when frames wait in the rx ring. Wait for `POLLIN` only (`POLLOUT` is nearly
    /// always there), after a [`kick`](Xsk::kick) and a look at `rx`. It does not report that the interface went away.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn set_busy_poll(socket: BorrowedFd<'_>, BusyPoll { micros, budget }: BusyPoll) -> io::Result<()> {
    sys::set_option(socket, libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, &1u32)?;
    sys::set_option(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, &micros)?;
    sys::set_option(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL_BUDGET, &budget)
}

/// Lifts two limits of copy mode as far as the kernel lets us: a wake-up sends 32 frames (to be changed since Linux 6.17),
/// and the socket's send buffer holds about 90.
fn lift_limits(socket: BorrowedFd<'_>, frames: u32, stride: u32) {
    /// Frames of one wake-up: at about a microsecond each, as long as a worker may be away.
    const BUDGET: u32 = 256;
    let _ = sys::set_option(socket, libc::SOL_XDP, sys::XDP_MAX_TX_SKB_BUDGET, &frames.min(BUDGET));
    let bytes = frames.saturating_mul(stride + 1024).min(1 << 29);
    let _ = sys::set_option(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes);
}
