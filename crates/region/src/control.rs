// SPDX-License-Identifier: Apache-2.0
//! Control memory, shared by the engine and one NF. The engine writes the header and a command; the NF reports epochs
//! and counters; packets pass in the rings.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use netvm_ring::{RingMemory, ring_bytes};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::{Geometry, LAYOUT_VERSION, MAX_NF_THREADS, MapError, Mapping, OLDEST_LAYOUT, Pages, kind};

mod mailbox;
mod nf_counter;
mod ready_message;
mod stock;
mod workers;

pub use mailbox::{BrokenMailbox, MAX_MAIL, Mailbox, Side};
pub use netvm_ids::{MAX_THREADS, MAX_WORKERS};
pub use nf_counter::NfCounter;
pub use ready_message::ReadyMessage;
pub use stock::Quota;

/// Most regions of a trust group: one on each NUMA node.
pub const MAX_REGIONS: usize = netvm_ids::MAX_NODES;
/// Most counters that an NF can define.
pub const MAX_COUNTERS: usize = 32;

const THREADS_AT: u64 = 4096;
const THREAD_BYTES: u64 = 512;
const COMMAND_AT: u64 = 2048;

/// The header: the layout, and the NF's identity. The engine writes it before it shares the memory; the NF copies it
/// once.
///
/// ```text
///  0            ControlHeader
///  2048         command           see [`Command`]
///  2052         notify            see [`NotifyMode`]
///  2064         workers           the engine's workers now; see [`Control::set_workers`]
///  2560         ready message     of an NF in a VM; see [`ReadyMessage`]
///  4096         threads           512 bytes each: epoch, heartbeat, standard and own counters; written by the NF
///  rings_at     rings             for each thread, for each worker that there can be: the ring to the NF, then the
///                                 ring from it
///  bytes        empty buffers     for each thread, for each worker: the ring of empty buffers; since layout 11
///               mailbox           of an NF in a VM; see [`Mailbox`]
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ControlHeader {
    magic: u64,
    layout: u32,
    /// Number of the NF's trust group.
    pub group: u32,
    /// Bytes without the rings of empty buffers.
    bytes: u64,
    rings_at: u64,
    ring_stride: u32,
    /// Slots of each ring.
    pub ring_capacity: u32,
    /// Number of the NF's role.
    pub role: u16,
    /// Threads of the NF.
    pub threads: u16,
    /// The most workers that the engine can have: rings are there for as many.
    pub workers: u16,
    /// Regions of the group.
    pub regions: u16,
    /// The NF thread number of each thread.
    pub nf_threads: [u8; MAX_THREADS],
    /// The layout of each region.
    pub geometries: [Geometry; MAX_REGIONS],
    // Control memory of layout 10 ends here.
    stock_at: u64,
    stock_stride: u32,
    /// Slots of each ring of empty buffers; 0: there are none.
    stock_capacity: u32,
    /// What each thread may keep of each worker's buffers.
    quota: Quota,
    /// Whether there is a mailbox: 0 or 1.
    mailbox: u64,
}

/// Why control memory cannot be created or used.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The engine uses another layout.
    #[error(
        "the engine uses layout {found}, this NF layouts {} to {}: build both from the same netvm",
        OLDEST_LAYOUT,
        LAYOUT_VERSION
    )]
    Layout {
        /// The version in the header.
        found: u32,
    },
    /// The memory is not control memory, or its numbers are inconsistent.
    #[error("the memory passed is not the control memory of an NF ({0})")]
    Unsound(&'static str),
    /// The memory cannot be created or mapped.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// The engine's command to an NF, read once per loop turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Keep running.
    Run,
    /// Return all packets and exit.
    Stop,
}

/// How an NF in a VM notifies workers and other NFs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum NotifyMode {
    /// It does not; receivers of its packets poll.
    #[default]
    Poll,
    /// By a register of its `ivshmem-doorbell` device, to which it writes the number of an eventfd. The workers'
    /// eventfds come first, then those of the NF threads.
    Doorbell,
}

/// State that one NF thread reports. The engine reads it only as numbers.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct CounterBlock {
    /// The epoch of the table that the thread uses.
    pub epoch: AtomicU64,
    /// Changes while the thread makes progress: with every burst, every few packets of it, and while it waits for room
    /// in a ring. The engine's watchdog compares it.
    pub heartbeat: AtomicU64,
    /// See [`NfCounter`].
    pub standard: [AtomicU64; NfCounter::COUNT],
    /// The NF's own counters.
    pub own: [AtomicU64; MAX_COUNTERS],
}

const _: () = assert!(size_of::<CounterBlock>() as u64 <= THREAD_BYTES);
const _: () = assert!(size_of::<ControlHeader>() as u64 <= COMMAND_AT);

/// The control memory of an NF, mapped by the engine or by the NF.
#[derive(Debug)]
pub struct Control {
    mapping: Mapping,
    header: ControlHeader,
}

/// The engine's choices for an admitted NF.
#[derive(Clone, Debug)]
pub struct Admission {
    /// The version of the layout that the NF was built for, or the oldest one if it is not known.
    pub layout: u32,
    /// What each of its threads may keep of each worker's buffers.
    pub quota: Quota,
    /// Number of the trust group.
    pub group: u32,
    /// Number of the role.
    pub role: u16,
    /// Slots of the NF's rings, a power of two.
    pub ring_capacity: u32,
    /// For each thread of the NF, its NF thread number.
    pub nf_threads: Vec<u8>,
    /// The most workers that the engine can have.
    pub workers: u16,
    /// For each worker that it has, the region in which its packets are.
    pub worker_regions: Vec<u8>,
    /// The layout of each region.
    pub geometries: Vec<Geometry>,
    /// The NF gets a mailbox, as it has no socket.
    pub mailbox: bool,
}

impl Control {
    /// Creates the control memory of an NF with empty rings.
    ///
    /// # Errors
    /// [`ControlError::Unsound`] if a number is out of range, [`ControlError::Map`] if memory runs out.
    pub fn create(name: &str, admission: &Admission, node: Option<u32>) -> Result<Self, ControlError> {
        let mut header = ControlHeader::new_zeroed();
        header.magic = kind::CONTROL;
        header.layout = admission.layout;
        header.quota = admission.quota;
        header.mailbox = admission.mailbox.into();
        header.group = admission.group;
        header.role = admission.role;
        header.ring_capacity = admission.ring_capacity;
        header.threads = admission.nf_threads.len() as u16;
        header.workers = admission.workers;
        header.regions = admission.geometries.len() as u16;
        fill(&mut header.nf_threads, &admission.nf_threads)?;
        fill(&mut header.geometries, &admission.geometries)?;
        RingMemory::check_capacity(admission.ring_capacity)
            .map_err(|_| ControlError::Unsound("ring capacity"))?;
        header.lay_out();
        header.check()?;
        header.check_workers(&admission.worker_regions)?;
        let mapping = Mapping::create(name, header.all_bytes(), Pages::Normal, node)?;
        // SAFETY: the start of a mapping that is not shared yet.
        unsafe { mapping.at::<ControlHeader>(0).write(header) };
        let this = Self { mapping, header };
        for thread in 0..header.threads {
            for worker in 0..header.workers {
                this.ring_to_nf(thread, worker).initialise();
                this.ring_from_nf(thread, worker).initialise();
                if let Some(ring) = this.ring_of_buffers(thread, worker) {
                    ring.initialise();
                }
            }
        }
        this.set_workers(&admission.worker_regions);
        Ok(this)
    }

    /// Maps the control memory that the engine passed.
    ///
    /// # Errors
    /// [`ControlError`] if it has another layout or is inconsistent.
    pub fn open(fd: OwnedFd) -> Result<Self, ControlError> {
        let whole = rustix::fs::fstat(&fd).map_err(|_| ControlError::Unsound("no file"))?.st_size as u64;
        if whole < THREADS_AT {
            return Err(ControlError::Unsound("too small"));
        }
        let mapping = Mapping::open("control", fd, whole, true)?;
        // SAFETY: the start of the mapping; every bit pattern is a ControlHeader, and the copy is checked below.
        let header = unsafe { mapping.at::<ControlHeader>(0).read_volatile() };
        if header.magic != kind::CONTROL {
            return Err(ControlError::Unsound("magic"));
        }
        if !(OLDEST_LAYOUT..=LAYOUT_VERSION).contains(&header.layout) {
            return Err(ControlError::Layout { found: header.layout });
        }
        header.check()?;
        if header.all_bytes() > whole {
            return Err(ControlError::Unsound("truncated"));
        }
        Ok(Self { mapping, header })
    }

    /// The header, as it was written or copied.
    #[must_use]
    pub const fn header(&self) -> &ControlHeader {
        &self.header
    }

    /// The memory itself.
    #[must_use]
    pub const fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// The ring from a worker to a thread of the NF.
    ///
    /// # Panics
    /// If the thread or the worker does not exist.
    #[must_use]
    pub fn ring_to_nf(&self, thread: u16, worker: u16) -> RingMemory {
        self.ring(thread, worker, 0)
    }

    /// The ring from a thread of the NF to a worker.
    ///
    /// # Panics
    /// If the thread or the worker does not exist.
    #[must_use]
    pub fn ring_from_nf(&self, thread: u16, worker: u16) -> RingMemory {
        self.ring(thread, worker, 1)
    }

    fn ring(&self, thread: u16, worker: u16, direction: u64) -> RingMemory {
        let h = &self.header;
        assert!(thread < h.threads && worker < h.workers, "thread {thread}, worker {worker} of {h:?}");
        let index = (u64::from(thread) * u64::from(h.workers) + u64::from(worker)) * 2 + direction;
        let base = self.mapping.at(h.rings_at + index * u64::from(h.ring_stride));
        // SAFETY: the checked header keeps `ring_stride` bytes, aligned to 128, there; Control keeps them mapped, and
        // every ring end keeps the Control.
        match unsafe { RingMemory::from_raw(base, h.ring_capacity) } {
            Ok(ring) => ring,
            Err(error) => unreachable!("{error}: checked with the header"),
        }
    }

    /// The state that a thread of the NF reports.
    ///
    /// # Panics
    /// If the thread does not exist.
    #[must_use]
    pub fn thread(&self, thread: u16) -> &CounterBlock {
        assert!(thread < self.header.threads, "thread {thread}");
        // SAFETY: within the mapping by the checked header; all fields are atomics.
        unsafe { self.mapping.at::<CounterBlock>(THREADS_AT + u64::from(thread) * THREAD_BYTES).as_ref() }
    }

    /// The engine's command.
    #[must_use]
    pub fn command(&self) -> Command {
        if self.command_word().load(Ordering::Relaxed) == 0 { Command::Run } else { Command::Stop }
    }

    /// Asks the NF to stop. The caller must wake it if it sleeps.
    pub fn request_stop(&self) {
        self.command_word().store(1, Ordering::Relaxed);
    }

    /// The ready message of an NF in a VM, if there is one.
    #[must_use]
    pub fn ready_message(&self) -> Option<ReadyMessage> {
        ready_message::read(&self.mapping)
    }

    /// Sets how the VM with this memory notifies others. The engine calls this before the VM starts.
    pub fn set_notify(&self, notify: NotifyMode) {
        self.notify_word().store(u32::from(notify == NotifyMode::Doorbell), Ordering::Relaxed);
    }

    /// How this VM notifies others.
    #[must_use]
    pub fn notify(&self) -> NotifyMode {
        if self.notify_word().load(Ordering::Relaxed) == 1 { NotifyMode::Doorbell } else { NotifyMode::Poll }
    }

    fn notify_word(&self) -> &AtomicU32 {
        // SAFETY: within the mapping's first page, used only as an atomic.
        unsafe { self.mapping.at::<AtomicU32>(COMMAND_AT + 4).as_ref() }
    }

    fn command_word(&self) -> &AtomicU32 {
        // SAFETY: within the mapping's first page, used only as an atomic.
        unsafe { self.mapping.at::<AtomicU32>(COMMAND_AT).as_ref() }
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.mapping.as_fd()
    }
}

fn fill<T: Copy>(to: &mut [T], from: &[T]) -> Result<(), ControlError> {
    let to = to.get_mut(..from.len()).ok_or(ControlError::Unsound("too many threads, workers or regions"))?;
    to.copy_from_slice(from);
    Ok(())
}

impl ControlHeader {
    fn lay_out(&mut self) {
        self.ring_stride = ring_bytes(self.ring_capacity).next_multiple_of(128) as u32;
        self.rings_at = (THREADS_AT + u64::from(self.threads) * THREAD_BYTES).next_multiple_of(4096);
        let rings = u64::from(self.threads) * u64::from(self.workers) * 2;
        let end = self.rings_at + rings * u64::from(self.ring_stride);
        self.bytes = end.next_multiple_of(4096);
        self.lay_out_stock();
    }

    fn check(&self) -> Result<(), ControlError> {
        let within = |value: u16, most: usize| (1..=most).contains(&usize::from(value));
        if !within(self.threads, MAX_THREADS)
            || !within(self.workers, MAX_WORKERS)
            || !within(self.regions, MAX_REGIONS)
        {
            return Err(ControlError::Unsound("numbers of threads, workers or regions"));
        }
        if RingMemory::check_capacity(self.ring_capacity).is_err() {
            return Err(ControlError::Unsound("ring capacity"));
        }
        self.check_quota()?;
        self.check_mailbox()?;
        let mut expected = *self;
        expected.lay_out();
        if expected != *self {
            return Err(ControlError::Unsound("offsets"));
        }
        let used = &self.nf_threads[..usize::from(self.threads)];
        if used.iter().any(|nf_thread| *nf_thread == 0 || usize::from(*nf_thread) >= MAX_NF_THREADS) {
            return Err(ControlError::Unsound("NF threads"));
        }
        if self.geometries[..usize::from(self.regions)].iter().any(|geometry| !geometry.is_sound()) {
            return Err(ControlError::Unsound("region layout"));
        }
        Ok(())
    }

    fn check_workers(&self, regions: &[u8]) -> Result<(), ControlError> {
        if regions.is_empty() || regions.len() > usize::from(self.workers) {
            return Err(ControlError::Unsound("number of workers"));
        }
        if regions.iter().any(|region| u16::from(*region) >= self.regions) {
            return Err(ControlError::Unsound("regions of workers"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
