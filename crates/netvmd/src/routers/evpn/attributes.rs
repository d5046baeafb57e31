// SPDX-License-Identifier: Apache-2.0
//! What messages about entries of a database and about neighbours have in common.

use std::net::IpAddr;

use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage};
use netvm_wire::MacAddr;

/// The MAC address of an entry.
pub(super) fn mac_of(message: &NeighbourMessage) -> Option<MacAddr> {
    message.attributes.iter().find_map(|one| match one {
        NeighbourAttribute::LinkLayerAddress(bytes) => <[u8; 6]>::try_from(&bytes[..]).ok().map(MacAddr),
        _ => None,
    })
}

pub(super) fn ip(address: &NeighbourAddress) -> Option<IpAddr> {
    match address {
        NeighbourAddress::Inet(address) => Some((*address).into()),
        NeighbourAddress::Inet6(address) => Some((*address).into()),
        NeighbourAddress::Other(bytes) => {
            let v4 = <[u8; 4]>::try_from(&bytes[..]).map(IpAddr::from);
            v4.or_else(|_| <[u8; 16]>::try_from(&bytes[..]).map(IpAddr::from)).ok()
        }
        _ => None,
    }
}
