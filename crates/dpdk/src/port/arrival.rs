//! How one who sleeps learns that an AF_PACKET port has packets.
//!
//! DPDK's driver gives no descriptor to wait on, but it has one: each queue is a packet socket with a ring, which the
//! kernel reports as readable while a frame in the ring has not been taken (`packet_poll` in Linux's
//! `net/packet/af_packet.c`). The driver makes these sockets while the device is probed, queue by queue, so that they
//! are found among the descriptors that have appeared meanwhile: those of packet sockets that are bound to the
//! interface. A duplicate of the descriptor is kept, so that its number cannot come to mean something else.

use std::mem::{MaybeUninit, size_of};
use std::os::fd::{FromRawFd, OwnedFd};

use super::interface;

/// Of descriptors that have just been opened, duplicates of those of packet sockets bound to the interface, in order;
/// none when there are not just as many as the port has queues.
pub(crate) fn packet_sockets(opened: &[i32], name: &str, queues: u16) -> Vec<OwnedFd> {
    let Ok(index) = interface::index(name) else { return Vec::new() };
    let bound = opened.iter().filter(|fd| bound_to(**fd) == Some(index));
    let sockets: Vec<OwnedFd> = bound.filter_map(|fd| duplicate(*fd)).collect();
    if sockets.len() == usize::from(queues) { sockets } else { Vec::new() }
}

/// The interface that a packet socket is bound to; `None` for what is no packet socket.
fn bound_to(fd: i32) -> Option<i32> {
    let mut address = MaybeUninit::<libc::sockaddr_ll>::zeroed();
    let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, which is the size of the address; a number that is no socket
    // gives an error.
    let result = unsafe { libc::getsockname(fd, address.as_mut_ptr().cast(), &raw mut length) };
    // SAFETY: zeroed before; integers and bytes, of which any are a value.
    let address = unsafe { address.assume_init() };
    (result == 0 && i32::from(address.sll_family) == libc::AF_PACKET).then_some(address.sll_ifindex)
}

fn duplicate(fd: i32) -> Option<OwnedFd> {
    // SAFETY: takes no pointer; a number without a descriptor gives an error.
    let own = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    // SAFETY: a new descriptor, which nobody else has.
    (own >= 0).then(|| unsafe { OwnedFd::from_raw_fd(own) })
}
