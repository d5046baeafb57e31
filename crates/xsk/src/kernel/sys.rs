// SPDX-License-Identifier: Apache-2.0
//! The system calls of this crate, as functions that are safe or state their requirements.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};

use libc::{c_int, c_ulong, c_void, socklen_t};

/// `XDP_MAX_TX_SKB_BUDGET` of `linux/if_xdp.h` (Linux 6.17): frames sent per wake-up in copy mode.
pub(crate) const XDP_MAX_TX_SKB_BUDGET: c_int = 9;

/// `mmap` offset of the fill ring.
pub(crate) const FILL_RING: libc::off_t = libc::XDP_UMEM_PGOFF_FILL_RING as libc::off_t;
/// `mmap` offset of the completion ring.
pub(crate) const COMPLETION_RING: libc::off_t = libc::XDP_UMEM_PGOFF_COMPLETION_RING as libc::off_t;

/// Types without padding for which any bytes are a valid value, so that the kernel may read and write them.
///
/// # Safety
/// The type must have these properties.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: integers.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: structures of the kernel's ABI: integers without gaps.
unsafe impl Plain for libc::xdp_mmap_offsets {}
// SAFETY: as above.
unsafe impl Plain for libc::xdp_statistics {}
// SAFETY: as above.
unsafe impl Plain for libc::xdp_options {}
// SAFETY: as above.
unsafe impl Plain for libc::xdp_umem_reg {}
// SAFETY: as above.
unsafe impl Plain for libc::xdp_desc {}
// SAFETY: as above (int, unsigned short twice, eight bytes).
unsafe impl Plain for libc::packet_mreq {}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Bytes of a page.
pub(crate) fn page_size() -> usize {
    // SAFETY: sysconf takes no pointer.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

/// A new close-on-exec socket in the calling thread's network namespace.
pub(crate) fn socket(family: c_int, kind: c_int) -> io::Result<OwnedFd> {
    // SAFETY: socket takes no pointer.
    let fd = check(unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the descriptor is new, so it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `setsockopt` with the bytes of a value.
pub(crate) fn set_option<T: Plain>(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &T,
) -> io::Result<()> {
    let length = size_of::<T>() as socklen_t;
    // SAFETY: the kernel reads `length` bytes, which is the size of the value; Plain has no padding.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, ptr::from_ref(value).cast(), length) })?;
    Ok(())
}

/// `getsockopt` of a value. Bytes that an older kernel does not write are zero.
pub(crate) fn option<T: Plain>(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut length = size_of::<T>() as socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, which is the size of the value.
    check(unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, name, value.as_mut_ptr().cast(), &raw mut length)
    })?;
    // SAFETY: zeroed above, and any bytes are a valid `Plain` value.
    Ok(unsafe { value.assume_init() })
}

/// Binds an AF_XDP socket to a queue of an interface.
pub(crate) fn bind(fd: BorrowedFd<'_>, ifindex: u32, queue: u32, flags: u16) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: flags,
        sxdp_ifindex: ifindex,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    let length = size_of::<libc::sockaddr_xdp>() as socklen_t;
    // SAFETY: the kernel reads `length` bytes of the address.
    check(unsafe { libc::bind(fd.as_raw_fd(), ptr::from_ref(&address).cast(), length) })?;
    Ok(())
}

/// Wakes the kernel to send the frames in the tx ring.
pub(crate) fn wake_send(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no bytes and no address are passed.
    let sent = unsafe { libc::sendto(fd.as_raw_fd(), ptr::null(), 0, libc::MSG_DONTWAIT, ptr::null(), 0) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Wakes the driver to read the fill ring, and to poll its queue if busy polling is on.
pub(crate) fn wake_receive(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: no buffer and no address are passed.
    let got = unsafe {
        libc::recvfrom(fd.as_raw_fd(), ptr::null_mut(), 0, flags, ptr::null_mut(), ptr::null_mut())
    };
    if got < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Wakes the kernel for both in one call.
pub(crate) fn wake_both(fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN | libc::POLLOUT, revents: 0 };
    // SAFETY: one pollfd, on the stack.
    check(unsafe { libc::poll(&raw mut poll, 1, 0) })?;
    Ok(())
}

/// Index of an interface in the calling thread's network namespace.
pub(crate) fn interface_index(name: &std::ffi::CStr) -> io::Result<u32> {
    // SAFETY: a CStr ends in a zero byte.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

fn request(name: &std::ffi::CStr) -> io::Result<libc::ifreq> {
    // SAFETY: zero bytes are a value of ifreq: integers, addresses and a null pointer.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let bytes = name.to_bytes_with_nul();
    if bytes.len() > request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Ok(request)
}

/// MTU of interface `name` in the network namespace of socket `fd`.
pub(crate) fn mtu(fd: BorrowedFd<'_>, name: &std::ffi::CStr) -> io::Result<u32> {
    let mut request = request(name)?;
    // SAFETY: SIOCGIFMTU reads and writes one ifreq.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request) })?;
    // SAFETY: SIOCGIFMTU has set this member of the union; any bytes are an integer.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(mtu.unsigned_abs())
}

/// `struct ethtool_channels` of `linux/ethtool.h`.
#[repr(C)]
#[derive(Default)]
struct EthtoolChannels {
    command: u32,
    max: [u32; 4],
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

/// Receive and transmit queues in use; `None` if the driver does not report them.
pub(crate) fn channels(fd: BorrowedFd<'_>, name: &std::ffi::CStr) -> io::Result<Option<(u32, u32)>> {
    const ETHTOOL_GCHANNELS: u32 = 0x3c;
    const SIOCETHTOOL: c_ulong = 0x8946;
    let mut channels = EthtoolChannels { command: ETHTOOL_GCHANNELS, ..EthtoolChannels::default() };
    let mut request = request(name)?;
    request.ifr_ifru.ifru_data = (&raw mut channels).cast();
    // SAFETY: SIOCETHTOOL reads one ifreq; ETHTOOL_GCHANNELS reads and writes the structure that it points to.
    match check(unsafe { libc::ioctl(fd.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) }) {
        Ok(_) => Ok(Some((channels.rx + channels.combined, channels.tx + channels.combined))),
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(None),
        Err(e) => Err(e),
    }
}

/// A memory mapping, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an address range belongs to the process, not to a thread.
unsafe impl Send for Mapping {}
// SAFETY: with a shared reference, callers of its unsafe functions promise to keep conflicting accesses away.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the ring of an AF_XDP socket at `offset`.
    pub(crate) fn ring(fd: BorrowedFd<'_>, offset: libc::off_t, bytes: usize) -> io::Result<Self> {
        Self::new(bytes, libc::MAP_SHARED | libc::MAP_POPULATE, fd.as_raw_fd(), offset)
    }

    /// Maps zeroed anonymous memory.
    pub(crate) fn anonymous(bytes: usize) -> io::Result<Self> {
        Self::new(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    }

    fn new(bytes: usize, flags: c_int, fd: RawFd, offset: libc::off_t) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: without MAP_FIXED the kernel chooses addresses that nothing else uses.
        let address = unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, fd, offset) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address =
            NonNull::new(address.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(Self { address, bytes })
    }

    /// Page-aligned start of the range.
    pub(crate) fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// Length of the range.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// `length` bytes of the range from `at` on; `None` if they are not all in it.
    ///
    /// # Safety
    /// Nobody writes them while the result lives.
    pub(crate) unsafe fn slice(&self, at: usize, length: usize) -> Option<&[u8]> {
        let start = self.place(at, length)?;
        // SAFETY: they are in the range, which is mapped as long as `self` lives; the caller keeps writers away.
        Some(unsafe { std::slice::from_raw_parts(start, length) })
    }

    /// Like [`Mapping::slice`], to write.
    ///
    /// # Safety
    /// Nobody else reads or writes them while the result lives.
    pub(crate) unsafe fn slice_mut(&mut self, at: usize, length: usize) -> Option<&mut [u8]> {
        let start = self.place(at, length)?;
        // SAFETY: as for `slice`; the caller keeps everybody else away.
        Some(unsafe { std::slice::from_raw_parts_mut(start, length) })
    }

    fn place(&self, at: usize, length: usize) -> Option<*mut u8> {
        let end = at.checked_add(length)?;
        // Within the range, as just checked.
        (end <= self.bytes).then(|| self.address.as_ptr().wrapping_add(at))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this mapping owns the range, and owners of pointers into it also own the `Mapping`.
        unsafe { libc::munmap(self.address.as_ptr().cast::<c_void>(), self.bytes) };
    }
}
