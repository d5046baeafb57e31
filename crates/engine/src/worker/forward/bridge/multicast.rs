// SPDX-License-Identifier: Apache-2.0
//! IGMP and MLD snooping: packets to group addresses, which L2 switching would flood. In: a packet, its port and VLAN.
//! Out: all ports of the VLAN, those of its group, or those of multicast routers. The manager gets what messages say.
//!
//! Cost, of packets to group addresses only: their headers are read, and the group is looked up.

use dpdk::Mbuf;
use netvm_switch::snoop::{Announcement, Domain, GroupPacket, Message, SetNumber};
use netvm_wire::{Address, parse};

use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::snapshot::Multicast;
use crate::worker::next::{Flooding, Next};
use crate::worker::packet::keys::key_of;
use crate::worker::state::Datapath;

/// Longest message that is read: a jumbo frame.
const MAX_MESSAGE: usize = 9216;

/// Where a packet from a port goes, in this VLAN.
pub(super) fn destination(dp: &Datapath, multicast: &Multicast, all: Flooding, mbuf: &Mbuf) -> Next {
    match group_of(mbuf) {
        GroupPacket::Flooded => Next::Flood(all),
        GroupPacket::Data(group) => {
            Next::Flood(Flooding { to: multicast.table.of_group(all.vlan, group), ..all })
        }
        GroupPacket::Control => control(dp, multicast, all, mbuf),
    }
}

/// What a packet to a group address is.
fn group_of(mbuf: &Mbuf) -> GroupPacket {
    let mut mac = [0; 6];
    mbuf.copy_first(&mut mac);
    match mac {
        [0x01, 0, 0x5e, ..] | [0x33, 0x33, ..] => {
            key_of(mbuf).map_or(GroupPacket::Flooded, |key| GroupPacket::of(&key))
        }
        _ => GroupPacket::Flooded,
    }
}

/// The group whose members get a packet, if not all ports of the VLAN do.
#[cold]
pub(crate) fn pruned_group(multicast: &Multicast, vlan: u16, mbuf: &Mbuf) -> Option<Address> {
    match group_of(mbuf) {
        GroupPacket::Data(group) if multicast.table.of_group(vlan, group) != SetNumber::ALL => Some(group),
        _ => None,
    }
}

/// Reads a message, and notes what it says.
#[cold]
fn control(dp: &Datapath, multicast: &Multicast, all: Flooding, mbuf: &Mbuf) -> Next {
    let Flooding { from, vlan, .. } = all;
    let mut bytes = [0; MAX_MESSAGE];
    let copied = mbuf.copy_to(&mut bytes);
    let frame = bytes.get(..copied).filter(|frame| frame.len() == mbuf.pkt_len() as usize);
    let Some((frame, headers)) = frame.and_then(|frame| Some((frame, parse(frame).ok()?))) else {
        return Next::Flood(all);
    };
    let hear = |announced: &mut dyn Iterator<Item = Announcement>| {
        let inbox = &multicast.exchange.inbox;
        dp.is_dry || inbox.add(from.0, announced.map(|announced| (vlan, announced)), dp.clock.tick)
    };
    let is_v4 = headers.key().destination.is_v4();
    match Message::read(frame, &headers) {
        Err(_) => Next::drop_at(from, DropReason::Malformed),
        Ok(Message::Other) => Next::Flood(all),
        Ok(Message::Router) => {
            hear(&mut std::iter::once(Announcement::Router { is_v4 }));
            Next::Flood(all)
        }
        Ok(Message::Query(_)) if multicast.without_routers.has(from) => refused(dp, multicast, from),
        Ok(Message::Query(query)) => {
            hear(&mut std::iter::once(Announcement::Query(query)));
            Next::Flood(all)
        }
        Ok(Message::Reports(reports)) => {
            match hear(&mut reports.map(|(group, change)| Announcement::Group(group, change))) {
                true => Next::Flood(Flooding { to: multicast.table.routers(Domain { vlan, is_v4 }), ..all }),
                false => Next::drop_at(from, DropReason::McastRefused),
            }
        }
    }
}

fn refused(dp: &Datapath, multicast: &Multicast, from: PortId) -> Next {
    if !dp.is_dry {
        multicast.exchange.inbox.refuse(from.0);
    }
    Next::drop_at(from, DropReason::McastRefused)
}
