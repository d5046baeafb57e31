// SPDX-License-Identifier: Apache-2.0
//! Interfaces of containers that leave room for programs of the kernel: a veth pair, whose outer end and a TAP device
//! of netvm are in a network namespace of netvm's own.
//!
//! ```text
//!   container        netvm's namespace             netvm
//!   ┌──────┐       ┌───────┐          ┌─────┐
//!   │ eth0 │─veth──│ outer │ programs │ TAP │────── queues
//!   └──────┘       └───────┘          └─────┘
//! ```
//!
//! No program: no packet passes. Nothing holds the namespace but descriptors and the open queues of TAP devices, so it
//! ends with this process and those to which it has given these, however they end, and the interfaces of containers end
//! with it.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netvm_netlink::{
    Requests, Veth, by_name, change_link, give_number, index_of, inside, link_in, make_veth, nameless,
    remove_link, set_up,
};

use super::addressing::{Addressing, ManagedInterface, Namespace, id};
use super::container::{self, ContainerOptions, is_in, namespace_of};
use super::stale::Wanted;
use crate::ifreq::device_of;
use crate::tap::{self, TapOptions};
use crate::{OpenError, Opened};

/// The largest MTU of a TAP device: it drops no packet that the container may send.
const TAP_MTU: u16 = 65_521;
/// The MTU of the outer end, unless that of the container is larger: the most with which a container may have XDP
/// programs in its driver (Linux's `veth_xdp_set`), rounded down.
const OUTER_MTU: u32 = 3400;

/// The network namespace with the outer ends.
#[derive(Debug)]
pub struct PrivateNamespace {
    file: OwnedFd,
    /// In this process's namespace.
    number: i32,
    /// Pairs so far.
    pairs: AtomicU32,
}

impl PrivateNamespace {
    /// Makes it.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn new() -> io::Result<Self> {
        let file = nameless()?;
        let number = give_number(file.as_fd())?;
        Ok(Self { file, number, pairs: AtomicU32::new(0) })
    }

    /// One that another process has left.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn adopt(file: OwnedFd) -> io::Result<Self> {
        let number = give_number(file.as_fd())?;
        let next = pairs_in(file.as_fd())?.into_iter().map(|(pair, _)| pair + 1).max().unwrap_or(0);
        Ok(Self { file, number, pairs: AtomicU32::new(next) })
    }

    /// Removes the pairs that are none of those with these outer ends.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn remove_others(&self, outer: &[u32]) -> io::Result<()> {
        let others: Vec<u32> = pairs_in(self.file.as_fd())?.into_iter().map(|(_, index)| index).collect();
        self.inside(|| {
            let mut requests = Requests::open()?;
            let mut others = others.into_iter().filter(|index| !outer.contains(index));
            others.try_for_each(|index| remove_link(&mut requests, index))
        })?
    }

    /// Does something in it.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        inside(self.file.as_fd(), work)
    }
}

impl AsFd for PrivateNamespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The names of the outer end and the TAP device of a pair.
fn names(pair: u32) -> [String; 2] {
    ["v", "t"].map(|kind| format!("{kind}{pair}"))
}

/// The pairs in a namespace of netvm's own: their numbers, and the indexes of their outer ends.
fn pairs_in(namespace: BorrowedFd<'_>) -> io::Result<Vec<(u32, u32)>> {
    inside(namespace, || {
        let all = RouteNetlinkMessage::GetLink(LinkMessage::default());
        Requests::open()?.dump(&all, Vec::new, |found, message| {
            let RouteNetlinkMessage::NewLink(link) = message else { return };
            let number = |attribute: &LinkAttribute| match attribute {
                LinkAttribute::IfName(name) => name.strip_prefix('v')?.parse::<u32>().ok(),
                _ => None,
            };
            found.extend(link.attributes.iter().find_map(number).map(|pair| (pair, link.header.index)));
        })
    })?
}

/// A pair and its TAP device. Dropping it removes the pair, unless it is left to others; the TAP device ends with its
/// last queue.
#[derive(Debug)]
pub struct Pair {
    namespace: Arc<PrivateNamespace>,
    outer: u32,
    tap: u32,
    /// Of the outer end.
    mtu: Cell<u32>,
    is_left: bool,
}

impl Pair {
    /// Has it stay when this is dropped, as long as another process has its namespace.
    pub const fn leave(&mut self) {
        self.is_left = true;
    }

    /// Index of the outer end.
    #[must_use]
    pub const fn outer(&self) -> u32 {
        self.outer
    }

    /// Index of the TAP device.
    #[must_use]
    pub const fn tap(&self) -> u32 {
        self.tap
    }

    /// Lets packets of the container's MTU through.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn follow_mtu(&self, mtu: u32) -> io::Result<()> {
        let wanted = mtu.max(OUTER_MTU);
        if wanted == self.mtu.get() {
            return Ok(());
        }
        let outer = self.outer;
        self.namespace.inside(move || {
            let mut message = LinkMessage::default();
            message.attributes = vec![LinkAttribute::Mtu(wanted)];
            change_link(&mut Requests::open()?, outer, message)
        })??;
        self.mtu.set(wanted);
        Ok(())
    }

    /// Whether the pair is there: it ends when the container removes its end, or ends itself.
    #[must_use]
    pub fn exists(&self) -> bool {
        // If the kernel cannot say, it has not changed.
        !matches!(link_in(self.namespace.number, self.outer), Ok(None))
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if self.is_left {
            return;
        }
        // It may have ended.
        let outer = self.outer;
        let _ = self.namespace.inside(move || remove_link(&mut Requests::open()?, outer));
    }
}

/// Makes the interface of a container as one end of a pair, and a TAP device beside the other. What joins these is up
/// to the caller: until then no packet passes. If its addresses and routes cannot be set, it is open all the same, and
/// [`ManagedInterface::problem`] says so.
///
/// # Errors
/// [`OpenError`] names the step that failed.
pub fn open(
    options: &ContainerOptions,
    namespace: &Arc<PrivateNamespace>,
) -> Result<(Opened, ManagedInterface, Pair), OpenError> {
    let (file, identity) = namespace_of(options)?;
    let ContainerOptions { tap, mac, addressing, .. } = options;
    make(Inner { file, identity: Some(identity), tap, mac: *mac, addressing }, namespace)
}

/// The same for the host's own interface, in this process's network namespace.
///
/// # Errors
/// [`OpenError`] names the step that failed.
pub fn open_here(
    tap: &TapOptions,
    mac: [u8; 6],
    addressing: &Addressing,
    namespace: &Arc<PrivateNamespace>,
) -> Result<(Opened, ManagedInterface, Pair), OpenError> {
    let file = File::open("/proc/thread-self/ns/net");
    let file = file.map_err(OpenError::of(&tap.interface, "cannot open this network namespace"))?;
    make(Inner { file, identity: None, tap, mac, addressing }, namespace)
}

/// Takes over the interface of a container that another process has made by the same options and left: `queues` are the
/// descriptors of its TAP device. `None` if the pair is not there any more, or is another one.
#[must_use]
pub fn adopt(
    options: &ContainerOptions,
    namespace: &Arc<PrivateNamespace>,
    queues: Vec<OwnedFd>,
) -> Option<(Opened, ManagedInterface, Pair)> {
    let (file, identity) = namespace_of(options).ok()?;
    let own = id(&File::from(namespace.file.try_clone().ok()?).metadata().ok()?);
    if !queues.iter().all(|queue| is_in(queue.as_fd(), own).unwrap_or(false)) {
        return None;
    }
    let name = device_of(queues.first()?.as_fd()).ok()?.name();
    let [outer, tap] = names(name.strip_prefix('t')?.parse().ok()?);
    let find = || -> io::Result<_> {
        let link = by_name(&mut Requests::open()?, &outer)?;
        Ok((link.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?, present(&tap)?))
    };
    let (link, tap) = namespace.inside(find).flatten().ok()?;
    let inner = inside(file.as_fd(), || by_name(&mut Requests::open()?, &options.tap.interface));
    let inner = inner.flatten().ok()??;
    // Each end knows the index of the other.
    let is_end = |of: &LinkMessage, other: &LinkMessage| {
        of.attributes.contains(&LinkAttribute::Link(other.header.index))
    };
    if !is_end(&link, &inner) || !is_end(&inner, &link) {
        return None;
    }
    let mtu = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Mtu(mtu) => Some(*mtu),
        _ => None,
    })?;
    let opened = tap::adopt(&tap_options(name, &options.tap), queues)?;
    give_number(file.as_fd()).ok()?;
    let outer = link.header.index;
    let pair = Pair { namespace: Arc::clone(namespace), outer, tap, mtu: Cell::new(mtu), is_left: false };
    let (interface, addressing) = (options.tap.interface.clone(), options.addressing.clone());
    Some((opened, ManagedInterface::new(interface, Some(identity), addressing), pair))
}

/// Removes the pair of the TAP device of this queue, and the device. Other descriptors of it are of no use then.
///
/// # Errors
/// The kernel's error: they are not there any more, for instance.
pub fn remove(queue: impl AsFd) -> io::Result<()> {
    let name = device_of(queue.as_fd())?.name();
    let number = name.strip_prefix('t').and_then(|number| number.parse().ok());
    let remove_outer = || -> io::Result<()> {
        let [outer, _] = names(number.ok_or(io::ErrorKind::NotFound)?);
        remove_link(&mut Requests::open()?, present(&outer)?)
    };
    let outer = inside(tap::namespace_of(queue.as_fd())?.as_fd(), remove_outer).flatten();
    container::remove(queue).and(outer)
}

/// The TAP device beside a pair.
const fn tap_options(interface: String, options: &TapOptions) -> TapOptions {
    TapOptions { interface, mtu: Some(TAP_MTU), queues: options.queues, offloads: true }
}

/// The inner end of a pair.
struct Inner<'a> {
    /// Its network namespace.
    file: File,
    /// If that is another one than this process's.
    identity: Option<Namespace>,
    tap: &'a TapOptions,
    mac: [u8; 6],
    addressing: &'a Addressing,
}

fn make(
    inner: Inner<'_>,
    namespace: &Arc<PrivateNamespace>,
) -> Result<(Opened, ManagedInterface, Pair), OpenError> {
    let Inner { file, identity, tap: options, mac, addressing } = inner;
    let name = &options.interface;
    let fail = |step| OpenError::of(name, step);
    let number = namespace.pairs.fetch_add(1, Ordering::Relaxed);
    let [outer, tap] = names(number);
    let in_private = |work: &(dyn Fn() -> io::Result<u32> + Sync)| namespace.inside(work).flatten();
    let tap_options = tap_options(tap.clone(), options);
    let opened =
        namespace.inside(|| tap::open(&tap_options)).map_err(fail("cannot enter netvm's namespace"))??;
    let tap = in_private(&|| present(&tap)).map_err(fail("cannot find its TAP device"))?;
    let veth = Veth { outer: &outer, inner: name, mac: Some(mac), mtu: options.mtu.map_or(1500, u32::from) };
    let made = || {
        make_veth(&mut Requests::open()?, veth, file.as_fd())?;
        present(&outer)
    };
    let wanted = Wanted { name, mac, namespace: file.as_fd() };
    let index = wanted.give(|| in_private(&made)).map_err(fail("cannot make a veth pair"))?;
    let pair = Pair {
        namespace: Arc::clone(namespace),
        outer: index,
        tap,
        mtu: Cell::new(veth.mtu),
        is_left: false,
    };
    pair.follow_mtu(veth.mtu).map_err(fail("cannot set the MTU of the other end of its pair"))?;
    in_private(&|| bring_up(index)).map_err(fail("cannot bring up the other end of its pair"))?;
    let come_up = || set_up(&mut Requests::open()?, present(name)?, true);
    inside(file.as_fd(), come_up).flatten().map_err(fail("cannot bring it up in its network namespace"))?;
    if identity.is_some() {
        // For events of its links.
        give_number(file.as_fd()).map_err(fail("cannot number its network namespace"))?;
    }
    Ok((opened, ManagedInterface::new(name.clone(), identity, addressing.clone()), pair))
}

/// The index of an interface in the calling thread's namespace.
fn present(name: &str) -> io::Result<u32> {
    index_of(&mut Requests::open()?, name)?.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
}

/// The outer end has no neighbors and no addresses.
fn bring_up(index: u32) -> io::Result<u32> {
    let mut requests = Requests::open()?;
    let mut message = LinkMessage::default();
    (message.header.flags, message.header.change_mask) = (LinkFlags::Noarp, LinkFlags::Noarp);
    change_link(&mut requests, index, message)?;
    set_up(&mut requests, index, true)?;
    Ok(index)
}
