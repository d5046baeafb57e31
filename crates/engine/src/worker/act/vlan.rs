//! The outer VLAN tag of packets, changed in place.

use dpdk::{Batch, Mbuf};
use netvm_config::model::SetVlan;
use netvm_wire::{EtherType, VlanId, rewrite};

use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::worker::state::Path;

/// Bytes of a tag.
const TAG: u16 = 4;
/// Bytes at the front of a packet that a change moves: two MAC addresses, and two tags.
const FRONT: usize = 64;

impl Path {
    /// Gives packets a tag, or takes it from them; those that have no room for it are dropped.
    pub(crate) fn set_vlan(&mut self, change: SetVlan, port: PortId, batch: &mut Batch) {
        let change = match change {
            SetVlan::Tag(vlan) => Retag::Set(vlan),
            SetVlan::Strip => Retag::Strip,
        };
        let (mut good, mut bad) = (Batch::new(), Batch::new());
        for mut mbuf in batch.drain() {
            let changed = retag(&mut mbuf, change);
            let _ = if changed { good.push(mbuf) } else { bad.push(mbuf) };
        }
        if !bad.is_empty() {
            self.drop_at_port(port, DropReason::TooLong, &mut bad);
        }
        batch.append(&mut good);
    }
}

/// How the front of a frame changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retag {
    /// The outer tag gets this VLAN; one is put in front where there is none.
    Set(VlanId),
    /// A tag is put in front.
    Push(VlanId),
    /// The outer tag is taken off, if there is one.
    Strip,
}

/// Whether it could be done: a packet whose buffer has no headroom left stays as it is.
pub(crate) fn retag(mbuf: &mut Mbuf, change: Retag) -> bool {
    // The front of the packet with room for a tag before it, changed in private and written back.
    let mut front = [0u8; TAG as usize + FRONT];
    let at = usize::from(TAG);
    let copied = mbuf.copy_to(&mut front[at..]);
    let buffer = &mut front[..at + copied];
    let moved = match change {
        Retag::Push(vlan) => rewrite::push_vlan(buffer, at, EtherType::VLAN, vlan),
        Retag::Set(vlan) => rewrite::set_vlan(buffer, at, vlan),
        Retag::Strip => rewrite::strip_vlan(buffer, at),
    };
    let Ok(start) = moved else { return false };
    mbuf.replace_front(copied as u16, &front[start..at + copied]).is_ok()
}
