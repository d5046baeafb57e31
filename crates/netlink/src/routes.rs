// SPDX-License-Identifier: Apache-2.0
//! Routes.

use std::io;
use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::{OURS, Requests};

/// Makes a gateway the default route of its address family, by an interface.
///
/// # Errors
/// The kernel's error: `ENETUNREACH` if no address of the interface reaches the gateway.
pub fn set_default_route(requests: &mut Requests, index: u32, gateway: IpAddr) -> io::Result<()> {
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: if gateway.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 },
        table: RouteHeader::RT_TABLE_MAIN,
        protocol: RouteProtocol::Other(OURS),
        scope: RouteScope::Universe,
        kind: RouteType::Unicast,
        ..RouteHeader::default()
    };
    message.attributes = vec![RouteAttribute::Gateway(route_address(gateway)), RouteAttribute::Oif(index)];
    requests.change(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_REPLACE)
}

/// An address in a message about routes.
#[must_use]
pub const fn route_address(address: IpAddr) -> RouteAddress {
    match address {
        IpAddr::V4(address) => RouteAddress::Inet(address),
        IpAddr::V6(address) => RouteAddress::Inet6(address),
    }
}
