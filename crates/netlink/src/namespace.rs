// SPDX-License-Identifier: Apache-2.0
//! Work in another network namespace.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use crate::Requests;

/// The number that this network namespace has for another one; `None` if it has none.
///
/// # Errors
/// The kernel's error.
pub fn number_of(namespace: BorrowedFd<'_>) -> io::Result<Option<i32>> {
    let mut message = NsidMessage::default();
    message.attributes = vec![NsidAttribute::Fd(namespace.as_raw_fd() as u32)];
    let Some(RouteNetlinkMessage::NewNsId(found)) =
        Requests::open()?.get(RouteNetlinkMessage::GetNsId(message))?
    else {
        return Ok(None);
    };
    let number = |attribute| match attribute {
        NsidAttribute::Id(number) if number >= 0 => Some(number),
        _ => None,
    };
    Ok(found.attributes.into_iter().find_map(number))
}

/// The number that this network namespace has for another one, which gets one if it has none: only then are the other
/// one's events seen here.
///
/// # Errors
/// The kernel's error.
pub fn give_number(namespace: BorrowedFd<'_>) -> io::Result<i32> {
    if let Some(number) = number_of(namespace)? {
        return Ok(number);
    }
    let mut message = NsidMessage::default();
    // -1: the kernel chooses.
    message.attributes = vec![NsidAttribute::Fd(namespace.as_raw_fd() as u32), NsidAttribute::Id(-1)];
    match Requests::open()?.change(RouteNetlinkMessage::NewNsId(message), 0) {
        // Somebody else has just done it.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        outcome => outcome?,
    }
    number_of(namespace)?.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Makes a network namespace without a name, which ends with its last descriptor, socket and interface elsewhere. Its
/// interfaces do not speak IPv6 unless they are told to.
///
/// # Errors
/// The kernel's error: `EPERM` without CAP_SYS_ADMIN.
pub fn nameless() -> io::Result<OwnedFd> {
    let make = || -> io::Result<OwnedFd> {
        // SAFETY: only unsharing file descriptors is unsafe, which NEWNET does not. This thread ends at once, so no
        // other code runs in the new namespace.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET)? };
        // /proc/sys/net is that of the calling thread's namespace.
        match std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1") {
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            outcome => outcome?,
        }
        Ok(File::open("/proc/thread-self/ns/net")?.into())
    };
    on_a_thread(make)
}

/// The interface with this index in the namespace that has this number here, if it is there.
///
/// # Errors
/// The kernel's error.
pub fn link_in(namespace: i32, index: u32) -> io::Result<Option<LinkMessage>> {
    let mut question = LinkMessage::default();
    question.header.index = index;
    question.attributes.push(LinkAttribute::IfNetnsId(namespace));
    match Requests::open()?.get(RouteNetlinkMessage::GetLink(question)) {
        Ok(Some(RouteNetlinkMessage::NewLink(link))) => Ok(Some(link)),
        Ok(_) => Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Runs `work` in a network namespace, on a new thread, and waits for it.
///
/// # Errors
/// The thread cannot be made or cannot enter the namespace (`EPERM` without CAP_SYS_ADMIN).
pub fn inside<T: Send>(namespace: BorrowedFd<'_>, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    on_a_thread(|| {
        rustix::thread::move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?;
        Ok(work())
    })
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("netvm-netns".to_owned()).spawn_scoped(scope, work)?;
        thread.join().map_err(|_| io::Error::other("the thread in the namespace panicked"))?
    })
}
