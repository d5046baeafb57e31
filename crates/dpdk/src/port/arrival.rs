//! Finds the descriptors that become readable when an AF_PACKET port has packets.
//!
//! DPDK's driver exposes no descriptor to wait on, but each of its queues is a packet socket with a ring, which the
//! kernel reports as readable while the ring holds a frame (`packet_poll` in Linux's `net/packet/af_packet.c`). The
//! driver opens these sockets in queue order while it probes the device, so this module finds them among the new
//! descriptors: packet sockets bound to the interface. It keeps duplicates, whose numbers cannot be reused.

use std::mem::{MaybeUninit, size_of};
use std::os::fd::{FromRawFd, OwnedFd};

use super::interface;

/// Duplicates of those new descriptors that are packet sockets bound to the interface, in order; none unless there is
/// one for each queue of the port.
pub(crate) fn packet_sockets(opened: &[i32], name: &str, queues: u16) -> Vec<OwnedFd> {
    let Ok(index) = interface::index(name) else { return Vec::new() };
    let bound = opened.iter().filter(|fd| bound_to(**fd) == Some(index));
    let sockets: Vec<OwnedFd> = bound.filter_map(|fd| duplicate(*fd)).collect();
    if sockets.len() == usize::from(queues) { sockets } else { Vec::new() }
}

/// The interface that a packet socket is bound to; `None` for other descriptors.
fn bound_to(fd: i32) -> Option<i32> {
    let mut address = MaybeUninit::<libc::sockaddr_ll>::zeroed();
    let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, which is the size of the address; a number that is no socket
    // gives an error.
    let result = unsafe { libc::getsockname(fd, address.as_mut_ptr().cast(), &raw mut length) };
    // SAFETY: zeroed before; any integers and bytes are valid.
    let address = unsafe { address.assume_init() };
    (result == 0 && i32::from(address.sll_family) == libc::AF_PACKET).then_some(address.sll_ifindex)
}

fn duplicate(fd: i32) -> Option<OwnedFd> {
    // SAFETY: takes no pointer; a number without a descriptor gives an error.
    let own = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    // SAFETY: a new descriptor, owned by no one else.
    (own >= 0).then(|| unsafe { OwnedFd::from_raw_fd(own) })
}
