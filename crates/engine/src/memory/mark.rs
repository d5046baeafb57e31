// SPDX-License-Identifier: Apache-2.0
//! What stages note of a packet in its mbuf, as a 16-bit number that stays with it in chains, copies and segments,
//! since mbufs are private to the engine:
//!
//! - the queue that a rule chooses, until the packet leaves by a port, whose shaper has a table from numbers to queues;
//! - the state of its connection, if the port that received it tracks connections, for the rules of the port that it
//!   leaves by;
//! - its connection and direction, in two further fields of the mbuf, if its source may have to be translated when it
//!   leaves;
//! - the role of the NF that has made it, in these fields, until it has a connection or another NF holds it.
//!
//! [`clear`] runs on each received packet, so a packet never has what was noted of an earlier one in its mbuf. Buffers
//! from the engine's pools have nothing noted.
//!
//! Cost: `clear`, one store of 2 bytes to the line of the mbuf that the rx stage writes anyway. A queue: one
//! comparison per group of packets with the same decision; at ports with a shaper, one load from the same line for
//! each packet, and for those with a number one byte of a table of 256 in the cache, instead of parsing the headers
//! for the DSCP.

use dpdk::Mbuf;
use netvm_policy::QueueId;
use netvm_wire::ConnState;

use crate::ids::RoleId;

/// Nothing is noted.
const NOTHING: u16 = 0;
/// The bits of the queue: its number plus one.
const QUEUE: u16 = 0x1ff;
/// Its connection is noted.
const HAS_CONNECTION: u16 = 1 << 9;
/// It is a reply.
const IS_REPLY: u16 = 1 << 10;
/// NAT64 has made it of a packet of the other family.
const OF_OTHER_FAMILY: u16 = 1 << 11;
/// Where the bits of the state begin.
const STATE: u32 = 12;
/// The bits of the state.
const STATES: u16 = 0b111 << STATE;
/// The role of the NF that has made it is noted.
const MADE: u16 = 1 << 15;
/// What the two further fields tell.
const NOTES: u16 = HAS_CONNECTION | OF_OTHER_FAMILY | MADE;

/// Notes a packet's queue. A later call replaces it.
#[inline(always)]
pub(crate) fn set_queue(mbuf: &mut Mbuf, queue: QueueId) {
    mbuf.set_mark((mbuf.mark() & !QUEUE) | (u16::from(queue.0) + 1));
}

/// Notes the state of a packet's connection. A later call replaces it.
#[inline(always)]
pub(crate) fn set_state(mbuf: &mut Mbuf, state: ConnState) {
    mbuf.set_mark((mbuf.mark() & !STATES) | ((state as u16) << STATE));
}

/// Notes nothing.
#[inline(always)]
pub(crate) fn clear(mbuf: &mut Mbuf) {
    mbuf.set_mark(NOTHING);
}

/// Notes nothing but the queue: the packet is within another one now.
#[inline(always)]
pub(crate) fn keep_queue(mbuf: &mut Mbuf) {
    mbuf.set_mark(mbuf.mark() & QUEUE);
}

/// The queue that a rule has chosen.
#[inline(always)]
pub(crate) fn queue_of(mbuf: &Mbuf) -> Option<QueueId> {
    u8::try_from((mbuf.mark() & QUEUE).checked_sub(1)?).ok().map(QueueId)
}

/// The state of a packet's connection.
#[inline(always)]
pub(crate) fn state_of(mbuf: &Mbuf) -> ConnState {
    ConnState::ALL.get(usize::from((mbuf.mark() & STATES) >> STATE)).copied().unwrap_or_default()
}

/// Notes that a packet of a connection was one of the other family: its source may be an address of the router itself.
#[inline(always)]
pub(crate) fn set_of_other_family(mbuf: &mut Mbuf, of: OfConnection) {
    let direction = if of.is_reply { IS_REPLY } else { 0 };
    mbuf.set_mark((mbuf.mark() & !(IS_REPLY | MADE)) | OF_OTHER_FAMILY | direction);
    mbuf.set_note(of.connection);
}

/// Whether a packet was one of the other family.
#[inline(always)]
pub(crate) fn is_of_other_family(mbuf: &Mbuf) -> bool {
    mbuf.mark() & OF_OTHER_FAMILY != 0
}

/// A packet's connection, and its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OfConnection {
    /// As [`ConnectionId::note`](netvm_conntrack::ConnectionId::note).
    pub(crate) connection: (u32, u16),
    pub(crate) is_reply: bool,
}

/// Notes a packet's connection.
#[inline(always)]
pub(crate) fn set_connection(mbuf: &mut Mbuf, of: OfConnection) {
    let direction = if of.is_reply { IS_REPLY } else { 0 };
    mbuf.set_mark((mbuf.mark() & !(IS_REPLY | MADE)) | HAS_CONNECTION | direction);
    mbuf.set_note(of.connection);
}

/// Forgets a packet's connection, whose part is done.
#[inline(always)]
pub(crate) fn forget_connection(mbuf: &mut Mbuf) {
    mbuf.set_mark(mbuf.mark() & !(HAS_CONNECTION | IS_REPLY));
}

/// The connection that is noted of a packet.
#[inline(always)]
pub(crate) fn connection_of(mbuf: &Mbuf) -> Option<OfConnection> {
    let mark = mbuf.mark();
    let of = || OfConnection { connection: mbuf.note(), is_reply: mark & IS_REPLY != 0 };
    (mark & HAS_CONNECTION != 0).then(of)
}

/// The connection of a packet that NAT translates, or has translated.
pub(crate) fn translation_of(mbuf: &Mbuf) -> Option<OfConnection> {
    let mark = mbuf.mark();
    let of = || OfConnection { connection: mbuf.note(), is_reply: mark & IS_REPLY != 0 };
    (mark & (HAS_CONNECTION | OF_OTHER_FAMILY) != 0).then(of)
}

/// Notes of an empty buffer that NFs of a role make a packet in it, and nothing else.
pub(crate) fn set_maker(mbuf: &mut Mbuf, role: RoleId) {
    mbuf.set_mark(MADE);
    mbuf.set_note((0, role.0));
}

/// The role of the NF that has made a packet.
#[inline(always)]
pub(crate) fn maker_of(mbuf: &Mbuf) -> Option<RoleId> {
    (mbuf.mark() & MADE != 0).then(|| RoleId(mbuf.note().1))
}

/// Forgets which NF has made a packet.
pub(crate) fn forget_maker(mbuf: &mut Mbuf) {
    mbuf.set_mark(mbuf.mark() & !MADE);
}

/// Notes of a copy what is noted of its original.
#[inline(always)]
pub(crate) fn copy(from: &Mbuf, to: &mut Mbuf) {
    to.set_mark(from.mark());
    if from.mark() & NOTES != 0 {
        to.set_note(from.note());
    }
}

#[cfg(test)]
mod tests {
    use dpdk::Batch;

    use super::*;
    use crate::memory::Memory;

    #[test]
    fn what_is_noted_of_a_packet_stays_beside_its_maker() {
        let memory = Memory::for_tests(8, 0, 8);
        let mut two = Batch::new();
        memory.pool.alloc_into(&mut two, 2);
        let (mut copied, mut made) = (two.pop().unwrap(), two.pop().unwrap());
        assert_eq!(maker_of(&made), None);
        set_maker(&mut made, RoleId(7));
        set_queue(&mut made, QueueId(3));
        for state in ConnState::ALL {
            set_state(&mut made, state);
            assert_eq!((maker_of(&made), state_of(&made)), (Some(RoleId(7)), state));
        }
        assert_eq!((queue_of(&made), connection_of(&made)), (Some(QueueId(3)), None));
        copy(&made, &mut copied);
        assert_eq!(maker_of(&copied), Some(RoleId(7)));
        forget_maker(&mut copied);
        assert_eq!((maker_of(&copied), queue_of(&copied)), (None, Some(QueueId(3))));
        // The fields that name the maker tell its connection then.
        let of = OfConnection { connection: (70_000, 9), is_reply: true };
        set_connection(&mut made, of);
        assert_eq!((maker_of(&made), connection_of(&made)), (None, Some(of)));
        set_maker(&mut made, RoleId(8));
        set_of_other_family(&mut made, of);
        assert_eq!((maker_of(&made), is_of_other_family(&made)), (None, true));
        clear(&mut copied);
        assert_eq!((maker_of(&copied), state_of(&copied)), (None, ConnState::Untracked));
    }
}
