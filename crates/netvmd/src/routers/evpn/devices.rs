// SPDX-License-Identifier: Apache-2.0
//! The kernel's devices of networks with EVPN: a bridge, a `vxlan` device that learns nothing, and a port of the bridge
//! for the addresses behind ports of this host. netvmd marks those that it makes, and removes no others.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoBridgePort, InfoData, InfoKind, InfoPortData, InfoPortKind, InfoVeth, InfoVxlan, LinkAttribute,
    LinkFlags, LinkInfo, LinkMessage,
};
use netvm_netlink::{Requests, by_name, change_link, index_of};

use super::Network;
use crate::routers::namespace::Namespace;

/// The alias of netvmd's devices (`ip link` shows it).
const MARK: &str = "netvm: EVPN";

/// A device cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The namespace has another one of its name.
    #[error(
        "VNI {vni}: its namespace already has an interface {device} that netvmd has not made: remove it (`ip link delete \
         {device}`), or give the port another `vni`"
    )]
    Foreign {
        /// The network.
        vni: u32,
        /// The name.
        device: String,
    },
    /// The router that reaches the VTEPs cannot be made.
    #[error("VNI {vni}: it waits for router {router}, which reaches its VTEPs")]
    NoUnderlay {
        /// The network.
        vni: u32,
        /// The router.
        router: String,
    },
    /// The kernel refuses.
    #[error("VNI {vni}: {device}: {source}{}", remedy(.source))]
    System {
        /// The network.
        vni: u32,
        /// The device.
        device: String,
        /// The kernel's error.
        source: io::Error,
    },
}

fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => {
            " (this kernel has no `vxlan` or `bridge` devices, by which a routing daemon knows a network: load them, \
             `modprobe -a vxlan bridge`, or name the VTEPs in `remote` without `control = \"evpn\"`)"
        }
        Some(libc::EEXIST) => {
            " (another `vxlan` device of the namespace has this VNI: remove it, or give the port another `vni`)"
        }
        _ => "",
    }
}

/// The indexes of a network's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Devices {
    pub(in crate::routers) bridge: u32,
    pub(super) vxlan: u32,
    pub(super) local: u32,
}

impl Devices {
    /// Makes the devices of these networks, as far as they are missing, in the calling thread's namespace, and removes
    /// those of other networks. `underlays`: sockets of other routers' namespaces, by their names.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn set(networks: &[Network], underlays: &mut Underlays) -> Result<(), DeviceError> {
        let failed = |source| DeviceError::System { vni: 0, device: "netlink".to_owned(), source };
        let mut requests = Requests::open().map_err(failed)?;
        remove_others(&mut requests, networks).map_err(failed)?;
        networks.iter().try_for_each(|network| {
            let underlay = match &network.underlay_name {
                None => None,
                Some(name) => {
                    let missing = || DeviceError::NoUnderlay { vni: network.vni, router: name.clone() };
                    Some(underlays.0.get_mut(name).ok_or_else(missing)?)
                }
            };
            Maker { requests: &mut requests, underlay, network }.make()
        })
    }

    /// The devices of a network in the namespace of `requests`; `None`: somebody has removed one.
    fn find(requests: &mut Requests, network: &Network) -> io::Result<Option<Self>> {
        let bridge = index_of(requests, &network.bridge())?;
        let vxlan = index_of(requests, &network.vxlan())?;
        let local = index_of(requests, &network.local_port())?;
        Ok(bridge.zip(vxlan).zip(local).map(|((bridge, vxlan), local)| Self { bridge, vxlan, local }))
    }
}

/// Netlink sockets of the namespaces of routers that reach VTEPs of networks in other namespaces.
#[derive(Debug, Default)]
pub(in crate::routers) struct Underlays(BTreeMap<String, Requests>);

impl Underlays {
    /// Those of some networks. `open`: opens a socket in a router's namespace; `None` if there is no such router now.
    ///
    /// # Errors
    /// The kernel's error.
    pub(in crate::routers) fn open(
        networks: &[Network],
        open: impl Fn(&str) -> Option<io::Result<Requests>>,
    ) -> io::Result<Self> {
        let names = networks.iter().filter_map(|network| network.underlay_name.as_deref());
        let opened = names.filter_map(|name| Some(open(name)?.map(|requests| (name.to_owned(), requests))));
        opened.collect::<io::Result<_>>().map(Self)
    }
}

/// Those of these networks that have their devices in a namespace.
///
/// # Errors
/// The kernel's error.
pub(in crate::routers) fn find(
    namespace: &Namespace,
    networks: Vec<Network>,
) -> io::Result<Vec<(Network, Devices)>> {
    if networks.is_empty() {
        return Ok(Vec::new());
    }
    let look_up = || {
        let mut requests = Requests::open()?;
        let with_devices = |network: Network| {
            let devices = Devices::find(&mut requests, &network).transpose()?;
            Some(devices.map(|devices| (network, devices)))
        };
        networks.into_iter().filter_map(with_devices).collect()
    };
    namespace.inside(look_up).flatten()
}

/// Removes netvmd's devices of other networks.
fn remove_others(requests: &mut Requests, networks: &[Network]) -> io::Result<()> {
    let links =
        requests.dump(&RouteNetlinkMessage::GetLink(LinkMessage::default()), Vec::new, |all, message| {
            if let RouteNetlinkMessage::NewLink(message) = message {
                all.push(message);
            }
        })?;
    let wanted = |name: &str| {
        networks.iter().any(|network| {
            [network.bridge(), network.vxlan(), network.local_port()].iter().any(|wanted| wanted == name)
        })
    };
    for link in links.iter().filter(|link| is_marked(link) && !name_of(link).is_some_and(wanted)) {
        remove(requests, link.header.index)?;
    }
    Ok(())
}

fn remove(requests: &mut Requests, index: u32) -> io::Result<()> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    match requests.change(RouteNetlinkMessage::DelLink(message), 0) {
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(()),
        other => other,
    }
}

fn is_marked(link: &LinkMessage) -> bool {
    link.attributes.iter().any(|one| matches!(one, LinkAttribute::IfAlias(alias) if alias == MARK))
}

fn name_of(link: &LinkMessage) -> Option<&str> {
    link.attributes.iter().find_map(|one| match one {
        LinkAttribute::IfName(name) => Some(&**name),
        _ => None,
    })
}

/// Makes the devices of one network.
struct Maker<'a> {
    requests: &'a mut Requests,
    /// Of the namespace by which the `vxlan` device sends, if that is another one.
    underlay: Option<&'a mut Requests>,
    network: &'a Network,
}

impl Maker<'_> {
    fn make(mut self) -> Result<(), DeviceError> {
        let network = self.network;
        let bridge = self.device(&network.bridge(), &[LinkInfo::Kind(InfoKind::Bridge)])?;
        self.bring_up(&network.bridge(), bridge, &[])?;
        self.set_mac(&network.bridge(), bridge)?;
        let vxlan = self.device(&network.vxlan(), &self.vxlan())?;
        self.bring_up(&network.vxlan(), vxlan, &[LinkAttribute::Controller(bridge)])?;
        let local = self.device(&network.local_port(), &self.pair())?;
        self.bring_up(&network.local_port(), local, &[LinkAttribute::Controller(bridge)])?;
        // The kernel neither learns addresses nor floods: the engine does.
        for (name, index) in [(network.vxlan(), vxlan), (network.local_port(), local)] {
            let mut quiet = LinkMessage::default();
            quiet.header.index = index;
            quiet.attributes.push(LinkAttribute::LinkInfo(vec![
                LinkInfo::PortKind(InfoPortKind::Bridge),
                LinkInfo::PortData(InfoPortData::BridgePort(vec![
                    InfoBridgePort::Learning(false),
                    InfoBridgePort::UnicastFlood(false),
                    InfoBridgePort::MulticastFlood(false),
                    InfoBridgePort::BroadcastFlood(false),
                ])),
            ]));
            let quietened = self.requests.change(RouteNetlinkMessage::NewLink(quiet), 0);
            quietened.map_err(self.failed(&name))?;
        }
        Ok(())
    }

    fn failed(&self, device: &str) -> impl FnOnce(io::Error) -> DeviceError + use<> {
        let (vni, device) = (self.network.vni, device.to_owned());
        move |source| DeviceError::System { vni, device, source }
    }

    /// The index of a device, which is made if it is missing, and made again if it is another one than wanted.
    fn device(&mut self, name: &str, info: &[LinkInfo]) -> Result<u32, DeviceError> {
        if let Some(link) = by_name(self.requests, name).map_err(self.failed(name))? {
            if !is_marked(&link) {
                return Err(DeviceError::Foreign { vni: self.network.vni, device: name.to_owned() });
            }
            let is_tunnel = info.contains(&LinkInfo::Kind(InfoKind::Vxlan));
            let is_there = is_elsewhere(&link) == self.underlay.is_some() || !is_tunnel;
            if has(&link, info) && is_there {
                return Ok(link.header.index);
            }
            remove(self.requests, link.header.index).map_err(self.failed(name))?;
        }
        let mut message = LinkMessage::default();
        message.attributes =
            vec![LinkAttribute::IfName(name.to_owned()), LinkAttribute::LinkInfo(info.to_vec())];
        let is_tunnel = info.contains(&LinkInfo::Kind(InfoKind::Vxlan));
        let failed = self.failed(name);
        let made = match &mut self.underlay {
            Some(underlay) if is_tunnel => File::open("/proc/thread-self/ns/net").and_then(|here| {
                message.attributes.push(LinkAttribute::NetNsFd(here.as_raw_fd()));
                underlay.change(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)
            }),
            _ => self.requests.change(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL),
        };
        made.map_err(failed)?;
        let index = index_of(self.requests, name).map_err(self.failed(name))?;
        let index = index.ok_or_else(|| self.failed(name)(io::ErrorKind::NotFound.into()))?;
        let mut mark = LinkMessage::default();
        mark.attributes.push(LinkAttribute::IfAlias(MARK.to_owned()));
        change_link(self.requests, index, mark).map_err(self.failed(name))?;
        // No link-local addresses. A kernel without IPv6 has no such file.
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{name}/addr_gen_mode"), "1");
        Ok(index)
    }

    /// Gives the bridge of an L3VNI the MAC address of the router. Again would make the kernel forget all neighbours.
    fn set_mac(&mut self, name: &str, bridge: u32) -> Result<(), DeviceError> {
        let Some(gate) = self.network.gate else { return Ok(()) };
        let wanted = LinkAttribute::Address(gate.mac.0.to_vec());
        let link = by_name(self.requests, name).map_err(self.failed(name))?;
        if link.is_some_and(|link| link.attributes.contains(&wanted)) {
            return Ok(());
        }
        let mut message = LinkMessage::default();
        message.attributes.push(wanted);
        change_link(self.requests, bridge, message).map_err(self.failed(name))
    }

    fn bring_up(&mut self, name: &str, index: u32, more: &[LinkAttribute]) -> Result<(), DeviceError> {
        let mut message = LinkMessage::default();
        (message.header.flags, message.header.change_mask) = (LinkFlags::Up, LinkFlags::Up);
        message.attributes.extend_from_slice(more);
        message.attributes.push(LinkAttribute::Mtu(self.network.mtu));
        change_link(self.requests, index, message).map_err(self.failed(name))
    }

    fn vxlan(&self) -> Vec<LinkInfo> {
        let Network { vni, local, udp_port, .. } = *self.network;
        let local = match local {
            IpAddr::V4(local) => InfoVxlan::Local(local),
            IpAddr::V6(local) => InfoVxlan::Local6(local),
        };
        let data = vec![InfoVxlan::Id(vni), local, InfoVxlan::Port(udp_port), InfoVxlan::Learning(false)];
        vec![LinkInfo::Kind(InfoKind::Vxlan), LinkInfo::Data(InfoData::Vxlan(data))]
    }

    fn pair(&self) -> Vec<LinkInfo> {
        let mut peer = LinkMessage::default();
        peer.attributes.push(LinkAttribute::IfName(self.network.unused_end()));
        vec![LinkInfo::Kind(InfoKind::Veth), LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer)))]
    }
}

/// Whether a tunnel sends by another namespace.
fn is_elsewhere(link: &LinkMessage) -> bool {
    link.attributes.iter().any(|one| matches!(one, LinkAttribute::LinkNetNsId(_)))
}

/// Whether a device is what `info` says, as far as the kernel tells it.
fn has(link: &LinkMessage, info: &[LinkInfo]) -> bool {
    let all = link.attributes.iter().find_map(|one| match one {
        LinkAttribute::LinkInfo(all) => Some(all),
        _ => None,
    });
    let Some(all) = all else { return false };
    let has = |wanted: &LinkInfo| match wanted {
        LinkInfo::Data(InfoData::Vxlan(wanted)) => all.iter().any(|one| match one {
            LinkInfo::Data(InfoData::Vxlan(there)) => wanted.iter().all(|one| there.contains(one)),
            _ => false,
        }),
        LinkInfo::Kind(_) => all.contains(wanted),
        _ => true,
    };
    info.iter().all(has)
}
