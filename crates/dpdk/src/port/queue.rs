// SPDX-License-Identifier: Apache-2.0
//! The packet path of a port: bursts from a receive queue into a batch, and from a batch to a transmit queue.
//!
//! A burst costs one call into DPDK, and a system call only if the driver needs one.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

use dpdk_sys as sys;

use super::Inner;
use crate::{Batch, PortNumber, QueueId};

/// A receive queue. It has one owner, and keeps its port open.
#[derive(Debug)]
pub struct RxQueue {
    port: Arc<Inner>,
    id: QueueId,
    /// DPDK's queues are not thread-safe: the owner may move, not share it.
    _one_thread: PhantomData<Cell<()>>,
}

/// A transmit queue. It has one owner, and keeps its port open.
#[derive(Debug)]
pub struct TxQueue {
    port: Arc<Inner>,
    id: QueueId,
    _one_thread: PhantomData<Cell<()>>,
}

impl RxQueue {
    pub(crate) const fn new(port: Arc<Inner>, id: QueueId) -> Self {
        Self { port, id, _one_thread: PhantomData }
    }

    /// The port.
    #[inline]
    #[must_use]
    pub fn port(&self) -> PortNumber {
        self.port.number()
    }

    /// Which of the port's queues it is.
    #[inline]
    #[must_use]
    pub const fn id(&self) -> QueueId {
        self.id
    }

    /// Receives packets into the batch, as many as it has room for, and returns how many. Pass an empty batch: some
    /// drivers receive nothing into fewer than 32 slots.
    #[inline]
    pub fn burst(&mut self, batch: &mut Batch) -> usize {
        self.burst_of(batch, Batch::CAPACITY)
    }

    /// [`RxQueue::burst`] for at most `most` packets.
    #[inline]
    pub fn burst_of(&mut self, batch: &mut Batch, most: usize) -> usize {
        let (spare, room) = batch.spare();
        let most = most.min(room) as u16;
        // SAFETY: the port is started and has this queue while `self` holds it; `&mut self` of its only handle keeps
        // other threads from the queue. There is room for `most` pointers.
        let count = usize::from(unsafe { sys::netvm_rx_burst(self.port.number().0, self.id.0, spare, most) });
        // SAFETY: the driver has written `count` mbufs there and given them up.
        unsafe { batch.assume_added(count) };
        count
    }
}

impl TxQueue {
    pub(crate) const fn new(port: Arc<Inner>, id: QueueId) -> Self {
        Self { port, id, _one_thread: PhantomData }
    }

    /// The port.
    #[inline]
    #[must_use]
    pub fn port(&self) -> PortNumber {
        self.port.number()
    }

    /// Which of the port's queues it is.
    #[inline]
    #[must_use]
    pub const fn id(&self) -> QueueId {
        self.id
    }

    /// Sends packets from the front of the batch and returns how many; the others stay in order.
    ///
    /// The driver may never accept the first unsent packet, for example if it is longer than the MTU. Drop the rest
    /// after one or two attempts.
    #[inline]
    pub fn burst(&mut self, batch: &mut Batch) -> usize {
        let count = batch.len() as u16;
        if count == 0 {
            return 0;
        }
        // SAFETY: as for receiving; the first `count` pointers are mbufs that the batch owns, each within its buffer.
        let sent = unsafe { sys::netvm_tx_burst(self.port.number().0, self.id.0, batch.as_mut_ptr(), count) };
        // SAFETY: the driver owns the first `sent` now, which is at most `count`.
        unsafe { batch.forget_front(usize::from(sent)) };
        usize::from(sent)
    }
}
