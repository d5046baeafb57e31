// SPDX-License-Identifier: Apache-2.0
//! Egress QoS of a port. Input: packets with their length and DSCP. Output: the same packets, in the order
//! and at the rate of the port's queues and its shaper, and packets to drop.
//!
//! A DSCP (RFC 2474) or the caller chooses the queue. Queues with priority are served first, in their order; the others
//! share the remaining rate by their weights (deficit round robin, Shreedhar and Varghese 1995). A shaper,
//! which is a token bucket, limits all queues together. Each queue is bounded, and drops at its head when its
//! packets wait for too long ([`CodelOptions`], RFC 8289).
//!
//! One thread owns a [`Qos`]. Nothing is allocated after [`Qos::new`].

mod codel;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use std::collections::VecDeque;

use thiserror::Error;

use crate::police::{Policer, PolicerError};
use codel::{Codel, Head};

pub use codel::CodelOptions;

/// Bytes that a queue of weight 1 may send per round: more than Ethernet's longest usual frame.
const QUANTUM: u32 = 1600;
/// Number of code points (RFC 2474).
pub const DSCPS: usize = 64;
/// Most queues of a port.
pub const MAX_QUEUES: usize = 16;

/// How a queue is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Served before the queues after it in the list, and before all queues with a weight.
    Priority,
    /// Shares the remaining rate with other queues in this proportion; at least 1.
    Weight(u16),
}

/// A queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueOptions {
    /// Its code points, one bit each.
    pub dscps: u64,
    /// How it is served.
    pub service: Service,
    /// Most packets in it.
    pub limit: usize,
    /// When it drops packets that have waited too long; `None`: never.
    pub codel: Option<CodelOptions>,
}

/// The shaper, a limit in bits per second.
#[derive(Clone, Copy, Debug)]
pub struct ShaperOptions {
    /// Bits per second.
    pub rate: u64,
    /// Bits at once, at least those of the longest packet.
    pub burst: u64,
    /// Cycles per second of the caller's clock.
    pub clock_hz: u64,
}

/// Why queues cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum QosError {
    /// The number of queues.
    #[error("{0} queues: a port has 1 to {MAX_QUEUES}")]
    Queues(usize),
    /// The shaper.
    #[error(transparent)]
    Shaper(#[from] PolicerError),
}

/// The next packet.
#[derive(Debug, PartialEq, Eq)]
pub enum Dequeued<T> {
    /// Send it.
    Send(T, usize),
    /// Drop it: packets have waited in its queue for too long.
    Drop(T, usize),
}

#[derive(Debug)]
struct Waiting<T> {
    item: T,
    bytes: u32,
    since: u64,
}

#[derive(Debug)]
struct Queue<T> {
    waiting: VecDeque<Waiting<T>>,
    limit: usize,
    bytes: u64,
    /// Bytes that the queue may send per round; 0: priority.
    quantum: u32,
    /// Bytes that the queue may still send in this round.
    deficit: u32,
    codel: Option<Codel>,
}

/// The queues of a port. `T` is a packet.
#[derive(Debug)]
pub struct Qos<T> {
    queues: Box<[Queue<T>]>,
    /// Queue of each code point.
    queue_of: [u8; DSCPS],
    shaper: Option<Policer>,
    /// The queue with a weight that is being served.
    current: usize,
    waiting: usize,
}

impl<T> Qos<T> {
    /// Empty queues. Code points that no queue names go to the last one.
    ///
    /// # Errors
    /// [`QosError`] for a number out of range.
    pub fn new(shaper: Option<ShaperOptions>, queues: &[QueueOptions]) -> Result<Self, QosError> {
        if !(1..=MAX_QUEUES).contains(&queues.len()) {
            return Err(QosError::Queues(queues.len()));
        }
        let shaper = shaper.map(|of| Policer::new(of.rate, of.burst, of.clock_hz)).transpose()?;
        let mut queue_of = [(queues.len() - 1) as u8; DSCPS];
        for (n, queue) in queues.iter().enumerate().rev() {
            for (dscp, of) in queue_of.iter_mut().enumerate() {
                if queue.dscps >> dscp & 1 == 1 {
                    *of = n as u8;
                }
            }
        }
        let queues = queues.iter().map(Queue::new).collect();
        Ok(Self { queues, queue_of, shaper, current: 0, waiting: 0 })
    }

    /// Packets that wait.
    #[must_use]
    pub const fn waiting(&self) -> usize {
        self.waiting
    }

    /// Packets and bytes that wait in a queue.
    #[must_use]
    pub fn backlog(&self, queue: usize) -> (usize, u64) {
        self.queues.get(queue).map_or((0, 0), |queue| (queue.waiting.len(), queue.bytes))
    }

    /// The queue of a code point.
    #[inline]
    #[must_use]
    pub fn queue_of(&self, dscp: u8) -> usize {
        usize::from(self.queue_of[usize::from(dscp) % DSCPS])
    }

    /// Puts a packet of `bytes` into a queue.
    ///
    /// # Errors
    /// Gives the packet back if the queue is full.
    #[inline]
    pub fn push(&mut self, queue: usize, item: T, bytes: u32, now: u64) -> Result<(), T> {
        let Some(queue) = self.queues.get_mut(queue).filter(|queue| queue.waiting.len() < queue.limit) else {
            return Err(item);
        };
        queue.waiting.push_back(Waiting { item, bytes, since: now });
        queue.bytes += u64::from(bytes);
        self.waiting += 1;
        Ok(())
    }

    /// Takes the next packet; `None` if none waits, or if the shaper lets none pass yet.
    #[inline]
    pub fn pop(&mut self, now: u64) -> Option<Dequeued<T>> {
        if self.waiting == 0 {
            return None;
        }
        let chosen = self.choose()?;
        let queue = self.queues.get_mut(chosen)?;
        if queue.head_is_late(now) {
            self.waiting -= 1;
            return Some(Dequeued::Drop(queue.take()?.item, chosen));
        }
        let bits = u64::from(queue.waiting.front()?.bytes) * 8;
        if self.shaper.as_ref().is_some_and(|shaper| !shaper.admit(now, bits)) {
            return None;
        }
        self.waiting -= 1;
        let sent = queue.take()?;
        queue.deficit = queue.deficit.saturating_sub(sent.bytes);
        Some(Dequeued::Send(sent.item, chosen))
    }

    /// Takes a packet, regardless of the shaper and CoDel.
    pub fn pop_any(&mut self) -> Option<T> {
        let queue = self.queues.iter_mut().find(|queue| !queue.waiting.is_empty())?;
        self.waiting -= 1;
        queue.take().map(|taken| taken.item)
    }

    /// The queue that goes next: priority in the order of the list, else deficit round robin. A packet waits.
    #[inline]
    fn choose(&mut self) -> Option<usize> {
        let first = |queue: &Queue<T>| queue.quantum == 0 && !queue.waiting.is_empty();
        if let Some(first) = self.queues.iter().position(first) {
            return Some(first);
        }
        // Ends: a queue with packets gains a quantum in each round.
        loop {
            let count = self.queues.len();
            let queue = self.queues.get_mut(self.current)?;
            match queue.waiting.front() {
                Some(head) if queue.deficit >= head.bytes => return Some(self.current),
                Some(_) | None => self.current = (self.current + 1) % count,
            }
            // The queue that comes next gets its share of the new round.
            let queue = self.queues.get_mut(self.current)?;
            queue.deficit =
                if queue.waiting.is_empty() { 0 } else { queue.deficit.saturating_add(queue.quantum) };
        }
    }
}

impl<T> Queue<T> {
    fn new(options: &QueueOptions) -> Self {
        let quantum = match options.service {
            Service::Priority => 0,
            Service::Weight(weight) => QUANTUM * u32::from(weight.max(1)),
        };
        Self {
            waiting: VecDeque::with_capacity(options.limit),
            limit: options.limit,
            bytes: 0,
            quantum,
            deficit: 0,
            codel: options.codel.map(Codel::new),
        }
    }

    fn take(&mut self) -> Option<Waiting<T>> {
        let taken = self.waiting.pop_front()?;
        self.bytes -= u64::from(taken.bytes);
        if self.waiting.is_empty()
            && let Some(codel) = &mut self.codel
        {
            codel.on_empty();
        }
        Some(taken)
    }

    #[inline]
    fn head_is_late(&mut self, now: u64) -> bool {
        let (Some(codel), Some(head)) = (&mut self.codel, self.waiting.front()) else { return false };
        codel.drops(Head { since: head.since, is_followed: self.bytes > u64::from(QUANTUM) }, now)
    }
}
