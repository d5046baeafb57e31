//! A queue: packets in and out of an open interface, one for each system call.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Header;
use crate::ifreq::Request;

const TUNGETIFF: libc::Ioctl = 0x8004_54d2;

/// Most parts of a packet.
pub const MOST_PARTS: usize = 64;

/// What a queue's descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tap,
    Socket,
}

impl SendError {
    pub(crate) fn last() -> Self {
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => Self::Full,
            Some(libc::EMSGSIZE) => Self::TooLong,
            Some(libc::ENETDOWN | libc::EIO | libc::ENXIO | libc::EBADFD) => Self::Down,
            _ => Self::Refused,
        }
    }
}

/// One queue of an interface, with one owner.
#[derive(Debug)]
pub struct Queue {
    fd: Arc<OwnedFd>,
    kind: Kind,
}

/// A received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its bytes.
    pub length: usize,
    /// The VLAN tag that the kernel or a NIC took out of it, from behind the addresses.
    pub tag: Option<[u8; 4]>,
}

/// No packet was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveError {
    /// There is none, or the interface is down or gone.
    Empty,
    /// A packet longer than the room was lost.
    TooLong,
    /// A packet was lost that a header cannot describe: a tunnel's segment.
    Unknown,
}

impl ReceiveError {
    fn last() -> Self {
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINVAL) => Self::Unknown,
            _ => Self::Empty,
        }
    }
}

/// A packet was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The interface has no room now.
    Full,
    /// It is longer than the interface's MTU allows.
    TooLong,
    /// The interface is down or gone.
    Down,
    /// The kernel refuses the packet or its header.
    Refused,
}

impl Queue {
    pub(crate) fn new(fd: OwnedFd, kind: Kind) -> Self {
        Self { fd: Arc::new(fd), kind }
    }

    /// Whether there is a packet to receive, or the interface is gone.
    #[inline]
    #[must_use]
    pub fn is_readable(&self) -> bool {
        let mut fd = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure.
        unsafe { libc::poll(&raw mut fd, 1, 0) != 0 }
    }

    /// Receives a packet into `parts`, filled one after the other.
    ///
    /// # Errors
    /// There is none, or one was lost.
    ///
    /// # Safety
    /// The parts may be written to.
    #[inline]
    pub unsafe fn receive(
        &self,
        header: &mut Header,
        parts: &[libc::iovec],
    ) -> Result<Received, ReceiveError> {
        let (mut all, count) = with_header(header, parts);
        // SAFETY: the header, and the parts, which the caller lets us write to.
        unsafe {
            match self.kind {
                Kind::Tap => self.read(&all[..count], parts.iter().map(|part| part.iov_len).sum()),
                Kind::Socket => self.receive_message(&mut all[..count]),
            }
        }
    }

    unsafe fn read(&self, all: &[MaybeUninit<libc::iovec>], room: usize) -> Result<Received, ReceiveError> {
        // SAFETY: the caller's parts.
        let bytes =
            unsafe { libc::readv(self.fd.as_raw_fd(), all.as_ptr().cast(), all.len() as libc::c_int) };
        let bytes = usize::try_from(bytes).map_err(|_| ReceiveError::last())?;
        let length = bytes.saturating_sub(size_of::<Header>());
        // The kernel cuts off what has no room: not to be told from a packet that just fits.
        if length >= room { Err(ReceiveError::TooLong) } else { Ok(Received { length, tag: None }) }
    }

    unsafe fn receive_message(&self, all: &mut [MaybeUninit<libc::iovec>]) -> Result<Received, ReceiveError> {
        let mut control = Control([0; 64]);
        // SAFETY: a structure of integers and pointers: zeros are valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = all.as_mut_ptr().cast();
        message.msg_iovlen = all.len();
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = control.0.len();
        // SAFETY: the caller's parts, and the control buffer.
        let bytes = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        let bytes = usize::try_from(bytes).map_err(|_| ReceiveError::last())?;
        if message.msg_flags & libc::MSG_TRUNC != 0 {
            return Err(ReceiveError::TooLong);
        }
        let length = bytes.saturating_sub(size_of::<Header>());
        // SAFETY: `recvmsg` has filled the message and its control buffer.
        Ok(Received { length, tag: unsafe { tag_of(&message) } })
    }

    pub(crate) const fn kind(&self) -> Kind {
        self.kind
    }

    /// Watches its TAP device.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch(Arc::clone(&self.fd))
    }

    /// Counts packets that the kernel lost for want of room; `None` if this kind of interface counts them itself (`ip
    /// -s link`: dropped).
    #[must_use]
    pub fn drops(&self) -> Option<Drops> {
        let socket = (self.kind == Kind::Socket).then(|| Arc::clone(&self.fd))?;
        Some(Drops { socket, total: Arc::default() })
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Tells whether the TAP device of a queue is still there, in whatever namespace.
#[derive(Clone, Debug)]
pub struct Watch(Arc<OwnedFd>);

impl Watch {
    /// Whether it is.
    #[must_use]
    pub fn is_there(&self) -> bool {
        Request::new("any").and_then(|request| request.send(self.0.as_fd(), TUNGETIFF)).is_ok()
    }
}

/// The count of packets that the kernel lost.
#[derive(Clone, Debug)]
pub struct Drops {
    socket: Arc<OwnedFd>,
    /// Reading resets the kernel's count.
    total: Arc<AtomicU64>,
}

impl Drops {
    /// Packets so far.
    #[must_use]
    pub fn get(&self) -> u64 {
        let mut counts = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut length = size_of_val(&counts) as libc::socklen_t;
        let (level, option) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
        // SAFETY: room for the counts, and its length.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                level,
                option,
                (&raw mut counts).cast(),
                &raw mut length,
            )
        };
        let new = if result == 0 { counts.tp_drops.into() } else { 0 };
        self.total.fetch_add(new, Ordering::Relaxed) + new
    }
}

/// The parts behind the header.
#[inline]
fn with_header(
    header: &mut Header,
    parts: &[libc::iovec],
) -> ([MaybeUninit<libc::iovec>; MOST_PARTS + 1], usize) {
    let mut all = [const { MaybeUninit::uninit() }; MOST_PARTS + 1];
    all[0].write(libc::iovec { iov_base: (&raw mut *header).cast(), iov_len: size_of::<Header>() });
    let count = parts.len().min(MOST_PARTS);
    for (to, from) in all[1..].iter_mut().zip(parts) {
        to.write(*from);
    }
    (all, count + 1)
}

/// A control buffer, aligned for `cmsghdr`.
#[repr(align(8))]
struct Control([u8; 64]);

/// The VLAN tag that the packet came without: its protocol and its value.
unsafe fn tag_of(message: &libc::msghdr) -> Option<[u8; 4]> {
    // SAFETY: the caller's message, which the kernel has filled.
    let first = unsafe { libc::CMSG_FIRSTHDR(message).as_ref() }?;
    if (first.cmsg_level, first.cmsg_type) != (libc::SOL_PACKET, libc::PACKET_AUXDATA) {
        return None;
    }
    // SAFETY: this type of message carries the structure; it may be unaligned.
    let data: libc::tpacket_auxdata =
        unsafe { libc::CMSG_DATA(first).cast::<libc::tpacket_auxdata>().read_unaligned() };
    if data.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let known = data.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
    let protocol = if known { data.tp_vlan_tpid } else { libc::ETH_P_8021Q as u16 };
    let [a, b] = protocol.to_be_bytes();
    let [c, d] = data.tp_vlan_tci.to_be_bytes();
    Some([a, b, c, d])
}
