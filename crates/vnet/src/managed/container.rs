// SPDX-License-Identifier: Apache-2.0
//! TAP devices in other network namespaces: the interfaces of containers.
//!
//! The device is made here and moved, so that its queues do not keep the namespace alive: when the container ends, the
//! namespace ends with it, and the queues fail.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netvm_netlink::{Requests, change_link, give_number, index_of, inside, remove_link, set_up};
use rustix::fs::fstatfs;

use super::addressing::{Addressing, ManagedInterface, Namespace, id};
use super::stale::Wanted;
use crate::ifreq::device_of;
use crate::tap::{self, TapOptions};
use crate::{OpenError, Opened};

/// `NSFS_MAGIC` (`linux/magic.h`): the file system of namespaces.
pub const NSFS: u64 = 0x6e73_6673;
/// What makes a namespace.
const START: &str = "start the container; `ip netns` lists named network namespaces";

/// An interface in another network namespace.
#[derive(Clone, Debug)]
pub struct ContainerOptions {
    /// Its name there, and how it is made.
    pub tap: TapOptions,
    /// The namespace's file, such as `/run/netns/web` or `/proc/1234/ns/net`.
    pub namespace: PathBuf,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// Its addresses and routes.
    pub addressing: Addressing,
}

/// Whether a file names the network namespace of this process. An interface of a container, with its default route,
/// would take the machine off its network there.
#[must_use]
pub fn is_own(file: &Path) -> bool {
    let ids = [file, Path::new("/proc/thread-self/ns/net")]
        .map(|file| std::fs::metadata(file).map(|m| id(&m)).ok());
    ids[0].is_some() && ids[0] == ids[1]
}

/// The MAC address of an interface in a network namespace; `None` if it is not there.
///
/// # Errors
/// The namespace cannot be entered.
pub fn mac_in(namespace: &Path, interface: &str) -> io::Result<Option<Vec<u8>>> {
    let find = || -> io::Result<Option<Vec<u8>>> {
        let link = netvm_netlink::by_name(&mut Requests::open()?, interface)?;
        let mac = |attribute| match attribute {
            LinkAttribute::Address(mac) => Some(mac),
            _ => None,
        };
        Ok(link.map(|link| link.attributes.into_iter().find_map(mac).unwrap_or_default()))
    };
    inside(File::open(namespace)?.as_fd(), find)?
}

/// Makes the interface, which ends with its last queue. If its addresses and routes cannot be
/// set, it is open all the same, and [`ManagedInterface::problem`] says so.
///
/// # Errors
/// [`OpenError`] names the step that failed.
pub fn open(options: &ContainerOptions) -> Result<(Opened, ManagedInterface), OpenError> {
    let name = &options.tap.interface;
    let fail = |step| OpenError::of(name, step);
    let (namespace, identity) = namespace_of(options)?;
    // A name that the kernel chooses, as here may be another interface of that name.
    let (opened, here) = tap::make(&TapOptions { interface: "nvtap%d".to_owned(), ..options.tap.clone() })?;
    let mut requests = Requests::open().map_err(fail("cannot configure it"))?;
    let index = index_of(&mut requests, &here).map_err(fail("cannot configure it"))?;
    let index =
        index.ok_or_else(|| fail("cannot configure it")(io::Error::from_raw_os_error(libc::ENODEV)))?;
    let mut message = LinkMessage::default();
    message.attributes = vec![
        LinkAttribute::Address(options.mac.to_vec()),
        LinkAttribute::IfName(name.clone()),
        LinkAttribute::NetNsFd(namespace.as_raw_fd()),
    ];
    message.attributes.extend(options.tap.mtu.map(|mtu| LinkAttribute::Mtu(mtu.into())));
    let wanted = Wanted { name, mac: options.mac, namespace: namespace.as_fd() };
    let moved = wanted.give(|| change_link(&mut requests, index, message.clone()));
    moved.map_err(fail("cannot move it into its network namespace"))?;
    let come_up = || -> io::Result<()> {
        let mut requests = Requests::open()?;
        let index = index_of(&mut requests, name)?;
        let index = index.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
        set_up(&mut requests, index, true)
    };
    let is_up = inside(namespace.as_fd(), come_up).and_then(|result| result);
    is_up.map_err(fail("cannot bring it up in its network namespace"))?;
    Ok((opened, ManagedInterface::new(name.clone(), Some(identity), options.addressing.clone())))
}

/// Takes over an interface that another process has made by the same options and left: `queues` are its descriptors.
/// `None` if the interface is not there any more, or is another one.
#[must_use]
pub fn adopt(options: &ContainerOptions, queues: Vec<OwnedFd>) -> Option<(Opened, ManagedInterface)> {
    let (file, identity) = namespace_of(options).ok()?;
    let wanted = id(&file.metadata().ok()?);
    let is_there = |queue: &OwnedFd| is_in(queue.as_fd(), wanted).unwrap_or(false);
    if !queues.iter().all(is_there) {
        return None;
    }
    let opened = tap::adopt(&options.tap, queues)?;
    // For events of its links; it has one, unless that process was in another namespace.
    give_number(file.as_fd()).ok()?;
    let managed =
        ManagedInterface::new(options.tap.interface.clone(), Some(identity), options.addressing.clone());
    Some((opened, managed))
}

/// Whether the device of a queue is in the namespace with this device and inode number.
pub(super) fn is_in(queue: BorrowedFd<'_>, namespace: (u64, u64)) -> io::Result<bool> {
    Ok(id(&File::from(tap::namespace_of(queue)?).metadata()?) == namespace)
}

/// Removes the TAP device of a queue. Other descriptors of its queues are of no use then.
///
/// # Errors
/// The kernel's error: the device is not there any more, for instance.
pub fn remove(queue: impl AsFd) -> io::Result<()> {
    let (namespace, name) = (tap::namespace_of(queue.as_fd())?, device_of(queue.as_fd())?.name());
    let remove = || {
        let mut requests = Requests::open()?;
        let index = index_of(&mut requests, &name)?;
        remove_link(&mut requests, index.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?)
    };
    inside(namespace.as_fd(), remove)?
}

/// The namespace, which is not netvm's own.
pub(super) fn namespace_of(options: &ContainerOptions) -> Result<(File, Namespace), OpenError> {
    let name = &options.tap.interface;
    let fail = |step| OpenError::of(name, step);
    let file = options.namespace.display();
    let namespace = File::open(&options.namespace).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => OpenError::absent(name, format!("{file}: {source} ({START})")),
        kind => {
            let text = format!("{file}: {source} (run netvmd as root)");
            fail("cannot open its network namespace")(io::Error::new(kind, text))
        }
    })?;
    // Runtimes make a file, and then mount the namespace on it.
    if fstatfs(&namespace).is_ok_and(|system| system.f_type as u64 != NSFS) {
        return Err(OpenError::absent(name, format!("{file}: no namespace is mounted there ({START})")));
    }
    if is_own(&options.namespace) {
        let why = "it is netvm's own: give the container's, or use kind = \"host\"";
        return Err(fail("cannot use its network namespace")(io::Error::other(why)));
    }
    let identity =
        Namespace::of(&options.namespace, &namespace).map_err(fail("cannot open its network namespace"))?;
    Ok((namespace, identity))
}
