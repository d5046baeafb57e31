// SPDX-License-Identifier: Apache-2.0
//! In: a packet whose outer VLAN tag changes. Out: whether it could be changed: a packet without room for a tag stays
//! as it is.
//!
//! Cost: the packet's first line, and 12 bytes moved to add or remove a tag.

use dpdk::Mbuf;
use netvm_model::SetVlan;

use crate::worker::packet::retag::{Retag, retag};

/// Applies a rule's change of the tag.
pub(crate) fn set_vlan(change: SetVlan, mbuf: &mut Mbuf) -> bool {
    match change {
        SetVlan::Tag(vlan) => retag(mbuf, Retag::Set(vlan)),
        SetVlan::Strip => retag(mbuf, Retag::Strip),
    }
}
