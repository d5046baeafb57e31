//! The memory that the engine shares with one NF alone: its rings and its counters.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use netvm_ring::{RingMemory, ring_bytes};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::ready_message::{self, ReadyMessage};
use crate::{Geometry, LAYOUT_VERSION, MAX_STATIONS, MapError, Mapping, Pages, kind};

/// Threads that an NF can have.
pub const MAX_THREADS: usize = 16;
/// Workers that an engine can have.
pub const MAX_WORKERS: usize = 32;
/// Regions (NUMA nodes) that a trust group can have.
pub const MAX_REGIONS: usize = 4;
/// Counters that an NF can name for itself.
pub const MAX_COUNTERS: usize = 32;

const THREADS_AT: u64 = 4096;
const THREAD_BYTES: u64 = 512;
const COMMAND_AT: u64 = 2048;

/// What an NF needs to find its way. Written by the engine before the memory is passed on, copied by the NF once.
///
/// ```text
///  0            ControlHeader
///  2048         command           the engine's word to the NF
///  2052         notify            how an NF in a VM wakes others; see [`Notify`]
///  2560         ready_message          what an NF in a VM says when it attaches; see [`ReadyMessage`]
///  4096         threads           512 bytes each: epoch, heartbeat, standard and own counters; written by the NF
///  rings_at     rings             for each thread, for each worker: the ring to the NF, then the ring from it
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ControlHeader {
    magic: u64,
    layout: u32,
    /// Number of the NF's trust group.
    pub group: u32,
    /// Bytes of the whole memory.
    bytes: u64,
    rings_at: u64,
    ring_stride: u32,
    /// Slots of each ring.
    pub ring_capacity: u32,
    /// Number of the NF's role.
    pub role: u16,
    /// Threads of the NF.
    pub threads: u16,
    /// Workers of the engine.
    pub workers: u16,
    /// Regions of the group.
    pub regions: u16,
    /// The NF thread of each thread.
    pub nf_threads: [u8; MAX_THREADS],
    /// The region in which each worker's packets are.
    pub worker_regions: [u8; MAX_WORKERS],
    /// The layout of each region.
    pub geometries: [Geometry; MAX_REGIONS],
}

/// Why an NF cannot use the control memory that it was given.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// It was built for another layout.
    #[error(
        "the engine speaks layout {theirs}, this NF layout {}: build both from the same netvm",
        LAYOUT_VERSION
    )]
    Layout {
        /// The version in the header.
        theirs: u32,
    },
    /// It is no control memory, or its numbers do not fit together.
    #[error("the memory passed is not the control memory of an NF ({0})")]
    Unsound(&'static str),
    /// It could not be made or mapped.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// What the engine tells an NF in passing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Go on.
    Run,
    /// Send on what you hold and leave.
    Stop,
}

/// How an NF in a VM tells others that there are packets for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Notify {
    /// Not at all: the receiver of its packets polls.
    #[default]
    Poll,
    /// By a register of its `ivshmem-doorbell` device: what it writes there is the number of an eventfd. Workers come first,
    /// by their numbers, then NF threads by theirs.
    Doorbell,
}

/// Counters that netlib keeps for every thread, by their place in [`CounterBlock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum StandardCounter {
    /// Packets taken from rings.
    Received = 0,
    /// Packets passed to the next hop.
    Next = 1,
    /// Packets discarded.
    Dropped = 2,
    /// Packets sent out of a port.
    Port = 3,
    /// Packets sent to a role.
    Role = 4,
    /// Bursts taken.
    Bursts = 5,
    /// Cycles spent on bursts, the NF's own work included.
    Cycles = 6,
    /// Cycles of these that the NF's own code took.
    NfCycles = 7,
    /// Packets that found the ring after them full and went round by the engine.
    Detoured = 8,
    /// How often the thread slept.
    Sleeps = 9,
}

impl StandardCounter {
    /// How many there are.
    pub const COUNT: usize = 10;
}

/// What one thread of an NF tells the engine, in memory that the engine only ever reads as numbers.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct CounterBlock {
    /// The table epoch that the thread works by.
    pub epoch: AtomicU64,
    /// Moves while the thread is alive to its rings.
    pub heartbeat: AtomicU64,
    /// See [`StandardCounter`].
    pub standard: [AtomicU64; StandardCounter::COUNT],
    /// The NF's own.
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

/// What the engine decides about an NF when it lets it in.
#[derive(Clone, Debug)]
pub struct Admission {
    /// Number of the trust group.
    pub group: u32,
    /// Number of the role.
    pub role: u16,
    /// Slots of the NF's rings, a power of two.
    pub ring_capacity: u32,
    /// An NF thread for each thread.
    pub nf_threads: Vec<u8>,
    /// For each worker, the region in which its packets are.
    pub worker_regions: Vec<u8>,
    /// The layout of each region.
    pub geometries: Vec<Geometry>,
}

impl Control {
    /// Makes the control memory of an NF, its rings empty.
    ///
    /// # Errors
    /// [`ControlError::Unsound`] when a number is not possible, [`ControlError::Map`] when the memory is not to be had.
    pub fn create(name: &str, admission: &Admission, node: Option<u32>) -> Result<Self, ControlError> {
        let mut header = ControlHeader::new_zeroed();
        header.magic = kind::CONTROL;
        header.layout = LAYOUT_VERSION;
        header.group = admission.group;
        header.role = admission.role;
        header.ring_capacity = admission.ring_capacity;
        header.threads = admission.nf_threads.len() as u16;
        header.workers = admission.worker_regions.len() as u16;
        header.regions = admission.geometries.len() as u16;
        fill(&mut header.nf_threads, &admission.nf_threads)?;
        fill(&mut header.worker_regions, &admission.worker_regions)?;
        fill(&mut header.geometries, &admission.geometries)?;
        RingMemory::check_capacity(admission.ring_capacity)
            .map_err(|_| ControlError::Unsound("ring capacity"))?;
        header.place();
        header.check()?;
        let mapping = Mapping::create(name, header.bytes, Pages::Normal, node)?;
        // SAFETY: the start of a mapping that nobody else has yet.
        unsafe { mapping.at::<ControlHeader>(0).write(header) };
        let this = Self { mapping, header };
        for thread in 0..header.threads {
            for worker in 0..header.workers {
                this.ring_to_nf(thread, worker).initialise();
                this.ring_from_nf(thread, worker).initialise();
            }
        }
        Ok(this)
    }

    /// Maps the control memory that the engine passed.
    ///
    /// # Errors
    /// [`ControlError`] when it was made for another layout or is not sound.
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
        if header.layout != LAYOUT_VERSION {
            return Err(ControlError::Layout { theirs: header.layout });
        }
        header.check()?;
        if header.bytes > whole {
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
    /// For a thread or worker that there is not.
    #[must_use]
    pub fn ring_to_nf(&self, thread: u16, worker: u16) -> RingMemory {
        self.ring(thread, worker, 0)
    }

    /// The ring from a thread of the NF to a worker.
    ///
    /// # Panics
    /// For a thread or worker that there is not.
    #[must_use]
    pub fn ring_from_nf(&self, thread: u16, worker: u16) -> RingMemory {
        self.ring(thread, worker, 1)
    }

    fn ring(&self, thread: u16, worker: u16, way: u64) -> RingMemory {
        let h = &self.header;
        assert!(thread < h.threads && worker < h.workers, "thread {thread}, worker {worker} of {h:?}");
        let index = (u64::from(thread) * u64::from(h.workers) + u64::from(worker)) * 2 + way;
        let base = self.mapping.at(h.rings_at + index * u64::from(h.ring_stride));
        // SAFETY: the checked header keeps `ring_stride` bytes, aligned to 128, there; Control keeps them mapped, and
        // those who make an end of the ring keep the Control.
        match unsafe { RingMemory::from_raw(base, h.ring_capacity) } {
            Ok(ring) => ring,
            Err(error) => unreachable!("{error}: checked with the header"),
        }
    }

    /// What a thread of the NF tells.
    ///
    /// # Panics
    /// For a thread that there is not.
    #[must_use]
    pub fn thread(&self, thread: u16) -> &CounterBlock {
        assert!(thread < self.header.threads, "thread {thread}");
        // SAFETY: within the mapping by the checked header; all fields are atomics.
        unsafe { self.mapping.at::<CounterBlock>(THREADS_AT + u64::from(thread) * THREAD_BYTES).as_ref() }
    }

    /// The engine's word to the NF.
    #[must_use]
    pub fn command(&self) -> Command {
        if self.command_word().load(Ordering::Relaxed) == 0 { Command::Run } else { Command::Stop }
    }

    /// Tells the NF to stop. A sleeping NF must be woken to see it.
    pub fn tell_stop(&self) {
        self.command_word().store(1, Ordering::Relaxed);
    }

    /// What an NF in a VM has said, if it has; any number of times.
    #[must_use]
    pub fn ready_message(&self) -> Option<ReadyMessage> {
        ready_message::read(&self.mapping)
    }

    /// Says how the VM that is to have this memory wakes others. For the engine, before the VM is started.
    pub fn set_notify(&self, notify: Notify) {
        self.notify_word().store(u32::from(notify == Notify::Doorbell), Ordering::Relaxed);
    }

    /// How this VM wakes others.
    #[must_use]
    pub fn notify(&self) -> Notify {
        if self.notify_word().load(Ordering::Relaxed) == 1 { Notify::Doorbell } else { Notify::Poll }
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
    fn place(&mut self) {
        self.ring_stride = ring_bytes(self.ring_capacity).next_multiple_of(128) as u32;
        self.rings_at = (THREADS_AT + u64::from(self.threads) * THREAD_BYTES).next_multiple_of(4096);
        let rings = u64::from(self.threads) * u64::from(self.workers) * 2;
        self.bytes = (self.rings_at + rings * u64::from(self.ring_stride)).next_multiple_of(4096);
    }

    fn check(&self) -> Result<(), ControlError> {
        let within = |value: u16, most: usize| (1..=most).contains(&usize::from(value));
        if !within(self.threads, MAX_THREADS)
            || !within(self.workers, MAX_WORKERS)
            || !within(self.regions, MAX_REGIONS)
        {
            return Err(ControlError::Unsound("numbers of threads, workers, regions"));
        }
        if RingMemory::check_capacity(self.ring_capacity).is_err() {
            return Err(ControlError::Unsound("ring capacity"));
        }
        let mut placed = *self;
        placed.place();
        if placed != *self {
            return Err(ControlError::Unsound("places"));
        }
        let used = &self.nf_threads[..usize::from(self.threads)];
        if used.iter().any(|nf_thread| *nf_thread == 0 || usize::from(*nf_thread) >= MAX_STATIONS) {
            return Err(ControlError::Unsound("nf_threads"));
        }
        if self.worker_regions[..usize::from(self.workers)].iter().any(|r| u16::from(*r) >= self.regions) {
            return Err(ControlError::Unsound("regions of workers"));
        }
        if self.geometries[..usize::from(self.regions)].iter().any(|geometry| !geometry.is_sound()) {
            return Err(ControlError::Unsound("region layout"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RegionSpec;
    use netvm_ring::Descriptor;

    fn admission() -> Admission {
        Admission {
            group: 3,
            role: 9,
            ring_capacity: 64,
            nf_threads: vec![1, 2],
            worker_regions: vec![0, 1, 0],
            geometries: vec![Geometry::new(RegionSpec::default()).unwrap(); 2],
        }
    }

    fn opened(engine: &Control) -> Result<Control, ControlError> {
        Control::open(engine.as_fd().try_clone_to_owned().unwrap())
    }

    #[test]
    fn every_ring_is_its_own() {
        let engine = Control::create("control-test", &admission(), None).unwrap();
        let nf = opened(&engine).unwrap();
        assert_eq!(engine.header(), nf.header());
        for thread in 0..2u16 {
            for worker in 0..3u16 {
                let number = u32::from(thread * 3 + worker);
                // SAFETY: one producer for each ring.
                let (mut to, mut from) = unsafe {
                    (engine.ring_to_nf(thread, worker).producer(), nf.ring_from_nf(thread, worker).producer())
                };
                to.push(&[Descriptor::new(number, 0, 0)]);
                from.push(&[Descriptor::new(number + 100, 0, 0)]);
            }
        }
        for thread in 0..2u16 {
            for worker in 0..3u16 {
                let number = u32::from(thread * 3 + worker);
                // SAFETY: one consumer for each ring.
                let (mut to, mut from) = unsafe {
                    (nf.ring_to_nf(thread, worker).consumer(), engine.ring_from_nf(thread, worker).consumer())
                };
                let mut out = [Descriptor::default(); 2];
                assert_eq!((to.pop(&mut out), out[0].buffer()), (1, number));
                assert_eq!((from.pop(&mut out), out[0].buffer()), (1, number + 100));
            }
        }
        nf.thread(1).own[31].store(5, Ordering::Relaxed);
        assert_eq!(engine.thread(1).own[31].load(Ordering::Relaxed), 5);
        engine.tell_stop();
        assert_eq!(nf.command(), Command::Stop);
    }

    #[test]
    fn another_layout_is_refused_with_its_version() {
        let engine = Control::create("control-test", &admission(), None).unwrap();
        // SAFETY: the header's layout word; only this thread uses the memory.
        unsafe { engine.mapping.at::<u32>(8).write_volatile(LAYOUT_VERSION + 1) };
        let error = opened(&engine).unwrap_err();
        assert!(matches!(error, ControlError::Layout { theirs } if theirs == LAYOUT_VERSION + 1), "{error}");
    }

    #[test]
    fn an_unsound_header_is_refused_whatever_is_wrong_with_it() {
        let engine = Control::create("control-test", &admission(), None).unwrap();
        let good = *engine.header();
        let mut refused = 0;
        for byte in 0..size_of::<ControlHeader>() {
            let mut bytes = good.as_bytes().to_vec();
            bytes[byte] ^= 0xff;
            let bad = ControlHeader::read_from_bytes(&bytes).unwrap();
            // SAFETY: the header; only this thread uses the memory.
            unsafe { engine.mapping.at::<ControlHeader>(0).write_volatile(bad) };
            match opened(&engine) {
                Err(_) => refused += 1,
                // Names of group and role are any number, and entries beyond the counts are not looked at.
                Ok(control) => {
                    let _ = control.ring_from_nf(good.threads - 1, good.workers - 1);
                }
            }
        }
        assert!(refused > 60, "{refused}");
    }

    #[test]
    fn too_many_of_anything_is_refused() {
        let wrong = [
            Admission { nf_threads: vec![1; 17], ..admission() },
            Admission { nf_threads: vec![], ..admission() },
            Admission { nf_threads: vec![0], ..admission() },
            Admission { worker_regions: vec![2], ..admission() },
            Admission { ring_capacity: 63, ..admission() },
        ];
        for wrong in wrong {
            assert!(Control::create("control-test", &wrong, None).is_err(), "{wrong:?}");
        }
    }
}
