// SPDX-License-Identifier: Apache-2.0
//! Ports for a VLAN tag of another port, their parent. In: packets with the tag that the parent has received, and
//! packets that such a port sends. Out: received by the port without the tag; sent by the parent with it. The rules of
//! the parent are not for them; it counts and captures them, and its shaper delays them.
//!
//! Cost: a comparison for each packet of a parent, and a change of the tag.

use dpdk::Mbuf;
use netvm_wire::{EtherType, VlanId};

use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::snapshot::Snapshot;
use crate::worker::next::{Dispatch, Next, Step};
use crate::worker::packet::retag::{Retag, retag};

/// Bytes of MAC addresses, EtherType and tag.
const FRONT: usize = 16;

/// The port that receives a packet of this parent, if its tag has one.
pub(crate) fn port_of(snapshot: &Snapshot, parent: PortId, mbuf: &Mbuf) -> Option<PortId> {
    let mut front = [0; FRONT];
    if mbuf.copy_to(&mut front) < FRONT {
        return None;
    }
    let [.., kind_high, kind_low, tag_high, tag_low] = front;
    let is_tagged = EtherType(u16::from_be_bytes([kind_high, kind_low])).is_vlan();
    let tag = u16::from_be_bytes([tag_high, tag_low]) & 0x0fff;
    if is_tagged { snapshot.with_tag(parent, tag) } else { None }
}

/// Takes the tag off packets that a port for it receives.
pub(crate) fn pop(burst: &mut Dispatch<'_>, by: PortId) -> Step {
    retag_each(burst, by, Retag::Strip, Next::Rx(by))
}

/// Gives packets that a port sends its tag.
pub(crate) fn push(burst: &mut Dispatch<'_>, from: PortId, parent: PortId, tag: VlanId) -> Step {
    retag_each(burst, from, Retag::Push(tag), Next::Tx(parent))
}

/// Changes the tag of each packet. The port drops those without room for it.
fn retag_each(burst: &mut Dispatch<'_>, port: PortId, change: Retag, then: Next) -> Step {
    let Dispatch { batch, split, .. } = burst;
    for (next, mbuf) in split.nexts.iter_mut().zip(batch.as_mut_slice()) {
        *next = if retag(mbuf, change) { then } else { Next::drop_at(port, DropReason::TooLong) };
    }
    Step::Each
}
