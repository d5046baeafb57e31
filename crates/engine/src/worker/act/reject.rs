//! In: packets that a rule rejects, which are dropped. Out: an answer to each sender by the same port: a TCP reset,
//! else ICMP or ICMPv6 "administratively prohibited".
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
    let Dispatch { dp, cx, batch, split } = burst;
    let answers = &mut split.copies;
    if let Some(memory) = dp.memories.get(cx.memory) {
        for mbuf in batch.as_slice() {
            let mut answer = [0u8; MAX_ANSWER];
            let length = answer_for(mbuf, &mut answer);
            let Some(length) = length.filter(|_| admits(dp.limits.rejects.as_ref(), dp.clock.now)) else {
                continue;
            };
            if !super::answer::add(memory, answers, mbuf.port(), &answer[..length]) {
                break;
            }
        }
    }
    Step::Copies(Next::Tx(from), Next::drop_at(from, DropReason::Rejected))
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

fn admits(policer: Option<&Policer>, now: u64) -> bool {
    policer.is_some_and(|policer| policer.admit(now, 1))
}
