//! The interfaces of a router: veth pairs with one end in its namespace and the other, which netvm takes as a port, outside.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressProtocol};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::namespace::Namespace;
use super::netlink::Requests;
use super::offload::finish_packets;

/// What addresses from the configuration are marked with (`IFA_PROTO`, Linux 5.18), so that those that somebody else gave
/// are left alone. Any number from 4 on is for user space.
const OURS: u8 = 0x6e;

/// How the names of outer ends begin, and their length (`RouterInterface::host_end`).
const HOST_END: &str = "nv";
const HOST_END_LENGTH: usize = 14;

/// An interface as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name in the namespace.
    pub name: String,
    /// The name of the other end.
    pub host_end: String,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// Its MTU, in bytes.
    pub mtu: u32,
    /// Its addresses, each with the length of its prefix.
    pub addresses: Vec<(IpAddr, u8)>,
}

/// Why an interface could not be made.
#[derive(Debug, thiserror::Error)]
#[error("interface {interface} of router {router}: {what}: {source}")]
pub struct LinkError {
    /// Name of the router.
    pub router: String,
    /// Name of the interface.
    pub interface: String,
    /// What was being done.
    pub what: &'static str,
    /// The kernel's answer.
    pub source: io::Error,
}

/// Both ends of a router's interfaces, from the namespace that netvmd is in.
#[derive(Debug)]
pub struct Links<'a> {
    router: &'a str,
    namespace: &'a Namespace,
    outside: Requests,
}

impl<'a> Links<'a> {
    /// For one router.
    ///
    /// # Errors
    /// No netlink socket.
    pub fn new(router: &'a str, namespace: &'a Namespace) -> io::Result<Self> {
        Ok(Self { router, namespace, outside: Requests::open()? })
    }

    /// Makes an interface what it should be.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn see_to(&mut self, interface: &Interface) -> Result<(), LinkError> {
        let router = self.router.to_owned();
        let fail = |what| {
            let (router, interface) = (router.clone(), interface.name.clone());
            move |source| LinkError { router, interface, what, source }
        };
        let outer = self.index_outside(&interface.host_end).map_err(fail("looking for it"))?;
        let look_inside = || by_name(&mut Requests::open()?, &interface.name);
        let inner = self.namespace.inside(look_inside).flatten();
        let inner = inner.map_err(fail("looking for it in the namespace"))?;
        let is_pair = outer.is_some() && inner.as_ref().and_then(peer_of) == outer;
        if !is_pair {
            if outer.is_some() {
                self.remove(&interface.host_end).map_err(fail("removing what has its name"))?;
            }
            // Somebody else's interface of this name in the namespace is not touched: this fails then.
            self.make_pair(interface).map_err(fail("making a veth pair"))?;
        }
        let index = self.index_outside(&interface.host_end).map_err(fail("looking for it"))?;
        let index = index.ok_or_else(|| fail("looking for it")(io::ErrorKind::NotFound.into()))?;
        keep_quiet(&interface.host_end);
        change_link(&mut self.outside, index, up_with(interface.mtu))
            .map_err(fail("starting its outer end"))?;
        let set_up = |requests: &mut Requests| -> io::Result<bool> {
            let Some(link) = by_name(requests, &interface.name)? else {
                return Err(io::ErrorKind::NotFound.into());
            };
            finish_packets(&interface.name)?;
            skip_duplicate_detection(&interface.name);
            let mut message = up_with(interface.mtu);
            message.attributes.push(LinkAttribute::Address(interface.mac.to_vec()));
            change_link(requests, link.header.index, message)?;
            set_addresses(requests, link.header.index, &interface.addresses)?;
            Ok(true)
        };
        let namespace = self.namespace;
        let set_up = move || set_up(&mut Requests::open()?);
        namespace.inside(set_up).flatten().map_err(fail("setting it up in the namespace"))?;
        Ok(())
    }

    /// Removes an interface by its outer end; that there is none is fine.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove(&mut self, host_end: &str) -> io::Result<()> {
        let Some(index) = self.index_outside(host_end)? else { return Ok(()) };
        let mut message = LinkMessage::default();
        message.header.index = index;
        match self.outside.change(RouteNetlinkMessage::DelLink(message), 0) {
            // Somebody was faster.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(()),
            other => other,
        }
    }

    /// The outer ends of all interfaces of the router that netvm made.
    ///
    /// # Errors
    /// The kernel's.
    pub fn ends(&mut self) -> io::Result<Vec<String>> {
        let pairs = self.namespace.inside(|| pairs(&mut Requests::open()?)).flatten()?;
        let all = links(&mut self.outside)?;
        let is_end = |link: &LinkMessage| {
            let inner = peer_of(link);
            pairs.iter().any(|(index, outer)| *outer == link.header.index && inner == Some(*index))
        };
        let names = all.iter().filter(|link| is_end(link)).filter_map(name_of);
        Ok(names.filter(|name| name.len() == HOST_END_LENGTH && name.starts_with(HOST_END)).collect())
    }

    fn index_outside(&mut self, name: &str) -> io::Result<Option<u32>> {
        Ok(by_name(&mut self.outside, name)?.map(|link| link.header.index))
    }

    fn make_pair(&mut self, interface: &Interface) -> io::Result<()> {
        let mut peer = LinkMessage::default();
        peer.attributes = vec![
            LinkAttribute::IfName(interface.name.clone()),
            LinkAttribute::Address(interface.mac.to_vec()),
            LinkAttribute::Mtu(interface.mtu),
            LinkAttribute::NetNsFd(self.namespace.as_fd().as_raw_fd()),
            LinkAttribute::NumTxQueues(1),
            LinkAttribute::NumRxQueues(1),
        ];
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(interface.host_end.clone()),
            LinkAttribute::Mtu(interface.mtu),
            LinkAttribute::NumTxQueues(1),
            LinkAttribute::NumRxQueues(1),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
            ]),
        ];
        self.outside.change(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)
    }
}

/// Starts a router's namespace: its loopback interface, and forwarding.
///
/// # Errors
/// The kernel's.
pub fn start_forwarding(namespace: &Namespace) -> io::Result<()> {
    let start = || -> io::Result<()> {
        let mut requests = Requests::open()?;
        if let Some(loopback) = by_name(&mut requests, "lo")? {
            let mut message = LinkMessage::default();
            (message.header.flags, message.header.change_mask) = (LinkFlags::Up, LinkFlags::Up);
            change_link(&mut requests, loopback.header.index, message)?;
        }
        fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
        match fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1") {
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    };
    namespace.inside(start).flatten()
}

fn up_with(mtu: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    (message.header.flags, message.header.change_mask) = (LinkFlags::Up, LinkFlags::Up);
    message.attributes.push(LinkAttribute::Mtu(mtu));
    message
}

fn change_link(requests: &mut Requests, index: u32, mut message: LinkMessage) -> io::Result<()> {
    message.header.index = index;
    requests.change(RouteNetlinkMessage::SetLink(message), 0)
}

fn by_name(requests: &mut Requests, name: &str) -> io::Result<Option<LinkMessage>> {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::IfName(name.to_owned()));
    match requests.get(RouteNetlinkMessage::GetLink(message)) {
        Ok(Some(RouteNetlinkMessage::NewLink(link))) => Ok(Some(link)),
        Ok(_) => Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        Err(error) => Err(error),
    }
}

fn links(requests: &mut Requests) -> io::Result<Vec<LinkMessage>> {
    let ask = RouteNetlinkMessage::GetLink(LinkMessage::default());
    requests.dump(&ask, Vec::new, |all, message| {
        if let RouteNetlinkMessage::NewLink(link) = message {
            all.push(link);
        }
    })
}

/// The interfaces whose other end is in another namespace, each with the number that its other end has there.
fn pairs(requests: &mut Requests) -> io::Result<Vec<(u32, u32)>> {
    Ok(links(requests)?.iter().filter_map(|link| Some((link.header.index, peer_of(link)?))).collect())
}

fn peer_of(link: &LinkMessage) -> Option<u32> {
    let is_elsewhere = link.attributes.iter().any(|one| matches!(one, LinkAttribute::LinkNetNsId(_)));
    let peer = link.attributes.iter().find_map(|one| match one {
        LinkAttribute::Link(index) => Some(*index),
        _ => None,
    });
    peer.filter(|_| is_elsewhere)
}

fn name_of(link: &LinkMessage) -> Option<String> {
    link.attributes.iter().find_map(|one| match one {
        LinkAttribute::IfName(name) => Some(name.clone()),
        _ => None,
    })
}

/// Keeps the outer end from sending on its own; a kernel without IPv6 has nothing to say there anyway.
fn keep_quiet(host_end: &str) {
    let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{host_end}/disable_ipv6"), "1");
}

/// Lets a router have its link-local address at once (RFC 4862 5.4: `DupAddrDetectTransmits` may be 0): it starts before
/// its ports do, when nobody would hear its question.
fn skip_duplicate_detection(interface: &str) {
    // A kernel without IPv6 has no such file.
    let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{interface}/accept_dad"), "0");
}

/// Gives an interface the addresses that it should have, and takes those away that an earlier configuration gave it.
fn set_addresses(requests: &mut Requests, index: u32, wanted: &[(IpAddr, u8)]) -> io::Result<()> {
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

fn is_ours(message: &AddressMessage) -> bool {
    message
        .attributes
        .iter()
        .any(|one| matches!(one, AddressAttribute::Protocol(protocol) if u8::from(*protocol) == OURS))
}

/// The directed broadcast address of a network that has one (RFC 1812 4.2.2.11; none with 31 bits: RFC 3021).
fn broadcast(address: IpAddr, length: u8) -> Option<std::net::Ipv4Addr> {
    match address {
        IpAddr::V4(address) if length < 31 => {
            let hosts = u32::MAX.checked_shr(u32::from(length)).unwrap_or(0);
            Some((u32::from(address) | hosts).into())
        }
        _ => None,
    }
}
