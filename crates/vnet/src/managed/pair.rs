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
//! No program: no packet passes. Nothing holds the namespace but a descriptor and the open queues of TAP devices, so it
//! ends with this process, however that ends, and the interfaces of containers end with it.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netvm_netlink::{
    Requests, Veth, change_link, give_number, index_of, inside, link_in, make_veth, nameless, remove_link,
    set_up,
};

use super::addressing::{Addressing, ManagedInterface, Namespace};
use super::container::{ContainerOptions, namespace_of};
use super::stale::Wanted;
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

    /// Does something in it.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        inside(self.file.as_fd(), work)
    }
}

/// A pair and its TAP device. Dropping it removes the pair; the TAP device ends with its last queue.
#[derive(Debug)]
pub struct Pair {
    namespace: Arc<PrivateNamespace>,
    outer: u32,
    tap: u32,
    /// Of the outer end.
    mtu: Cell<u32>,
}

impl Pair {
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
    let (outer, tap) = (format!("v{number}"), format!("t{number}"));
    let in_private = |work: &(dyn Fn() -> io::Result<u32> + Sync)| namespace.inside(work).flatten();
    let tap_options =
        TapOptions { interface: tap.clone(), mtu: Some(TAP_MTU), queues: options.queues, offloads: true };
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
    let pair = Pair { namespace: Arc::clone(namespace), outer: index, tap, mtu: Cell::new(veth.mtu) };
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
