// SPDX-License-Identifier: Apache-2.0
//! Both directions of a connection, for workers: which descriptors are theirs, and the packets in them.

mod end;
mod receive;
mod transmit;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use crate::status::Fault;
pub(crate) use end::End;
pub use receive::Received;
pub(crate) use receive::Rx;
pub(crate) use transmit::{Calls, Tx};
pub use transmit::{NotTaken, Sending};

/// A connection, as workers use it.
#[derive(Debug)]
pub struct Link {
    /// By queue: the ring that it receives from.
    rx: Vec<Mutex<Rx>>,
    /// Rings to send to, which queues share if there are fewer.
    tx: Vec<Mutex<Tx>>,
    /// The peer has broken a rule: the connection is of no use.
    is_broken: AtomicBool,
    /// An eventfd for the port's thread, which then ends the connection.
    alarm: Arc<OwnedFd>,
}

impl Link {
    pub(crate) fn new(rx: Vec<Rx>, tx: Vec<Tx>, alarm: &Arc<OwnedFd>) -> Self {
        let (rx, tx) = (rx.into_iter().map(Mutex::new), tx.into_iter().map(Mutex::new));
        let is_broken = AtomicBool::new(false);
        Self { rx: rx.collect(), tx: tx.collect(), is_broken, alarm: Arc::clone(alarm) }
    }

    /// Whether the peer has broken a rule of the rings.
    #[inline]
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Relaxed)
    }

    /// The peer has broken a rule.
    #[cold]
    fn note_broken(&self) {
        if !self.is_broken.swap(true, Ordering::Relaxed) {
            netvm_notify::write(&self.alarm);
        }
    }

    /// The connection is up at both ends: the client's buffers become the server's.
    pub(crate) fn begin(&self) {
        for rx in &self.rx {
            rx.lock().unwrap_or_else(PoisonError::into_inner).begin();
        }
    }

    /// Eventfds by which the peer announces packets, by queue.
    pub(crate) fn interrupts(&self) -> impl Iterator<Item = Arc<OwnedFd>> {
        self.rx.iter().map(|rx| Arc::clone(rx.lock().unwrap_or_else(PoisonError::into_inner).interrupt()))
    }

    /// Offers up to `most` packets of a queue, in order, to `take`, until it returns `None`: then the packet stays in
    /// the ring. `Some(false)` from it means that the packet is malformed. Returns how many were malformed.
    #[inline]
    pub(crate) fn receive(
        &self,
        queue: usize,
        most: usize,
        mut take: impl FnMut(&Received<'_>) -> Option<bool>,
    ) -> u64 {
        let Some(mut rx) = self.rx.get(queue).and_then(try_lock) else { return 0 };
        rx.receive(most, &mut take).unwrap_or_else(|_: Fault| {
            self.note_broken();
            0
        })
    }

    /// Asks the peer for interrupts. Returns whether packets are there already.
    pub(crate) fn begin_wait(&self, queue: usize) -> bool {
        self.rx.get(queue).and_then(try_lock).is_some_and(|mut rx| rx.begin_wait())
    }

    /// Begins a burst of a queue's packets; `None` while another queue sends by the same ring.
    #[inline]
    pub(crate) fn send<'a>(&'a self, queue: usize, calls: &'a mut Calls) -> Option<Sending<'a>> {
        let tx = self.tx.get(queue % self.tx.len().max(1)).and_then(try_lock)?;
        Sending::new(self, tx, calls)
    }
}

fn try_lock<T>(place: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match place.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
