// SPDX-License-Identifier: Apache-2.0
//! Addresses of interfaces.

use std::io;
use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressProtocol};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::{OURS, Requests};

/// Gives an interface the desired addresses, without duplicate address detection, and removes those of an earlier
/// configuration.
///
/// # Errors
/// The kernel's error.
pub fn set_addresses(requests: &mut Requests, index: u32, wanted: &[(IpAddr, u8)]) -> io::Result<()> {
    for (address, length) in wanted {
        let mut message = AddressMessage::default();
        message.header.family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        (message.header.prefix_len, message.header.index) = (*length, index);
        message.attributes = vec![
            AddressAttribute::Local(*address),
            AddressAttribute::Address(*address),
            AddressAttribute::Flags(AddressFlags::Nodad),
            AddressAttribute::Protocol(AddressProtocol::Other(OURS)),
        ];
        if let Some(broadcast) = broadcast(*address, *length) {
            message.attributes.push(AddressAttribute::Broadcast(broadcast));
        }
        requests.change(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_REPLACE)?;
    }
    let there = requests.dump(
        &RouteNetlinkMessage::GetAddress(AddressMessage::default()),
        Vec::new,
        |there, message| {
            if let RouteNetlinkMessage::NewAddress(message) = message {
                there.push(message);
            }
        },
    )?;
    for message in there.into_iter().filter(|message| message.header.index == index && is_ours(message)) {
        let length = message.header.prefix_len;
        let is_wanted = message.attributes.iter().any(|one| match one {
            AddressAttribute::Local(address) | AddressAttribute::Address(address) => {
                wanted.contains(&(*address, length))
            }
            _ => false,
        });
        if !is_wanted {
            requests.change(RouteNetlinkMessage::DelAddress(message), 0)?;
        }
    }
    Ok(())
}

/// The addresses of an interface in this network namespace.
///
/// # Errors
/// The kernel's error.
pub fn addresses_of(index: u32) -> io::Result<Vec<IpAddr>> {
    let all = RouteNetlinkMessage::GetAddress(AddressMessage::default());
    Requests::open()?.dump(&all, Vec::new, |found, message| {
        let RouteNetlinkMessage::NewAddress(message) = message else { return };
        let address = |one: &AddressAttribute| match one {
            // The other end's, if this one is also there.
            AddressAttribute::Local(address) => Some(*address),
            AddressAttribute::Address(address) if address.is_ipv6() => Some(*address),
            _ => None,
        };
        if message.header.index == index {
            found.extend(message.attributes.iter().find_map(address));
        }
    })
}

fn is_ours(message: &AddressMessage) -> bool {
    message
        .attributes
        .iter()
        .any(|one| matches!(one, AddressAttribute::Protocol(protocol) if u8::from(*protocol) == OURS))
}

/// The directed broadcast address of a network, if any (RFC 1812 4.2.2.11; none for /31: RFC 3021).
fn broadcast(address: IpAddr, length: u8) -> Option<std::net::Ipv4Addr> {
    match address {
        IpAddr::V4(address) if length < 31 => {
            let hosts = u32::MAX.checked_shr(u32::from(length)).unwrap_or(0);
            Some((u32::from(address) | hosts).into())
        }
        _ => None,
    }
}
