// SPDX-License-Identifier: Apache-2.0
//! The worker's side: packets between the rings in guest memory and the engine's buffers.

mod kick;
mod offload;
mod receive;
mod transmit;

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use netvm_clock as clock;
use rustix::io::Errno;

use crate::nic::csb::Csb;
use crate::nic::pages::Pages;
use crate::nic::registers::{
    RCTL, RCTL_DTYP, RCTL_EN, RECEIVE_RING, TCTL, TCTL_EN, TRANSMIT_RING, cause, ring,
};
use crate::nic::state::State;
use crate::nic::{Delays, Device, Interrupts, Model};

use kick::Kick;
pub use offload::finish_headers;
pub use receive::{NotTaken, Pieces, Receiving};
pub use transmit::{Request, Sent};

/// Bytes of a descriptor.
const DESCRIPTOR: u64 = 16;

/// The device, shared by the port's thread and the worker.
#[derive(Debug)]
pub(crate) struct Shared {
    device: Mutex<Device>,
    /// The device's, which need no lock.
    pub(crate) pages: Arc<Pages>,
    pub(crate) state: Arc<State>,
    /// The guest's driver uses the card: see [`Queue::is_active`].
    is_active: AtomicBool,
    /// When the next pending interrupt is due, in cycles; 0: none was pending at the last check.
    due: AtomicU64,
    kick: Kick,
    /// Requests that the port's thread has handled.
    pub(crate) requests: AtomicU64,
}

impl Shared {
    pub(crate) fn new(device: Device) -> Result<Self, Errno> {
        let (pages, state) = (Arc::clone(&device.pages), Arc::clone(&device.state));
        Ok(Self {
            device: Mutex::new(device),
            pages,
            state,
            is_active: AtomicBool::new(false),
            due: AtomicU64::new(0),
            kick: Kick::new()?,
            requests: AtomicU64::new(0),
        })
    }

    /// For the port's thread. The worker holds the lock for a burst at most; this spins before it waits in the kernel,
    /// so that the worker need not make a system call to wake this thread.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Device> {
        const MAX_TRIES: usize = 2000;
        for _ in 0..MAX_TRIES {
            if let Some(device) = self.try_lock() {
                return device;
            }
            std::hint::spin_loop();
        }
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Device>> {
        match self.device.try_lock() {
            Ok(device) => Some(device),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// After registers or lines were changed: the worker learns whether the card is in use and when an interrupt is
    /// due. It is woken if the guest has announced packets, or an interrupt is due earlier than it knows.
    pub(crate) fn note_activity(&self, device: &Device) {
        let is_enabled = device.register(RCTL) & RCTL_EN != 0 || device.register(TCTL) & TCTL_EN != 0;
        self.is_active.store(device.is_bus_master && is_enabled, Ordering::Relaxed);
        let before = self.due.load(Ordering::Relaxed);
        let due = self.note_due(&device.interrupts);
        let is_earlier = due != 0 && (before == 0 || due < before);
        if is_earlier || self.transmit_tail() != self.pages.load(TRANSMIT_RING + ring::HEAD) {
            self.kick.send();
        }
    }

    /// Returns what the worker learns.
    fn note_due(&self, interrupts: &Interrupts) -> u64 {
        let due = interrupts.due().map_or(0, |due| due.max(1));
        self.due.store(due, Ordering::Relaxed);
        due
    }

    /// The pages for the client, which may ring doorbells without a request from now on.
    pub(crate) fn share_pages(&self) -> BorrowedFd<'_> {
        self.state.set_posts_doorbells(false);
        // The worker has to poll.
        self.kick.send();
        self.pages.file()
    }

    /// TDT.
    pub(crate) fn transmit_tail(&self) -> u32 {
        self.pages.load(TRANSMIT_RING + ring::TAIL)
    }
}

/// The rings, for one worker.
#[derive(Debug)]
pub struct Queue {
    shared: Arc<Shared>,
    /// The driver's communication status block, as of the last turn, and the address of which it was looked for.
    csb: Option<Arc<Csb>>,
    csb_address: u64,
}

impl Queue {
    pub(crate) const fn new(shared: Arc<Shared>) -> Self {
        Self { shared, csb: None, csb_address: 0 }
    }

    /// Whether the guest's driver uses the card.
    #[inline]
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.shared.is_active.load(Ordering::Relaxed)
    }

    /// Whether the guest has announced packets, or a block by which it will. Costs some loads, and no lock.
    #[inline]
    #[must_use]
    pub fn has_packets(&self) -> bool {
        let pages = &self.shared.pages;
        let tail = match self.csb.as_ref().filter(|csb| csb.is_on()) {
            Some(csb) => csb.transmit_tail(),
            None => self.shared.transmit_tail(),
        };
        let is_announced = tail != pages.load(TRANSMIT_RING + ring::HEAD);
        self.is_active() && (is_announced || pages.csb_address() != self.csb_address)
    }

    /// Keeps nothing of a guest that has gone: the memory of its block would stay allocated.
    #[inline]
    pub fn forget_inactive(&mut self) {
        if self.csb.is_some() && !self.is_active() {
            (self.csb, self.csb_address) = (None, 0);
        }
    }

    /// Whether an interrupt waits for its time.
    #[inline]
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.is_active() && self.shared.due.load(Ordering::Relaxed) != 0
    }

    /// For how long the next interrupt that waits for its time has to wait; `None`: none waits.
    #[must_use]
    pub fn time_to_interrupt(&self) -> Option<Duration> {
        let due = self.shared.due.load(Ordering::Relaxed);
        (self.is_active() && due != 0).then(|| clock::duration_of(due.saturating_sub(clock::cycles())))
    }

    /// Call this before the last look at the card before a sleep.
    pub fn begin_wait(&self) {
        if self.has_kicks() {
            self.shared.kick.begin_wait();
        }
    }

    /// A descriptor that becomes readable when the guest announces packets after [`Queue::begin_wait`]. `None` if it
    /// announces them by a store to memory, which wakes no thread: the worker has to poll the card.
    #[must_use]
    pub fn arrival(&self) -> Option<BorrowedFd<'_>> {
        self.has_kicks().then(|| self.shared.kick.fd())
    }

    /// Whether all doorbells come as requests.
    fn has_kicks(&self) -> bool {
        self.shared.state.posts_doorbells() && self.shared.pages.csb_address() == 0
    }

    /// The device, for a burst; `None` while the port's thread uses it, or without a guest. Interrupts are signalled
    /// when the turn ends.
    #[inline]
    pub fn turn(&mut self) -> Option<Turn<'_>> {
        if !self.is_active() {
            return None;
        }
        let mut device = self.shared.try_lock()?;
        // What was true without the lock may have changed.
        if !device.is_bus_master {
            return None;
        }
        if let Some(address) = device.find_csb() {
            self.csb_address = address;
        }
        if let Some(csb) = device.csb() {
            csb.refuse_kicks();
        }
        if self.csb.as_ref().map(Arc::as_ptr) != device.csb().map(Arc::as_ptr) {
            self.csb = device.csb().cloned();
        }
        Some(Turn { device, shared: &self.shared })
    }
}

/// A burst's use of the device.
#[derive(Debug)]
pub struct Turn<'a> {
    device: MutexGuard<'a, Device>,
    shared: &'a Shared,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let polls = self.device.csb().is_some_and(|csb| !csb.wants_received());
        self.device.interrupts.note_polling(polls);
        self.device.interrupts.tick();
        self.shared.note_due(&self.device.interrupts);
    }
}

/// A ring, from its registers, which are read once.
#[derive(Clone, Copy, Debug)]
struct Ring {
    base: u64,
    count: u32,
    head: u32,
    tail: u32,
}

impl Ring {
    /// `None` for a ring without descriptors, or with a head or tail outside it. `tail`: as a communication status
    /// block has it.
    #[inline]
    fn read(pages: &Pages, registers: u32, tail: Option<u32>) -> Option<Self> {
        let load = |register| pages.load(registers + register);
        let base = u64::from(load(ring::BASE) & !15) | u64::from(load(ring::BASE_HIGH)) << 32;
        // Bits 19 to 7: a multiple of eight descriptors.
        let count = (load(ring::LENGTH) & 0x000f_ff80) / DESCRIPTOR as u32;
        let (head, tail) = (load(ring::HEAD) & 0xffff, tail.unwrap_or_else(|| load(ring::TAIL) & 0xffff));
        (head < count && tail < count).then_some(Self { base, count, head, tail })
    }

    /// Descriptors that the card may use.
    #[inline]
    const fn filled(&self) -> u32 {
        if self.tail >= self.head { self.tail - self.head } else { self.tail + self.count - self.head }
    }

    /// Whether a descriptor is one of those that the card may use.
    const fn has_filled(&self, place: u32) -> bool {
        if self.head <= self.tail {
            self.head <= place && place < self.tail
        } else {
            place >= self.head || place < self.tail
        }
    }

    #[inline]
    const fn after(&self, place: u32) -> u32 {
        if place + 1 >= self.count { 0 } else { place + 1 }
    }

    #[inline]
    const fn address(&self, place: u32) -> u64 {
        self.base.wrapping_add(place as u64 * DESCRIPTOR)
    }
}

/// A ring's interrupt delays.
fn delays(pages: &Pages, registers: u32) -> Delays {
    let load = |register| pages.load(registers + register) & 0xffff;
    Delays { since_last: load(ring::DELAY), since_first: load(ring::ABSOLUTE_DELAY) }
}

/// Whether the card receives, and sends. Receive descriptors with several buffers are not supported.
fn is_receiving(device: &Device) -> bool {
    let has_one_buffer = device.model == Model::I82540 || device.register(RCTL) & RCTL_DTYP == 0;
    device.register(RCTL) & RCTL_EN != 0 && has_one_buffer
}

fn is_sending(device: &Device) -> bool {
    device.register(TCTL) & TCTL_EN != 0
}

/// Completes the descriptors that another process had begun to write when it was killed, and announces all that the
/// guest may not know of.
pub(crate) fn go_on(device: &mut Device) {
    device.complete_sent();
    device.repeat_received();
    device.interrupts.raise(cause::RXT0 | cause::TXDW);
}

/// The ring's registers, for [`Ring::read`].
const RECEIVE: u32 = RECEIVE_RING;
const TRANSMIT: u32 = TRANSMIT_RING;
