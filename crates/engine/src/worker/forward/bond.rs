// SPDX-License-Identifier: Apache-2.0
//! Bonds: ports that join others, their members. In: packets that a bond sends, and packets that a member has received.
//! Out: sent by the member of their flow; received by the bond. Frames of LACP go to the manager, which answers them.
//!
//! Cost: for a bond with several senders the hash of each packet's flow; a member compares 16 bytes of each packet that
//! it receives, if the bond speaks LACP.

use dpdk::{Batch, Mbuf};
use netvm_lacp::{FRAME_LEN, LACP_GROUP, SLOW_PROTOCOLS};

use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::snapshot::BondMember;
use crate::worker::next::{Dispatch, Next, Step};
use crate::worker::packet::keys::symmetric_hash_of;

/// Sends packets by the members of their flows.
pub(crate) fn send(burst: &mut Dispatch<'_>, bond: PortId) -> Step {
    let Dispatch { cx, batch, split, .. } = burst;
    match cx.snapshot.bonds.senders(bond) {
        [] => Step::All(Next::drop_at(bond, DropReason::NoMember)),
        [member] => Step::All(Next::Tx(*member)),
        members => {
            for (next, mbuf) in split.nexts.iter_mut().zip(batch.as_slice()) {
                // The upper half: NFs and workers take the lower bits, so the flows of one of them are spread, too.
                let hash = symmetric_hash_of(mbuf) >> 32;
                *next = Next::Tx(members[hash as usize % members.len()]);
            }
            Step::Each
        }
    }
}

/// Takes frames of LACP out of packets that a member has received, for the manager.
pub(crate) fn take_lacp(member: &BondMember, batch: &mut Batch) {
    if member.has_lacp && batch.as_slice().iter().any(is_lacp) {
        for mbuf in batch.partition(|mbuf| !is_lacp(mbuf)).as_slice() {
            let mut frame = [0; FRAME_LEN];
            if mbuf.copy_first(&mut frame) == FRAME_LEN {
                member.frames.put_received(frame);
            }
        }
    }
}

#[inline]
fn is_lacp(mbuf: &Mbuf) -> bool {
    let mut head = [0; 14];
    mbuf.copy_first(&mut head) == head.len()
        && head[..6] == LACP_GROUP.0
        && head[12..] == SLOW_PROTOCOLS.to_be_bytes()
}
