//! The program of the ordinary guest in `bench vm`: receives packets on an interface by AF_PACKET and sends them back,
//! up to 32 for each system call. `netvm-bench-packet INTERFACE`

use std::ffi::CString;
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const BURST: usize = 32;
const LONGEST: usize = 2048;

fn main() -> io::Result<()> {
    let name =
        std::env::args().nth(1).ok_or_else(|| io::Error::other("usage: netvm-bench-packet INTERFACE"))?;
    let socket = bind_to(&name)?;
    let mut frames = vec![[0u8; LONGEST]; BURST];
    // SAFETY: all zeros are valid structures of numbers and null pointers.
    let mut parts: [libc::iovec; BURST] = unsafe { zeroed() };
    // SAFETY: as above.
    let mut messages: [libc::mmsghdr; BURST] = unsafe { zeroed() };
    for ((part, message), frame) in parts.iter_mut().zip(&mut messages).zip(&mut frames) {
        part.iov_base = frame.as_mut_ptr().cast();
        message.msg_hdr.msg_iov = part;
        message.msg_hdr.msg_iovlen = 1;
    }
    println!("forwarding on {name}");
    loop {
        for part in &mut parts {
            part.iov_len = LONGEST;
        }
        let (fd, wait) = (socket.as_raw_fd(), libc::MSG_WAITFORONE);
        // SAFETY: every message has one part, a frame's memory; all outlive this loop.
        let count = check(unsafe {
            libc::recvmmsg(fd, messages.as_mut_ptr(), BURST as u32, wait, std::ptr::null_mut())
        })?;
        for (part, message) in parts.iter_mut().zip(&messages[..count]) {
            part.iov_len = (message.msg_len as usize).min(LONGEST);
        }
        // SAFETY: as above. Packets that the interface refuses are lost, as in any switch.
        unsafe { libc::sendmmsg(fd, messages.as_mut_ptr(), count as u32, 0) };
    }
}

fn check(result: libc::c_int) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// A socket that receives packets of an interface, and sends without queueing disciplines.
fn bind_to(name: &str) -> io::Result<OwnedFd> {
    let protocol = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: the call takes integers only.
    let fd = check(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, protocol.into()) })?;
    // SAFETY: a new descriptor that nothing else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let text = CString::new(name)?;
    // SAFETY: the string ends with NUL.
    let index = unsafe { libc::if_nametoindex(text.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all zeros are a valid address of numbers.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    (address.sll_family, address.sll_protocol, address.sll_ifindex) =
        (libc::AF_PACKET as u16, protocol, index as i32);
    // SAFETY: the address outlives the call, and the size is right.
    check(unsafe {
        let size = size_of::<libc::sockaddr_ll>() as u32;
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size)
    })?;
    for option in [libc::PACKET_IGNORE_OUTGOING, libc::PACKET_QDISC_BYPASS] {
        let on: libc::c_int = 1;
        // SAFETY: the value outlives the call, and the size is right.
        check(unsafe {
            let (value, size) = ((&raw const on).cast(), size_of::<libc::c_int>() as u32);
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, option, value, size)
        })?;
    }
    Ok(socket)
}
