// SPDX-License-Identifier: Apache-2.0
//! In: packets that a rule rejects, which are dropped. Out: an answer to each sender by the same port: a TCP reset,
//! else ICMP or ICMPv6 "administratively prohibited". Or packets that are too long for a tunnel, and must not be cut:
//! the answer says the MTU, and the port of the tunnel receives it, as if the destination had sent it.
//!
//! All workers together send at most 1000 answers per second, so that a flood of rejected packets does not cause a
//! flood of answers (RFC 1812 section 4.3.2.8). Resets, ICMP errors, fragments other than the first, and packets from
//! or to a group address get no answer (RFC 1122 section 3.2.2).

use dpdk::Mbuf;
use netvm_switch::Policer;
use netvm_wire::reply::{MAX_ANSWER, Undelivered};

use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::worker::next::{Dispatch, Next, Step};
use crate::worker::packet::keys::HEADER_BYTES;

/// Answers the senders of packets, which are dropped.
#[cold]
pub(crate) fn answer(burst: &mut Dispatch<'_>, from: PortId) -> Step {
    answer_each(burst, answer_for);
    Step::Copies(Next::Tx(from), Next::drop_at(from, DropReason::Rejected))
}

/// Tells the senders of packets, which are dropped, the longest that the tunnel of a port carries.
#[cold]
pub(crate) fn tell_mtu(burst: &mut Dispatch<'_>, from: PortId, mtu: u16) -> Step {
    answer_each(burst, |mbuf, answer| mtu_answer_for(mbuf, mtu, answer));
    Step::Copies(Next::Rx(from), Next::drop_at(from, DropReason::ExceedsMtu))
}

/// Makes the answers that a function writes, as far as the limit of answers admits them.
fn answer_each(burst: &mut Dispatch<'_>, write: impl Fn(&Mbuf, &mut [u8]) -> Option<usize>) {
    let Dispatch { dp, cx, batch, split } = burst;
    let Some(memory) = dp.memories.get(cx.memory) else { return };
    for mbuf in batch.as_slice() {
        let mut answer = [0u8; MAX_ANSWER];
        let length = write(mbuf, &mut answer);
        let Some(length) = length.filter(|_| admits(dp.limits.rejects.as_ref(), dp.clock.now)) else {
            continue;
        };
        if !super::answer::add(memory, &mut split.copies, mbuf.port(), &answer[..length]) {
            break;
        }
    }
}

/// Whether the sender of a rejected packet gets an answer, if the limit of answers admits it.
pub(crate) fn has_answer(packet: &Mbuf) -> bool {
    answer_for(packet, &mut [0; MAX_ANSWER]).is_some()
}

/// Writes the answer to a packet; `None` if it gets no answer.
fn answer_for(packet: &Mbuf, answer: &mut [u8]) -> Option<usize> {
    let mut headers = [0u8; HEADER_BYTES];
    let copied = packet.copy_to(&mut headers);
    Undelivered::of(&headers[..copied], packet.pkt_len() as usize)?.reject(answer)
}

/// Whether the sender of a packet that is too long gets an answer, if the limit of answers admits it.
pub(crate) fn has_mtu_answer(packet: &Mbuf) -> bool {
    mtu_answer_for(packet, 0, &mut [0; MAX_ANSWER]).is_some()
}

/// The same for a packet that is too long; `None`, too, if routers may cut it.
fn mtu_answer_for(packet: &Mbuf, mtu: u16, answer: &mut [u8]) -> Option<usize> {
    let mut headers = [0u8; HEADER_BYTES];
    let copied = packet.copy_to(&mut headers);
    Undelivered::of(&headers[..copied], packet.pkt_len() as usize)?.too_long(mtu, answer)
}

fn admits(policer: Option<&Policer>, now: u64) -> bool {
    policer.is_some_and(|policer| policer.admit(now, 1))
}
