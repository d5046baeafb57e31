//! Work in another network namespace.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};
use rustix::thread::LinkNameSpaceType;

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
    let enter = || -> io::Result<T> {
        rustix::thread::move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?;
        Ok(work())
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("netvm-netns".to_owned()).spawn_scoped(scope, enter)?;
        thread.join().map_err(|_| io::Error::other("the thread in the namespace panicked"))?
    })
}
