// SPDX-License-Identifier: Apache-2.0
//! TAP devices (`Documentation/networking/tuntap.rst`): packets that the kernel sends by the interface are received
//! here.

mod steering;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::ifreq::{Request, check, control_socket, device_of};
use crate::queue::{Kind, Queue};
use crate::{Offloads, OpenError, Opened};

const TUNSETIFF: libc::Ioctl = 0x4004_54ca;
const TUNSETOFFLOAD: libc::Ioctl = 0x4004_54d0;
/// `_IO('T', 227)`, since Linux 5.2.
const TUNGETDEVNETNS: libc::Ioctl = 0x54e3;
/// Offloads that may be left to the other side: checksums, TCP over IPv4 and IPv6, with ECN; UDP.
const CHECKSUM: libc::c_ulong = 0x01;
const TCP: libc::c_ulong = CHECKSUM | 0x02 | 0x04 | 0x08;
const UDP: libc::c_ulong = 0x20 | 0x40;

/// How a TAP device is made.
#[derive(Clone, Debug)]
pub struct TapOptions {
    /// Name of the interface, created if it does not exist.
    pub interface: String,
    /// Number of queues. The kernel spreads flows over them; both directions of a flow have the same queue.
    pub queues: u16,
    /// Its MTU in bytes; `None`: 1500, or what it has.
    pub mtu: Option<u16>,
    /// Whether checksums and segments are exchanged unfinished.
    pub offloads: bool,
}

/// Makes a TAP device and brings it up. It ends with its last queue, unless it was there before.
///
/// # Errors
/// [`OpenError`] names the step that failed.
pub fn open(options: &TapOptions) -> Result<Opened, OpenError> {
    let (opened, _) = make(options)?;
    bring_up(options).map_err(OpenError::of(&options.interface, "cannot bring it up"))?;
    Ok(opened)
}

/// Makes a TAP device that is down; returns its name, too, in which the kernel replaces `%d` by a number.
pub(crate) fn make(options: &TapOptions) -> Result<(Opened, String), OpenError> {
    let fail = |step| OpenError::of(&options.interface, step);
    let (mut queues, mut offloads) = (Vec::new(), Offloads::default());
    let mut name = options.interface.clone();
    for _ in 0..options.queues.max(1) {
        let (fd, given) = attach(&name, many(options)).map_err(fail("cannot make the TAP device"))?;
        name = given;
        if options.offloads {
            offloads = negotiate(&fd).map_err(fail("the kernel offers no offloads on TAP devices"))?;
        }
        queues.push((fd, Kind::Tap));
    }
    if let [(first, _), _, ..] = &queues[..] {
        // Without it, the kernel sends a flow to the queue of its last answer.
        let _ = steering::by_flow(first.as_fd());
    }
    let queues = queues.into_iter().map(|(fd, kind)| Queue::new(fd, kind)).collect();
    Ok((Opened { queues, offloads }, name))
}

/// The flag of devices with several queues.
const fn many(options: &TapOptions) -> libc::c_int {
    if options.queues > 1 { libc::IFF_MULTI_QUEUE } else { 0 }
}

/// The device of which another process has left these queues, if it is as `options` say, and theirs are all of them.
pub(crate) fn adopt(options: &TapOptions, queues: Vec<OwnedFd>) -> Option<Opened> {
    if queues.len() != usize::from(options.queues.max(1)) {
        return None;
    }
    let flags = libc::IFF_TAP | libc::IFF_VNET_HDR | many(options);
    let compared = flags | libc::IFF_MULTI_QUEUE | libc::IFF_DETACH_QUEUE;
    let mut offloads = Offloads::default();
    for queue in &queues {
        let device = device_of(queue.as_fd()).ok()?;
        if device.name() != options.interface || device.flags() & compared != flags {
            return None;
        }
        offloads = if options.offloads { negotiate(queue) } else { renounce(queue) }.ok()?;
    }
    let queues = queues.into_iter().map(|queue| Queue::new(queue, Kind::Tap)).collect();
    Some(Opened { queues, offloads })
}

/// The network namespace that the device of a queue is in.
pub(crate) fn namespace_of(queue: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: there is no argument.
    let fd = check(unsafe { libc::ioctl(queue.as_raw_fd(), TUNGETDEVNETNS) })?;
    // SAFETY: a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A queue of a TAP device with these flags; and its name, in which the kernel replaces `%d` by a number.
pub(crate) fn attach(name: &str, flags: libc::c_int) -> io::Result<(OwnedFd, String)> {
    let file = std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
    let fd = OwnedFd::from(file);
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | flags;
    let given = Request::new(name)?.with_flags(flags).send(fd.as_fd(), TUNSETIFF)?.name();
    // SAFETY: no pointers.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_RDWR | libc::O_NONBLOCK) })?;
    Ok((fd, given))
}

/// Negotiates all offloads that the kernel accepts.
fn negotiate(fd: &OwnedFd) -> io::Result<Offloads> {
    // SAFETY: the argument is a number.
    let set = |flags: libc::c_ulong| check(unsafe { libc::ioctl(fd.as_raw_fd(), TUNSETOFFLOAD, flags) });
    if set(TCP | UDP).is_ok() {
        return Ok(Offloads { tcp: true, udp: true });
    }
    set(TCP)?;
    Ok(Offloads { tcp: true, udp: false })
}

/// Has the kernel finish all packets.
fn renounce(fd: &OwnedFd) -> io::Result<Offloads> {
    let none: libc::c_ulong = 0;
    // SAFETY: the argument is a number.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), TUNSETOFFLOAD, none) })?;
    Ok(Offloads::default())
}

fn bring_up(options: &TapOptions) -> io::Result<()> {
    let socket = control_socket()?;
    let request = || Request::new(&options.interface);
    if let Some(mtu) = options.mtu {
        request()?.with_mtu(mtu).send(socket.as_fd(), libc::SIOCSIFMTU as libc::Ioctl)?;
    }
    let flags = request()?.send(socket.as_fd(), libc::SIOCGIFFLAGS as libc::Ioctl)?.flags();
    request()?.with_flags(flags | libc::IFF_UP).send(socket.as_fd(), libc::SIOCSIFFLAGS as libc::Ioctl)?;
    Ok(())
}

/// What this kernel does for TAP devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapCapabilities {
    /// The offloads that it exchanges. Packet sockets learned them in the same versions.
    pub offloads: Offloads,
    /// A burst takes one system call, by io_uring.
    pub has_io_uring: bool,
    /// This process may make rings, whether or not they work with TAP devices.
    pub allows_io_uring: bool,
}

/// Tries what this kernel does, with a TAP device that is removed at once.
///
/// # Errors
/// There is no `/dev/net/tun`, or this process lacks CAP_NET_ADMIN.
pub fn probe() -> io::Result<TapCapabilities> {
    let (fd, _) = attach("nvprobe%d", 0)?;
    let offloads = negotiate(&fd)?;
    let has_io_uring = Queue::new(fd, Kind::Tap).uses_io_uring();
    Ok(TapCapabilities {
        offloads,
        has_io_uring,
        allows_io_uring: has_io_uring || io_uring::IoUring::new(1).is_ok(),
    })
}
