//! Interfaces.

use std::io;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};

use crate::Requests;

/// The index of an interface in the namespace of `requests`.
///
/// # Errors
/// The kernel's error.
pub fn index_of(requests: &mut Requests, name: &str) -> io::Result<Option<u32>> {
    Ok(by_name(requests, name)?.map(|link| link.header.index))
}

/// An interface by its name, if it is there.
///
/// # Errors
/// The kernel's error.
pub fn by_name(requests: &mut Requests, name: &str) -> io::Result<Option<LinkMessage>> {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::IfName(name.to_owned()));
    match requests.get(RouteNetlinkMessage::GetLink(message)) {
        Ok(Some(RouteNetlinkMessage::NewLink(link))) => Ok(Some(link)),
        Ok(_) => Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Changes an interface.
///
/// # Errors
/// The kernel's error.
pub fn change_link(requests: &mut Requests, index: u32, mut message: LinkMessage) -> io::Result<()> {
    message.header.index = index;
    requests.change(RouteNetlinkMessage::SetLink(message), 0)
}

/// Brings an interface up, or takes it down.
///
/// # Errors
/// The kernel's error.
pub fn set_up(requests: &mut Requests, index: u32, is_up: bool) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.header.change_mask = LinkFlags::Up;
    message.header.flags = if is_up { LinkFlags::Up } else { LinkFlags::empty() };
    change_link(requests, index, message)
}
