// SPDX-License-Identifier: Apache-2.0
//! The worker's side of a port. Connections come and go; a worker notices it by one load per burst, and never waits for
//! the port's thread.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use netvm_notify::{EpollWaiter, new_eventfd};
use rustix::io::Errno;

use crate::link::{Calls, Link, Received, Sending};

/// What port, thread and queues share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Counts changes of `link`.
    generation: AtomicU64,
    link: Mutex<Option<Arc<Link>>>,
    wakers: Vec<Waker>,
    /// Workers signal it when the peer has broken a rule.
    pub(crate) alarm: Arc<OwnedFd>,
}

/// What ends the sleep of a queue's worker.
#[derive(Debug)]
struct Waker {
    waiter: EpollWaiter,
    /// The connection has changed.
    changed: OwnedFd,
    /// The eventfd of the queue's ring.
    interrupt: Mutex<Option<Arc<OwnedFd>>>,
}

impl Waker {
    fn new() -> Result<Self, Errno> {
        let (waiter, changed) = (EpollWaiter::new()?, new_eventfd()?);
        waiter.add(&changed)?;
        Ok(Self { waiter, changed, interrupt: Mutex::default() })
    }

    /// Watches another eventfd in place of the last one.
    fn watch(&self, interrupt: Option<Arc<OwnedFd>>) {
        let mut place = self.interrupt.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = place.take() {
            self.waiter.remove(&before);
        }
        // If it cannot be watched, packets come when the worker wakes for something else.
        *place = interrupt.filter(|interrupt| self.waiter.add(interrupt).is_ok());
        netvm_notify::write(&self.changed);
    }
}

impl Shared {
    pub(crate) fn new(queues: u16) -> Result<Self, Errno> {
        Ok(Self {
            generation: AtomicU64::new(0),
            link: Mutex::default(),
            wakers: (0..queues).map(|_| Waker::new()).collect::<Result<_, _>>()?,
            alarm: Arc::new(new_eventfd()?),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Link>>> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the workers another connection, or none. Returns the one before, which they may use for a moment.
    pub(crate) fn exchange(&self, link: Option<Arc<Link>>) -> Option<Arc<Link>> {
        let interrupts: Vec<_> = link.iter().flat_map(|link| link.interrupts()).collect();
        let before = {
            let mut place = self.lock();
            self.generation.fetch_add(1, Ordering::Release);
            std::mem::replace(&mut *place, link)
        };
        let interrupts = interrupts.into_iter().map(Some).chain(std::iter::repeat(None));
        self.wakers.iter().zip(interrupts).for_each(|(waker, interrupt)| waker.watch(interrupt));
        before
    }
}

/// One queue of a port, for one worker.
#[derive(Debug)]
pub struct Queue {
    shared: Arc<Shared>,
    number: usize,
    /// The connection, as of `generation`.
    link: Option<Arc<Link>>,
    generation: u64,
    calls: Calls,
}

impl Queue {
    pub(crate) fn new(shared: Arc<Shared>, number: usize) -> Self {
        Self { shared, number, link: None, generation: 0, calls: Calls::default() }
    }

    /// A queue with this connection, without a port.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn of(link: Link) -> Result<Self, Errno> {
        let shared = Shared::new(1)?;
        link.begin();
        shared.exchange(Some(Arc::new(link)));
        Ok(Self::new(Arc::new(shared), 0))
    }

    /// The connection that is there now.
    #[inline]
    fn link(&mut self) -> Option<&Link> {
        if self.shared.generation.load(Ordering::Acquire) != self.generation {
            self.follow();
        }
        self.link.as_deref().filter(|link| !link.is_broken())
    }

    #[cold]
    fn follow(&mut self) {
        // The port's thread keeps the last reference, so that no worker unmaps memory.
        self.link = None;
        let place = match self.shared.link.try_lock() {
            Ok(place) => place,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        self.link.clone_from(&place);
        self.generation = self.shared.generation.load(Ordering::Relaxed);
        drop(place);
        self.calls.is_pending = false;
    }

    /// Whether a peer is connected.
    #[inline]
    pub fn is_connected(&mut self) -> bool {
        self.link().is_some()
    }

    /// Offers up to `most` packets, in order, to `take`, until it returns `None`: then the packet stays in the ring.
    /// `Some(false)` from it means that the packet is malformed. Returns how many were malformed.
    #[inline]
    pub fn receive(&mut self, most: usize, take: impl FnMut(&Received<'_>) -> Option<bool>) -> u64 {
        let number = self.number;
        self.link().map_or(0, |link| link.receive(number, most, take))
    }

    /// Begins a burst of packets for the peer; `None` without a peer, or while another queue sends by the same ring.
    #[inline]
    pub fn send(&mut self) -> Option<Sending<'_>> {
        if !self.is_connected() {
            return None;
        }
        self.link.as_ref()?.send(self.number, &mut self.calls)
    }

    /// Whether the peer has to be interrupted yet: call [`Queue::send`] again.
    #[inline]
    #[must_use]
    pub const fn has_pending_call(&self) -> bool {
        self.calls.is_pending
    }

    /// Asks the peer for interrupts until packets are received. `true`: packets are waiting. `false`:
    /// [`Queue::arrival`] tells of the next one.
    pub fn begin_wait(&mut self) -> bool {
        self.shared.wakers[self.number].waiter.drain();
        let number = self.number;
        self.link().is_some_and(|link| link.begin_wait(number))
    }

    /// A descriptor that becomes readable when the peer interrupts, or another one is connected. To be polled and not
    /// read.
    #[must_use]
    pub fn arrival(&self) -> BorrowedFd<'_> {
        self.shared.wakers[self.number].waiter.as_fd()
    }
}
