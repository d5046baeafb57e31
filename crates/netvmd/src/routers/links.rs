//! The interfaces of a router: veth pairs whose inner end is in its namespace and whose outer end is a netvm port.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};

use super::namespace::Namespace;
use super::offload::finish_packets;
use netvm_netlink::{Requests, by_name, change_link, index_of, set_addresses, set_up};

/// Prefix and length of the outer ends' names (`RouterInterface::host_end`).
const HOST_END: &str = "nv";
const HOST_END_LENGTH: usize = 14;

/// The interface group that marks interfaces for removal (`ip link set group`): "nvrm".
const REMOVED: u32 = 0x6e76_726d;

/// Below this MTU an interface has no IPv6 (RFC 8200 section 5), and the kernel refuses addresses.
const LEAST_IPV6_MTU: u32 = 1280;

/// The desired state of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name of the inner end.
    pub name: String,
    /// Name of the outer end.
    pub host_end: String,
    /// MAC address.
    pub mac: [u8; 6],
    /// MTU in bytes.
    pub mtu: u32,
    /// Addresses with their prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
}

/// An interface cannot be configured.
#[derive(Debug, thiserror::Error)]
#[error("interface {interface} of router {router}: {what}: {source}")]
pub struct LinkError {
    /// Name of the router.
    pub router: String,
    /// Name of the interface.
    pub interface: String,
    /// The step that failed.
    pub what: &'static str,
    /// The kernel's error.
    pub source: io::Error,
}

/// Both ends of a router's interfaces, seen from netvmd's namespace.
#[derive(Debug)]
pub struct Links<'a> {
    router: &'a str,
    namespace: &'a Namespace,
    outside: Requests,
    inside: Requests,
}

impl<'a> Links<'a> {
    /// The interfaces of `router`.
    ///
    /// # Errors
    /// A netlink socket cannot be opened.
    pub fn new(router: &'a str, namespace: &'a Namespace) -> io::Result<Self> {
        let inside = namespace.inside(Requests::open).flatten()?;
        Ok(Self { router, namespace, outside: Requests::open()?, inside })
    }

    /// Creates or changes an interface to its desired state; true if it has just been created.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn configure(&mut self, interface: &Interface) -> Result<bool, LinkError> {
        let router = self.router.to_owned();
        let fail = |what| {
            let (router, interface) = (router.clone(), interface.name.clone());
            move |source| LinkError { router, interface, what, source }
        };
        let outer = index_of(&mut self.outside, &interface.host_end).map_err(fail("cannot look it up"))?;
        let inner =
            by_name(&mut self.inside, &interface.name).map_err(fail("cannot look it up in the namespace"))?;
        let is_pair = outer.is_some() && inner.as_ref().and_then(peer_of) == outer;
        if !is_pair {
            if outer.is_some() {
                self.remove(&interface.host_end)
                    .map_err(fail("cannot remove another interface that has its name"))?;
            }
            // Fails if the namespace has another interface of this name, which stays.
            self.make_pair(interface).map_err(fail("cannot create a veth pair"))?;
        }
        let index = index_of(&mut self.outside, &interface.host_end).map_err(fail("cannot look it up"))?;
        let index = index.ok_or_else(|| fail("cannot look it up")(io::ErrorKind::NotFound.into()))?;
        disable_ipv6(&interface.host_end);
        change_link(&mut self.outside, index, up_with(interface.mtu))
            .map_err(fail("cannot bring up its outer end"))?;
        let set_up = |requests: &mut Requests| -> io::Result<bool> {
            let Some(link) = by_name(requests, &interface.name)? else {
                return Err(io::ErrorKind::NotFound.into());
            };
            finish_packets(&interface.name)?;
            skip_duplicate_detection(&interface.name);
            let mut message = up_with(interface.mtu);
            message.attributes.push(LinkAttribute::Address(interface.mac.to_vec()));
            change_link(requests, link.header.index, message)?;
            // A new MTU may have brought IPv6 back, with the kernel's defaults.
            skip_duplicate_detection(&interface.name);
            let possible =
                |(address, _): &&(IpAddr, u8)| address.is_ipv4() || interface.mtu >= LEAST_IPV6_MTU;
            let addresses: Vec<_> = interface.addresses.iter().filter(possible).copied().collect();
            set_addresses(requests, link.header.index, &addresses)?;
            Ok(true)
        };
        let inside = &mut self.inside;
        self.namespace
            .inside(move || set_up(inside))
            .flatten()
            .map_err(fail("cannot configure it in the namespace"))?;
        Ok(!is_pair)
    }

    /// Makes the kernel announce the addresses of new interfaces: neighbours may remember another router's MAC address
    /// (gratuitous ARP, RFC 5227 section 3; unsolicited neighbour advertisements, RFC 4861 section 7.2.6).
    ///
    /// # Errors
    /// The kernel's error.
    pub fn announce(&self, interfaces: &[Interface]) -> io::Result<()> {
        let announce = || -> io::Result<()> {
            let mut requests = Requests::open()?;
            for interface in interfaces {
                let Some(index) = index_of(&mut requests, &interface.name)? else { continue };
                for file in ["ipv4/conf/{}/arp_notify", "ipv6/conf/{}/ndisc_notify"] {
                    // A kernel without IPv6 has no such file.
                    let _ = fs::write(format!("/proc/sys/net/{}", file.replace("{}", &interface.name)), "1");
                }
                // Setting the same MAC address again makes the kernel announce it.
                let mut message = LinkMessage::default();
                message.attributes.push(LinkAttribute::Address(interface.mac.to_vec()));
                change_link(&mut requests, index, message)?;
            }
            Ok(())
        };
        self.namespace.inside(announce).flatten()
    }

    /// Removes an interface by its outer end, if it exists.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn remove(&mut self, host_end: &str) -> io::Result<()> {
        let Some(index) = index_of(&mut self.outside, host_end)? else { return Ok(()) };
        let mut message = LinkMessage::default();
        message.header.index = index;
        unless_gone(self.outside.change(RouteNetlinkMessage::DelLink(message), 0)).map(drop)
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

/// Brings up loopback and enables forwarding in a router's namespace.
///
/// # Errors
/// The kernel's error.
pub fn start_forwarding(namespace: &Namespace) -> io::Result<()> {
    let start = || -> io::Result<()> {
        let mut requests = Requests::open()?;
        if let Some(loopback) = by_name(&mut requests, "lo")? {
            set_up(&mut requests, loopback.header.index, true)?;
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

/// The interfaces of netvmd's namespace that may be outer ends of routers' interfaces.
#[derive(Debug)]
pub(super) struct OuterEnds(Vec<OuterEnd>);

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

/// Turns off the carrier of interfaces by their outer ends, so that daemons inside notice that no packets pass. Addresses and
/// routes stay.
///
/// # Errors
/// The kernel's error.
pub(super) fn take_down(host_ends: &[String]) -> io::Result<()> {
    let mut requests = Requests::open()?;
    for host_end in host_ends {
        let Some(index) = index_of(&mut requests, host_end)? else { continue };
        set_up(&mut requests, index, false)?;
    }
    Ok(())
}

/// Removes interfaces by their outer ends, all at once: the kernel takes 40 ms to remove an interface, because it waits for all
/// processors, and hardly longer to remove a group.
///
/// # Errors
/// The kernel's error.
pub(super) fn remove_all(host_ends: &[String]) -> io::Result<()> {
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

/// What a request about an interface returned; `None` if the interface is already gone.
fn unless_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        other => other.map(Some),
    }
}

fn up_with(mtu: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    (message.header.flags, message.header.change_mask) = (LinkFlags::Up, LinkFlags::Up);
    message.attributes.push(LinkAttribute::Mtu(mtu));
    message
}

/// Brings outer ends up or takes them down, unless they already are.
///
/// # Errors
/// The kernel's error.
pub(super) fn set_carriers(carriers: &[(String, bool)]) -> io::Result<()> {
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

fn links(requests: &mut Requests) -> io::Result<Vec<LinkMessage>> {
    let ask = RouteNetlinkMessage::GetLink(LinkMessage::default());
    requests.dump(&ask, Vec::new, |all, message| {
        if let RouteNetlinkMessage::NewLink(link) = message {
            all.push(link);
        }
    })
}

/// The veth interfaces whose peer is in another namespace, each with the peer's index there.
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

/// Stops the outer end's own IPv6 traffic. Fails on a kernel without IPv6, which sends none.
fn disable_ipv6(host_end: &str) {
    let _ = fs::write(ipv6_switch(host_end), "1");
}

/// Interfaces of routers' ports on which netvmd turned off the host's own IPv6: AF_XDP takes received packets, but the host
/// would still send on these interfaces.
#[derive(Debug, Default)]
pub(super) struct Silenced(BTreeSet<String>);

impl Silenced {
    /// Turns IPv6 off on these interfaces, if it is on. Skips an interface with addresses other than link-local ones, because
    /// they would be lost.
    pub(super) fn add<'a>(&mut self, interfaces: impl IntoIterator<Item = &'a String>) {
        // A kernel without IPv6 has no such file.
        let addresses = fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
        for interface in interfaces.into_iter().filter(|interface| !has_own_address(&addresses, interface)) {
            let file = ipv6_switch(interface);
            let is_on = fs::read_to_string(&file).is_ok_and(|value| value.trim() == "0");
            if is_on && fs::write(&file, "1").is_ok() {
                self.0.insert(interface.clone());
            }
        }
    }

    /// Turns IPv6 on again on all interfaces but these.
    pub(super) fn keep_only(&mut self, interfaces: &BTreeSet<&String>) {
        for interface in self.0.extract_if(.., |interface| !interfaces.contains(interface)) {
            // The interface may be gone.
            let _ = fs::write(ipv6_switch(&interface), "0");
        }
    }
}

/// Whether `/proc/net/if_inet6` (address, index, length, scope, flags, name) has an address of this interface other than
/// the kernel's own, which have scope link.
fn has_own_address(addresses: &str, interface: &str) -> bool {
    const LINK: &str = "20";
    addresses.lines().any(|line| {
        let mut words = line.split_whitespace();
        let scope = words.nth(3);
        words.nth(1) == Some(interface) && scope != Some(LINK)
    })
}

fn ipv6_switch(interface: &str) -> String {
    format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6")
}

/// Disables duplicate address detection (RFC 4862 5.4: `DupAddrDetectTransmits` may be 0), which would be useless: the
/// interface comes up before its port, so no neighbour would receive the probe.
fn skip_duplicate_detection(interface: &str) {
    // A kernel without IPv6 has no such file.
    let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{interface}/accept_dad"), "0");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_somebody_gave_are_told_from_link_local_ones() {
        let addresses = "fe800000000000000000000000000001 02 40 20 80     eth0\n\
            20010db8000000000000000000000001 03 40 00 80   eth1\n";
        assert!(has_own_address(addresses, "eth1"));
        assert!(!has_own_address(addresses, "eth0") && !has_own_address(addresses, "eth"));
    }
}
