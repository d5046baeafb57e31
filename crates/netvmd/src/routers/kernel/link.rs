// SPDX-License-Identifier: Apache-2.0
//! Translates messages about interfaces, with their settings (`net.ipv4.conf`, `net.ipv6.conf`).

use std::io;

use netlink_packet_route::link::{
    AfSpecInet, AfSpecInet6, AfSpecUnspec, InfoKind, LinkAttribute, LinkExtentMask, LinkFlags, LinkInfo,
    LinkMessage,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netvm_netlink::Requests;
use netvm_wire::MacAddr;

use crate::routers::rib::{Change, Link, Settings, SettingsV4, SettingsV6};

/// Dumps the interfaces with their settings, of which not all send events.
///
/// # Errors
/// The kernel's error.
pub fn links(requests: &mut Requests) -> io::Result<Vec<Change>> {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    requests.dump(&RouteNetlinkMessage::GetLink(message), Vec::new, |all, message| {
        if let RouteNetlinkMessage::NewLink(message) = message {
            all.extend(link(&message));
        }
    })
}

/// Whether a message is about an interface itself, and not about a port of a bridge.
pub fn is_whole(message: &LinkMessage) -> bool {
    message.header.interface_family == AddressFamily::Unspec
}

pub fn link(message: &LinkMessage) -> Option<Change> {
    if !is_whole(message) {
        return None;
    }
    let name = message.attributes.iter().find_map(|one| match one {
        LinkAttribute::IfName(name) => Some(name.clone()),
        _ => None,
    })?;
    let has = |flag| message.header.flags.contains(flag);
    let link = Link {
        name,
        is_up: has(LinkFlags::Up),
        has_carrier: has(LinkFlags::LowerUp),
        peer: peer(message),
        macvlan: macvlan(message),
        settings: settings(message),
    };
    Some(Change::Link(message.header.index, link))
}

fn under(message: &LinkMessage) -> Option<u32> {
    message.attributes.iter().find_map(|one| match one {
        LinkAttribute::Link(index) => Some(*index),
        _ => None,
    })
}

/// The other end of a veth pair, in another namespace.
fn peer(message: &LinkMessage) -> Option<u32> {
    let is_elsewhere = message.attributes.iter().any(|one| matches!(one, LinkAttribute::LinkNetNsId(_)));
    under(message).filter(|_| is_elsewhere && is_of_kind(message, &InfoKind::Veth))
}

/// Whether it is a device of a kind.
pub fn is_of_kind(message: &LinkMessage, kind: &InfoKind) -> bool {
    message.attributes.iter().any(|one| match one {
        LinkAttribute::LinkInfo(all) => {
            all.iter().any(|one| matches!(one, LinkInfo::Kind(own) if own == kind))
        }
        _ => false,
    })
}

fn mac(message: &LinkMessage) -> Option<MacAddr> {
    message.attributes.iter().find_map(|one| match one {
        LinkAttribute::Address(bytes) => <[u8; 6]>::try_from(&bytes[..]).ok().map(MacAddr),
        _ => None,
    })
}

/// The interface under a macvlan, and its MAC address.
fn macvlan(message: &LinkMessage) -> Option<(u32, MacAddr)> {
    under(message).zip(mac(message)).filter(|_| is_of_kind(message, &InfoKind::MacVlan))
}

fn settings(message: &LinkMessage) -> Settings {
    let mut settings = Settings {
        mac: mac(message).unwrap_or(MacAddr::ZERO),
        mtu: 0,
        is_enslaved: false,
        v4: SettingsV4::default(),
        v6: SettingsV6 { is_disabled: true, ..SettingsV6::default() },
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Mtu(mtu) => settings.mtu = *mtu,
            LinkAttribute::Controller(_) => settings.is_enslaved = true,
            LinkAttribute::AfSpecUnspec(families) => families.iter().for_each(|family| match family {
                AfSpecUnspec::Inet(all) => {
                    let of = all.iter().find_map(v4);
                    settings.v4 = of.unwrap_or_default();
                }
                AfSpecUnspec::Inet6(all) => {
                    let of = all.iter().find_map(v6);
                    settings.v6 = of.unwrap_or(settings.v6);
                }
                _ => {}
            }),
            _ => {}
        }
    }
    settings
}

fn v4(spec: &AfSpecInet) -> Option<SettingsV4> {
    let AfSpecInet::DevConf(conf) = spec else { return None };
    Some(SettingsV4 {
        forwards: conf.forwarding != 0,
        rp_filter: u8::try_from(conf.rp_filter).unwrap_or(u8::MAX),
        accepts_local: conf.accept_local != 0,
        logs_martians: conf.log_martians != 0,
        routes_localnet: conf.route_localnet != 0,
        ignores_linkdown: conf.ignore_routes_with_linkdown != 0,
    })
}

fn v6(spec: &AfSpecInet6) -> Option<SettingsV6> {
    let AfSpecInet6::DevConf(conf) = spec else { return None };
    Some(SettingsV6 {
        is_disabled: conf.disable_ipv6 != 0,
        forwards: conf.force_forwarding != 0,
        mtu: u32::try_from(conf.mtu6).unwrap_or_default(),
        ignores_linkdown: conf.ignore_routes_with_linkdown != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_veth_pair_has_another_end() {
        // Both lead to index 6 of another namespace: a `vxlan` device without one below has its own index there.
        let of_kind = |kind| {
            let mut message = LinkMessage::default();
            message.attributes = vec![
                LinkAttribute::IfName("any".to_owned()),
                LinkAttribute::Link(6),
                LinkAttribute::LinkNetNsId(0),
                LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)]),
            ];
            match link(&message) {
                Some(Change::Link(_, link)) => link.peer,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!((of_kind(InfoKind::Veth), of_kind(InfoKind::Vxlan)), (Some(6), None));
    }
}
