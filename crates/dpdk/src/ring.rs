// SPDX-License-Identifier: Apache-2.0
//! DPDK's `rte_ring` of mbuf pointers with one producer and one consumer.
//!
//! DPDK's multi-process applications pass packets by such rings. netvm uses them only in a benchmark, as a peer of its
//! own rings. The wrapper is thin: one call into C per burst.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dpdk_sys as sys;

use crate::log::{Control, c_string, quoted, reason};
use crate::{Batch, Eal, NumaNode};

/// A ring could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The number of slots is not a power of two, or too large.
    #[error("a ring cannot have {0} slots: use a power of two from 2 to 1048576")]
    Slots(u32),
    /// DPDK refused.
    #[error("DPDK cannot make a ring of {slots} slots: {}{}", reason(libc::ENOMEM), quoted(.log))]
    Refused {
        /// The number requested.
        slots: u32,
        /// What DPDK logged.
        log: String,
    },
}

#[derive(Debug)]
struct Inner(NonNull<sys::rte_ring>);

// SAFETY: the ring is made for two threads; each end has one handle, so no more use it.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// The end of the ring at which packets are enqueued.
#[derive(Debug)]
pub struct RingProducer(Arc<Inner>);

/// The end of the ring at which packets are dequeued.
#[derive(Debug)]
pub struct RingConsumer(Arc<Inner>);

/// Makes a ring that holds `slots` - 1 packets, in the memory of a NUMA node.
///
/// ```
/// use dpdk::{Batch, Eal, EalOptions, HugePages};
///
/// let eal = Eal::init(&EalOptions { huge_pages: HugePages::Off, ..EalOptions::default() })?;
/// let (mut producer, mut consumer) = dpdk::ring(eal, 512, None)?;
/// let mut batch = Batch::new();
/// assert_eq!(producer.enqueue(&mut batch), 0);
/// assert_eq!(consumer.dequeue(&mut batch, 32), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`RingError`] for a number of slots that is not possible, or too little memory.
pub fn ring(
    _eal: Eal,
    slots: u32,
    node: Option<NumaNode>,
) -> Result<(RingProducer, RingConsumer), RingError> {
    static NEXT: AtomicU32 = AtomicU32::new(0);

    if !slots.is_power_of_two() || !(2..=1 << 20).contains(&slots) {
        return Err(RingError::Slots(slots));
    }
    let name = c_string(&format!("nv{}", NEXT.fetch_add(1, Ordering::Relaxed))).unwrap_or_default();
    let node = NumaNode::to_signed(node);
    let control = Control::enter();
    // SAFETY: a NUL-terminated name, which DPDK copies.
    let ring = unsafe { sys::rte_ring_create(name.as_ptr(), slots, node, sys::NETVM_RING_SPSC) };
    let Some(ring) = NonNull::new(ring) else {
        return Err(RingError::Refused { slots, log: control.log() });
    };
    let inner = Arc::new(Inner(ring));
    Ok((RingProducer(Arc::clone(&inner)), RingConsumer(inner)))
}

impl RingProducer {
    /// Moves packets from the front of the batch into the ring and returns how many; the others stay, in order.
    #[inline]
    pub fn enqueue(&mut self, batch: &mut Batch) -> usize {
        let count = batch.len() as u32;
        // SAFETY: the ring is alive; this is its only producer, as there is one handle and this borrows it mutably.
        let moved = unsafe { sys::netvm_ring_enqueue(self.0.0.as_ptr(), batch.as_mut_ptr(), count) } as usize;
        // SAFETY: the ring owns the first `moved` now, which is at most `count`.
        unsafe { batch.forget_front(moved) };
        moved
    }
}

impl RingConsumer {
    /// Moves at most `most` packets from the ring into the batch, as it has room, and returns how many.
    #[inline]
    pub fn dequeue(&mut self, batch: &mut Batch, most: usize) -> usize {
        let (spare, room) = batch.spare();
        let count = most.min(room) as u32;
        // SAFETY: the ring is alive and this is its only consumer; there is room for `count` pointers.
        let moved = unsafe { sys::netvm_ring_dequeue(self.0.0.as_ptr(), spare, count) } as usize;
        // SAFETY: the ring has written `moved` mbufs there and given them up.
        unsafe { batch.assume_added(moved) };
        moved
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut batch = Batch::new();
        loop {
            let (spare, room) = batch.spare();
            // SAFETY: both ends are gone, so this is the only user.
            let moved = unsafe { sys::netvm_ring_dequeue(self.0.as_ptr(), spare, room as u32) } as usize;
            if moved == 0 {
                break;
            }
            // SAFETY: as in `dequeue`.
            unsafe { batch.assume_added(moved) };
            batch.clear();
        }
        let _control = Control::enter();
        // SAFETY: both ends are gone.
        unsafe { sys::rte_ring_free(self.0.as_ptr()) };
    }
}
