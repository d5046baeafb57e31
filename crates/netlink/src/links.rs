// SPDX-License-Identifier: Apache-2.0
//! Interfaces.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};

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

/// Removes an interface.
///
/// # Errors
/// The kernel's error: `ENODEV` if it is not there.
pub fn remove_link(requests: &mut Requests, index: u32) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    requests.change(RouteNetlinkMessage::DelLink(message), 0)
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

/// A veth pair of one queue with an end in another network namespace.
#[derive(Clone, Copy, Debug)]
pub struct Veth<'a> {
    /// The name of the end here.
    pub outer: &'a str,
    /// The name of the end in the other namespace.
    pub inner: &'a str,
    /// The MAC address of the inner end; `None`: the kernel chooses one.
    pub mac: Option<[u8; 6]>,
    /// The MTU of both ends in bytes.
    pub mtu: u32,
}

/// Makes a veth pair, whose ends are down. Fails if the other namespace has an interface of this name, which stays.
///
/// # Errors
/// The kernel's error.
pub fn make_veth(requests: &mut Requests, veth: Veth<'_>, namespace: BorrowedFd<'_>) -> io::Result<()> {
    let one_queue = [LinkAttribute::NumTxQueues(1), LinkAttribute::NumRxQueues(1)];
    let mut peer = LinkMessage::default();
    peer.attributes = vec![
        LinkAttribute::IfName(veth.inner.to_owned()),
        LinkAttribute::Mtu(veth.mtu),
        LinkAttribute::NetNsFd(namespace.as_raw_fd()),
    ];
    peer.attributes.extend(veth.mac.map(|mac| LinkAttribute::Address(mac.to_vec())));
    peer.attributes.extend(one_queue.clone());
    let mut message = LinkMessage::default();
    message.attributes = vec![LinkAttribute::IfName(veth.outer.to_owned()), LinkAttribute::Mtu(veth.mtu)];
    message.attributes.extend(one_queue);
    message.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Veth),
        LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
    ]));
    requests.change(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)
}
