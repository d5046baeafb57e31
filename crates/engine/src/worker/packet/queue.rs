//! In: packets for which a rule chooses the queue. Out: the same packets; each mbuf has the number of the queue's name,
//! until the packet leaves by a port, whose shaper has a table from numbers to queues.
//!
//! - [`clear`] runs on each received packet, so a packet never has the number of an earlier one in its mbuf. Buffers
//!   from the engine's pools have none.
//! - The number stays with the mbuf in chains, since mbufs are private to the engine. Copies and segments get it too.
//!
//! Cost: `clear`, one store of 2 bytes to the line of the mbuf that the rx stage writes anyway. `set`, the same store,
//! and one comparison per group of packets with the same decision. Ports with a shaper: one load from the same line for
//! each packet, and for those with a number one byte of a table of 256 in the cache, instead of parsing the headers for
//! the DSCP.

use dpdk::Mbuf;
use netvm_policy::QueueId;

/// Number in an mbuf without a queue.
const NONE: u16 = 0;

/// Notes a packet's queue. A later call replaces it.
#[inline(always)]
pub(crate) fn set(mbuf: &mut Mbuf, queue: QueueId) {
    mbuf.set_queue_id(u16::from(queue.0) + 1);
}

/// Notes that no rule has chosen a queue.
#[inline(always)]
pub(crate) fn clear(mbuf: &mut Mbuf) {
    mbuf.set_queue_id(NONE);
}

/// The queue that a rule has chosen.
#[inline(always)]
pub(crate) fn of(mbuf: &Mbuf) -> Option<QueueId> {
    u8::try_from(mbuf.queue_id().checked_sub(1)?).ok().map(QueueId)
}

/// Gives a copy the queue of its original.
#[inline(always)]
pub(crate) fn copy(from: &Mbuf, to: &mut Mbuf) {
    to.set_queue_id(from.queue_id());
}
