// SPDX-License-Identifier: Apache-2.0
//! Packet sockets (packet(7)) on existing interfaces: received packets are delivered here and to the kernel's own
//! network stack.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use crate::ifreq::{Request, check, control_socket};
use crate::queue::{Kind, Queue};
use crate::{Offloads, OpenError, Opened, tap};

/// Kernel memory for packets that wait to be received, in bytes: some hundred segments.
const RECEIVE_BUFFER: libc::c_int = 8 << 20;
/// The same for packets to send.
const SEND_BUFFER: libc::c_int = 4 << 20;

/// Flag of `PACKET_FANOUT`: makes a group that no other socket of the machine is in (`linux/if_packet.h`).
const PACKET_FANOUT_FLAG_UNIQUEID: libc::c_int = 0x2000;
/// Passes packets unless their type is `PACKET_OUTGOING`: loads the type, compares it, and returns the number of bytes
/// to keep.
const NOT_OUTGOING: [libc::sock_filter; 4] = [
    instruction(
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
        0,
        (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32,
    ),
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, libc::PACKET_OUTGOING as u32),
    instruction(libc::BPF_RET | libc::BPF_K, 0, u32::MAX),
    instruction(libc::BPF_RET | libc::BPF_K, 0, 0),
];

/// An instruction of a classic BPF program; jumps `if_equal` instructions ahead if the values are equal.
const fn instruction(code: u32, if_equal: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: if_equal, jf: 0, k }
}

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
    let mut sockets = Vec::new();
    for _ in 0..options.queues.max(1) {
        sockets.push(socket(name, index, options.queues > 1)?);
    }
    if options.queues > 1 {
        spread(&sockets).map_err(OpenError::of(name, "cannot spread flows over its queues"))?;
    }
    let queues = sockets.into_iter().map(|fd| Queue::new(fd, Kind::Socket)).collect();
    // What the kernel passes on here. What the interface takes is another question: [`crate::Features`].
    let offloads = Offloads { tcp: true, udp: tap::probe().is_ok_and(|kernel| kernel.offloads.udp) };
    Ok(Opened { queues, offloads })
}

fn index_of(name: &str) -> io::Result<i32> {
    let answer = Request::new(name)?.send(control_socket()?.as_fd(), libc::SIOCGIFINDEX as libc::Ioctl)?;
    Ok(answer.index())
}

/// Makes a fanout group of the sockets.
fn spread(sockets: &[OwnedFd]) -> io::Result<()> {
    let hash = libc::PACKET_FANOUT_HASH as libc::c_int;
    // The group's number is in the lower half, mode and flags in the upper one.
    let mut group = (hash | PACKET_FANOUT_FLAG_UNIQUEID) << 16;
    for fd in sockets {
        set(fd, libc::SOL_PACKET, libc::PACKET_FANOUT, &group)?;
        group = get(fd, libc::SOL_PACKET, libc::PACKET_FANOUT)?;
    }
    Ok(())
}

/// A socket on its own, or one of several. The kernel forgets `PACKET_IGNORE_OUTGOING` in a fanout group, so a filter
/// takes its place there.
fn socket(name: &str, index: i32, is_one_of_several: bool) -> Result<OwnedFd, OpenError> {
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
    if is_one_of_several {
        let filter = NOT_OUTGOING.as_ptr().cast_mut();
        let program = libc::sock_fprog { len: NOT_OUTGOING.len() as libc::c_ushort, filter };
        set(&fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
            .map_err(fail("cannot leave out packets that it sends"))?;
    }
    bind(&fd, index).map_err(fail("cannot bind to it"))?;
    let promiscuous = libc::packet_mreq {
        mr_ifindex: index,
        mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set(&fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &promiscuous)
        .map_err(fail("cannot make it promiscuous"))?;
    Ok(fd)
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
    // SAFETY: a value and its length; every option of this module takes a plain structure of integers, or a program,
    // which the kernel copies.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, value.cast(), length) })?;
    Ok(())
}

/// Reads a socket option that is a number.
fn get(fd: &OwnedFd, level: libc::c_int, option: libc::c_int) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: room for a number, and its length.
    check(unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, option, (&raw mut value).cast(), &raw mut length)
    })?;
    Ok(value)
}
