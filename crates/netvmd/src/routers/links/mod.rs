// SPDX-License-Identifier: Apache-2.0
//! The interfaces of a router: veth pairs whose inner end is in its namespace and whose outer end is a netvm port.

mod ipv6_disabled;
mod outer;

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkMessage};

use super::kernel::is_of_kind;
use super::namespace::Namespace;
use super::offload::finish_packets;
use netvm_netlink::{Requests, Veth, by_name, change_link, index_of, make_veth, set_addresses, set_up};

pub(super) use ipv6_disabled::Ipv6Disabled;
pub(super) use outer::{OuterEnds, remove_all, set_carriers, take_down};

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

/// What the configuration last set of an interface: a change by somebody else differs from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configured {
    /// MAC address.
    pub mac: [u8; 6],
    /// MTU in bytes.
    pub mtu: u32,
}

impl Interface {
    /// What configuring it sets.
    pub const fn configured(&self) -> Configured {
        Configured { mac: self.mac, mtu: self.mtu }
    }
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

    /// Creates an interface, or changes it where the configuration has changed; true if it has just been created. What
    /// somebody changed in the namespace stays. `before`: what was last configured, if that is known.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn configure(
        &mut self,
        interface: &Interface,
        before: Option<Configured>,
    ) -> Result<bool, LinkError> {
        let router = self.router.to_owned();
        let fail = |what| {
            let (router, interface) = (router.clone(), interface.name.clone());
            move |source| LinkError { router, interface, what, source }
        };
        let outer = index_of(&mut self.outside, &interface.host_end).map_err(fail("cannot look it up"))?;
        let inner = self
            .inner_end(interface, outer)
            .map_err(fail("cannot look it up in the namespace"))?
            .map(|link| (link, before));
        let is_new = inner.is_none();
        if is_new {
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
        let set_up = move |requests: &mut Requests| -> io::Result<()> {
            let (link, change) = match inner {
                Some((link, before)) => {
                    let change = changes(&link, interface, before);
                    (link, change)
                }
                None => {
                    let link = by_name(requests, &interface.name)?.ok_or(io::ErrorKind::NotFound)?;
                    (link, Some(first_change(interface)))
                }
            };
            let name = name_of(&link).unwrap_or_else(|| interface.name.clone());
            finish_packets(&name)?;
            if let Some(change) = change {
                skip_duplicate_detection(&name);
                change_link(requests, link.header.index, change)?;
                // A new MTU may have brought IPv6 back, with the kernel's defaults.
                skip_duplicate_detection(&name);
            }
            let has_v6 = has_ipv6(&name);
            let possible = |(address, _): &&(IpAddr, u8)| address.is_ipv4() || has_v6;
            let addresses: Vec<_> = interface.addresses.iter().filter(possible).copied().collect();
            set_addresses(requests, link.header.index, &addresses)
        };
        let inside = &mut self.inside;
        self.namespace
            .inside(move || set_up(inside))
            .flatten()
            .map_err(fail("cannot configure it in the namespace"))?;
        Ok(is_new)
    }

    /// The inner end of an interface, which may have another name now.
    fn inner_end(&mut self, interface: &Interface, outer: Option<u32>) -> io::Result<Option<LinkMessage>> {
        let Some(outer) = outer else { return Ok(None) };
        let is_inner = |link: &LinkMessage| peer_of(link) == Some(outer);
        match by_name(&mut self.inside, &interface.name)?.filter(is_inner) {
            Some(link) => Ok(Some(link)),
            None => Ok(links(&mut self.inside)?.into_iter().find(is_inner)),
        }
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
        let Interface { name, host_end, mac, mtu, .. } = interface;
        let veth = Veth { outer: host_end, inner: name, mac: Some(*mac), mtu: *mtu };
        make_veth(&mut self.outside, veth, self.namespace.as_fd())
    }
}

/// What to set at a new interface.
fn first_change(interface: &Interface) -> LinkMessage {
    let mut change = up_with(interface.mtu);
    change.attributes.push(LinkAttribute::Address(interface.mac.to_vec()));
    change
}

/// What to change at an interface that exists. The kernel forgets all neighbours, permanent ones too, if it is told a
/// MAC address, be it the same.
fn changes(link: &LinkMessage, interface: &Interface, before: Option<Configured>) -> Option<LinkMessage> {
    let mut change = LinkMessage::default();
    let mac = link.attributes.iter().find_map(|one| match one {
        LinkAttribute::Address(bytes) => Some(&bytes[..]),
        _ => None,
    });
    let is_set = before.is_some_and(|before| before.mac == interface.mac);
    if !is_set && mac != Some(&interface.mac[..]) {
        change.attributes.push(LinkAttribute::Address(interface.mac.to_vec()));
    }
    let mtu = link.attributes.iter().find_map(|one| match one {
        LinkAttribute::Mtu(mtu) => Some(*mtu),
        _ => None,
    });
    let wanted = match (before, mtu) {
        (Some(before), _) if before.mtu == interface.mtu => mtu,
        // Somebody has set it; it is only lowered.
        (Some(before), Some(mtu)) if before.mtu != mtu => Some(mtu.min(interface.mtu)),
        _ => Some(interface.mtu),
    };
    change.attributes.extend(wanted.filter(|_| wanted != mtu).map(LinkAttribute::Mtu));
    (!change.attributes.is_empty()).then_some(change)
}

/// Whether an interface of the calling thread's namespace has IPv6: not with an MTU below 1280 (RFC 8200 section 5),
/// and not if it is turned off. The kernel then refuses addresses.
fn has_ipv6(interface: &str) -> bool {
    fs::read_to_string(ipv6_switch(interface)).is_ok_and(|switch| switch.trim() == "0")
}

/// Brings up loopback and enables forwarding in a router's namespace, and turns off the reverse path filters that it
/// has from the host, because the engine's `urpf` does their work.
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
        for scope in ["all", "default"] {
            fs::write(format!("/proc/sys/net/ipv4/conf/{scope}/rp_filter"), "0")?;
        }
        match fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1") {
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    };
    namespace.inside(start).flatten()
}

/// Whether the kernel accepts packets with addresses of this namespace as sources.
pub fn accept_local(accepts: bool) -> io::Result<()> {
    fs::write("/proc/sys/net/ipv4/conf/all/accept_local", if accepts { "1" } else { "0" })
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

fn links(requests: &mut Requests) -> io::Result<Vec<LinkMessage>> {
    let ask = RouteNetlinkMessage::GetLink(LinkMessage::default());
    requests.dump(&ask, Vec::new, |all, message| {
        if let RouteNetlinkMessage::NewLink(link) = message {
            all.push(link);
        }
    })
}

fn peer_of(link: &LinkMessage) -> Option<u32> {
    // A `vxlan` device of another namespace has an index there, too: its own.
    let is_elsewhere = link.attributes.iter().any(|one| matches!(one, LinkAttribute::LinkNetNsId(_)));
    let peer = link.attributes.iter().find_map(|one| match one {
        LinkAttribute::Link(index) => Some(*index),
        _ => None,
    });
    peer.filter(|_| is_elsewhere && is_of_kind(link, &InfoKind::Veth))
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

fn ipv6_switch(interface: &str) -> String {
    format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6")
}

/// Disables duplicate address detection (RFC 4862 5.4: `DupAddrDetectTransmits` may be 0), which would be useless: the
/// interface comes up before its port, so no neighbour would receive the probe.
fn skip_duplicate_detection(interface: &str) {
    // A kernel without IPv6 has no such file.
    let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{interface}/accept_dad"), "0");
}
