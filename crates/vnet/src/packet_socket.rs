//! Packet sockets (packet(7)) on existing interfaces: received packets are delivered here and to the kernel's own
//! network stack.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU16, Ordering};

use crate::ifreq::{Request, check, control_socket};
use crate::queue::{Kind, Queue};
use crate::{Offloads, OpenError, Opened, tap};

/// Kernel memory for packets that wait to be received, in bytes: some hundred segments.
const RECEIVE_BUFFER: libc::c_int = 8 << 20;
/// The same for packets to send.
const SEND_BUFFER: libc::c_int = 4 << 20;

/// How packet sockets are opened.
#[derive(Clone, Debug)]
pub struct SocketOptions {
    /// Name of the interface.
    pub interface: String,
    /// Number of queues; flows are spread over them by the kernel (`PACKET_FANOUT_HASH`).
    pub queues: u16,
}

/// Opens packet sockets on an interface, which becomes promiscuous while they are open.
///
/// # Errors
/// [`OpenError`] names the step that failed.
pub fn open(options: &SocketOptions) -> Result<Opened, OpenError> {
    let name = &options.interface;
    let index = index_of(name).map_err(OpenError::of(name, "it does not exist"))?;
    let group = (options.queues > 1).then(new_group);
    let queues = (0..options.queues.max(1)).map(|_| socket(name, index, group)).collect::<Result<_, _>>()?;
    Ok(Opened {
        queues,
        offloads: Offloads { tcp: true, udp: tap::probe().is_ok_and(|offloads| offloads.udp) },
    })
}

fn index_of(name: &str) -> io::Result<i32> {
    let answer = Request::new(name)?.send(control_socket()?.as_fd(), libc::SIOCGIFINDEX as libc::Ioctl)?;
    Ok(answer.index())
}

/// A fanout group that no other port of this process has.
fn new_group() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    (std::process::id() as u16).wrapping_mul(31).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed))
}

fn socket(name: &str, index: i32, group: Option<u16>) -> Result<Queue, OpenError> {
    let fail = |step| OpenError::of(name, step);
    // No protocol: nothing is received before it is bound.
    // SAFETY: no pointers.
    let fd = check(unsafe {
        libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)
    });
    let fd = fd.map_err(fail("cannot open a packet socket"))?;
    // SAFETY: a new descriptor.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let packet = |option, value: libc::c_int| set(&fd, libc::SOL_PACKET, option, &value);
    packet(libc::PACKET_VNET_HDR, 1).map_err(fail("the kernel offers no offloads on packet sockets"))?;
    packet(libc::PACKET_AUXDATA, 1).map_err(fail("cannot ask for VLAN tags"))?;
    packet(libc::PACKET_IGNORE_OUTGOING, 1).map_err(fail("cannot leave out packets that it sends"))?;
    // Sends at once, without the interface's queueing discipline.
    packet(libc::PACKET_QDISC_BYPASS, 1).map_err(fail("cannot bypass its queueing discipline"))?;
    for (option, bytes) in [(libc::SO_RCVBUFFORCE, RECEIVE_BUFFER), (libc::SO_SNDBUFFORCE, SEND_BUFFER)] {
        set(&fd, libc::SOL_SOCKET, option, &bytes).map_err(fail("cannot set the size of its buffer"))?;
    }
    bind(&fd, index).map_err(fail("cannot bind to it"))?;
    if let Some(group) = group {
        let hash = libc::c_int::from(group) | (libc::PACKET_FANOUT_HASH as libc::c_int) << 16;
        packet(libc::PACKET_FANOUT, hash).map_err(fail("cannot spread flows over its queues"))?;
    }
    let promiscuous = libc::packet_mreq {
        mr_ifindex: index,
        mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set(&fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &promiscuous)
        .map_err(fail("cannot make it promiscuous"))?;
    Ok(Queue::new(fd, Kind::Socket))
}

fn bind(fd: &OwnedFd, index: i32) -> io::Result<()> {
    // SAFETY: a structure of integers: zeros are valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as libc::c_ushort;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index;
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: an address and its length.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) })?;
    Ok(())
}

/// Sets a socket option.
fn set<T>(fd: &OwnedFd, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    let (value, length) = (&raw const *value, size_of::<T>() as libc::socklen_t);
    // SAFETY: a value and its length; every option of this module takes a plain structure of integers.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, value.cast(), length) })?;
    Ok(())
}
