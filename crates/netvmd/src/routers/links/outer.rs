// SPDX-License-Identifier: Apache-2.0
//! The outer ends of routers' interfaces, in netvmd's namespace.

use std::collections::BTreeSet;
use std::io;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netvm_netlink::{Requests, by_name, change_link, index_of, set_up};

use super::{links, name_of, peer_of, unless_gone};
use crate::routers::namespace::Namespace;

/// Prefix and length of the outer ends' names (`RouterInterface::host_end`).
const HOST_END: &str = "nv";
const HOST_END_LENGTH: usize = 14;

/// The interface group that marks interfaces for removal (`ip link set group`): "nvrm".
const REMOVED: u32 = 0x6e76_726d;

/// The interfaces of netvmd's namespace that may be outer ends of routers' interfaces.
#[derive(Debug)]
pub(in crate::routers) struct OuterEnds(Vec<OuterEnd>);

/// Its index, that of its peer, and its name.
type OuterEnd = (u32, u32, String);

impl OuterEnds {
    /// Looks them up once for all routers, because there may be many.
    pub fn look_up() -> io::Result<Self> {
        let all = links(&mut Requests::open()?)?;
        let end = |link: &LinkMessage| Some((link.header.index, peer_of(link)?, name_of(link)?));
        let is_ours = |(_, _, name): &OuterEnd| name.len() == HOST_END_LENGTH && name.starts_with(HOST_END);
        Ok(Self(all.iter().filter_map(end).filter(is_ours).collect()))
    }

    /// The outer ends of the interfaces in a router's namespace.
    pub fn of(&self, namespace: &Namespace) -> io::Result<Vec<String>> {
        let pairs: BTreeSet<_> =
            namespace.inside(|| pairs(&mut Requests::open()?)).flatten()?.into_iter().collect();
        let own = self.0.iter().filter(|(outer, inner, _)| pairs.contains(&(*inner, *outer)));
        Ok(own.map(|(_, _, name)| name.clone()).collect())
    }
}

/// Turns off the carrier of interfaces by their outer ends, so that daemons inside notice that no packets pass.
/// Addresses and routes stay.
///
/// # Errors
/// The kernel's error.
pub(in crate::routers) fn take_down(host_ends: &[String]) -> io::Result<()> {
    let mut requests = Requests::open()?;
    for host_end in host_ends {
        let Some(index) = index_of(&mut requests, host_end)? else { continue };
        set_up(&mut requests, index, false)?;
    }
    Ok(())
}

/// Removes interfaces by their outer ends, all at once: the kernel takes 40 ms to remove an interface, because it waits
/// for all processors, and hardly longer to remove a group.
///
/// # Errors
/// The kernel's error.
pub(in crate::routers) fn remove_all(host_ends: &[String]) -> io::Result<()> {
    let group = || {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::Group(REMOVED));
        message
    };
    let mut requests = Requests::open()?;
    let mut is_empty = true;
    for host_end in host_ends {
        let Some(index) = index_of(&mut requests, host_end)? else { continue };
        is_empty &= unless_gone(change_link(&mut requests, index, group()))?.is_none();
    }
    if is_empty {
        return Ok(());
    }
    // Another netvmd, which uses the same group, may have removed them with its own.
    unless_gone(requests.change(RouteNetlinkMessage::DelLink(group()), 0)).map(drop)
}

/// Brings outer ends up or takes them down, unless they already are.
///
/// # Errors
/// The kernel's error.
pub(in crate::routers) fn set_carriers(carriers: &[(String, bool)]) -> io::Result<()> {
    let mut requests = Requests::open()?;
    for (host_end, is_up) in carriers {
        let Some(link) = by_name(&mut requests, host_end)? else { continue };
        if link.header.flags.contains(LinkFlags::Up) == *is_up {
            continue;
        }
        set_up(&mut requests, link.header.index, *is_up)?;
    }
    Ok(())
}

/// The veth interfaces whose peer is in another namespace, each with the peer's index there.
fn pairs(requests: &mut Requests) -> io::Result<Vec<(u32, u32)>> {
    Ok(links(requests)?.iter().filter_map(|link| Some((link.header.index, peer_of(link)?))).collect())
}
