// SPDX-License-Identifier: Apache-2.0
//! The addresses and default routes of an interface, and how they are kept: a kernel forgets default routes and IPv6
//! addresses when somebody takes the interface down.

use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkXdp, XdpAttached};
use netvm_netlink::{Requests, by_name, inside, link_in, number_of, set_addresses, set_default_route};
use netvm_wire::MacAddr;

use super::announce::announce;

/// What an interface is configured with.
#[derive(Clone, Debug, Default)]
pub struct Addressing {
    /// Its addresses, with the lengths of their prefixes.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Default gateways, at most one of each address family.
    pub gateways: Vec<IpAddr>,
}

/// A network namespace, and the file that named it.
#[derive(Clone, Debug)]
pub(crate) struct Namespace {
    file: PathBuf,
    /// Device and inode number.
    id: (u64, u64),
    /// Its number in this process's namespace.
    number: Option<i32>,
}

impl Namespace {
    pub(crate) fn of(path: &Path, file: &File) -> io::Result<Self> {
        Ok(Self { file: path.to_owned(), id: id(&file.metadata()?), number: None })
    }
}

pub(crate) fn id(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// What a namespace says of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkState {
    /// Whether it is administratively up.
    pub is_up: bool,
    /// Its MTU in bytes.
    pub mtu: Option<u32>,
    /// Its MAC address.
    pub mac: Option<[u8; 6]>,
    /// Whether an XDP program runs on what it receives.
    pub has_xdp: bool,
}

/// An interface with its addressing, in this process's namespace or another one. It does not keep the namespace alive.
#[derive(Debug)]
pub struct ManagedInterface {
    interface: String,
    index: u32,
    namespace: Option<Namespace>,
    addressing: Addressing,
    problem: Option<String>,
}

impl ManagedInterface {
    /// Configures an interface, and keeps what is needed to do that again.
    pub(crate) fn new(interface: String, namespace: Option<Namespace>, addressing: Addressing) -> Self {
        let mut managed = Self { interface, index: 0, namespace, addressing, problem: None };
        managed.restore();
        if let Some(namespace) = &mut managed.namespace {
            // The kernel has numbered it when the interface moved there.
            namespace.number =
                File::open(&namespace.file).and_then(|file| number_of(file.as_fd())).ok().flatten();
        }
        managed
    }

    /// Whether the file of its namespace names another namespace now. The old one, with its interface, may still be
    /// there: sockets that wait for their last acknowledgement keep it for minutes after the container has ended.
    #[must_use]
    pub fn is_left(&self) -> bool {
        self.namespace.as_ref().is_some_and(|namespace| {
            fs::metadata(&namespace.file).is_ok_and(|metadata| id(&metadata) != namespace.id)
        })
    }

    /// Whether it is the interface with this index in the namespace of this number; `None`: this process's.
    #[must_use]
    pub fn is(&self, namespace: Option<i32>, index: u32) -> bool {
        self.index == index
            && self.namespace.as_ref().map(|namespace| namespace.number) == namespace.map(Some)
    }

    /// What its namespace says of it; `None` if the kernel does not show it.
    #[must_use]
    pub fn state(&self) -> Option<LinkState> {
        let link = match &self.namespace {
            Some(namespace) => link_in(namespace.number?, self.index).ok()??,
            None => by_name(&mut Requests::open().ok()?, &self.interface).ok()??,
        };
        let mut state =
            LinkState { is_up: link.header.flags.contains(LinkFlags::Up), ..LinkState::default() };
        for attribute in link.attributes {
            match attribute {
                LinkAttribute::Mtu(mtu) => state.mtu = Some(mtu),
                LinkAttribute::Address(mac) => state.mac = <[u8; 6]>::try_from(mac).ok(),
                LinkAttribute::Xdp(of) => {
                    let none = LinkXdp::Attached(XdpAttached::None);
                    state.has_xdp = of.iter().any(|one| matches!(one, LinkXdp::Attached(_)) && *one != none);
                }
                _ => {}
            }
        }
        Some(state)
    }

    /// What could not be configured, why, and the remedy.
    #[must_use]
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Gives the interface its addresses and default routes again, if it is up, and announces the addresses. What
    /// somebody else has added stays.
    pub fn restore(&mut self) {
        let outcome = match &self.namespace {
            None => configure(&self.interface, &self.addressing),
            Some(namespace) => {
                let enter = || -> io::Result<_> {
                    let file = File::open(&namespace.file)?;
                    if id(&file.metadata()?) != namespace.id {
                        return Err(io::ErrorKind::NotFound.into());
                    }
                    inside(file.as_fd(), || configure(&self.interface, &self.addressing))?
                };
                enter()
            }
        };
        match outcome {
            Ok((index, problem)) => (self.index, self.problem) = (index, problem),
            // Its namespace is gone, and the port is about to follow.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => self.problem = Some(format!("interface {}: {error}", self.interface)),
        }
    }
}

/// Returns the interface's index, and what could not be set.
fn configure(interface: &str, addressing: &Addressing) -> io::Result<(u32, Option<String>)> {
    let mut requests = Requests::open()?;
    let link = by_name(&mut requests, interface)?;
    let link = link.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
    let index = link.header.index;
    if !link.header.flags.contains(LinkFlags::Up) {
        return Ok((index, None));
    }
    let wants_v6 = addressing.addresses.iter().any(|(address, _)| address.is_ipv6())
        || addressing.gateways.iter().any(IpAddr::is_ipv6);
    let has_v6 = !wants_v6 || enable_ipv6(interface);
    let can_have = |address: &IpAddr| has_v6 || address.is_ipv4();
    let addresses: Vec<_> =
        addressing.addresses.iter().filter(|(address, _)| can_have(address)).copied().collect();
    let mut problems = Vec::new();
    if !has_v6 {
        problems.push(format!(
            "it has no IPv6 addresses, as IPv6 is disabled in its network namespace: sysctl \
             net.ipv6.conf.{interface}.disable_ipv6=0 there"
        ));
    }
    if let Err(error) = set_addresses(&mut requests, index, &addresses) {
        problems.push(format!("cannot set its addresses: {error}"));
    }
    let mac = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Address(mac) => <[u8; 6]>::try_from(mac.as_slice()).ok().map(MacAddr),
        _ => None,
    });
    if let Some(mac) = mac {
        // If this fails, neighbours find it out later.
        let _ = announce(index, mac, addresses.iter().map(|(address, _)| *address));
    }
    for gateway in addressing.gateways.iter().filter(|gateway| can_have(gateway)) {
        if let Err(error) = set_default_route(&mut requests, index, *gateway) {
            let remedy = match error.raw_os_error() {
                Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => {
                    ": give it an address in the gateway's network"
                }
                _ => "",
            };
            problems.push(format!("cannot set its gateway {gateway}: {error}{remedy}"));
        }
    }
    let problem = (!problems.is_empty()).then(|| format!("interface {interface}: {}", problems.join("; ")));
    Ok((index, problem))
}

/// Enables IPv6 on an interface whose namespace begins without it, as container engines make them; false if that is not
/// possible.
fn enable_ipv6(interface: &str) -> bool {
    // /proc/sys/net is that of the calling thread's namespace.
    let file = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
    match fs::read_to_string(&file) {
        Ok(text) if text.trim() == "0" => true,
        _ => fs::write(&file, "0").is_ok(),
    }
}
