//! A kernel interface's number and MTU. DPDK's drivers set no MTU beyond 1,500.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Whether a name is valid for an interface and in a device's arguments.
pub(crate) fn is_name(name: &str) -> bool {
    let plain =
        |c: char| c.is_ascii_graphic() && !matches!(c, '/' | ',' | '=' | ':' | '"' | '\'' | '[' | ']');
    (1..libc::IFNAMSIZ).contains(&name.len()) && name.chars().all(plain) && name != "." && name != ".."
}

/// The interface's MTU in bytes.
pub(crate) fn mtu(name: &str) -> io::Result<u32> {
    let mut request = request(name);
    ask(libc::SIOCGIFMTU, &mut request)?;
    // SAFETY: the kernel has filled this member.
    Ok(u32::try_from(unsafe { request.ifr_ifru.ifru_mtu }).unwrap_or(0))
}

/// The interface's number in the calling thread's network namespace.
pub(crate) fn index(name: &str) -> io::Result<i32> {
    let mut request = request(name);
    ask(libc::SIOCGIFINDEX, &mut request)?;
    // SAFETY: the kernel has filled this member.
    Ok(unsafe { request.ifr_ifru.ifru_ifindex })
}

/// Sets the MTU.
pub(crate) fn set_mtu(name: &str, mtu: u16) -> io::Result<()> {
    let mut request = request(name);
    request.ifr_ifru.ifru_mtu = i32::from(mtu);
    ask(libc::SIOCSIFMTU, &mut request)
}

fn request(name: &str) -> libc::ifreq {
    // SAFETY: an ifreq is plain old data; all zeroes is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays 0.
    for (to, &from) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(name.as_bytes()) {
        *to = from as libc::c_char;
    }
    request
}

/// Asks the kernel in the calling thread's network namespace.
fn ask(number: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: no pointers.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, with no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: these requests read and write an ifreq, which `request` is.
    match unsafe { libc::ioctl(socket.as_raw_fd(), number, std::ptr::from_mut(request)) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_has_an_mtu() {
        assert!(mtu("lo").unwrap() >= 1500);
        assert_eq!(mtu("no-such-netvm").unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn names_cannot_smuggle_arguments() {
        assert!(is_name("eth0") && is_name("enp1s0f0np0"));
        for wrong in ["", "a,qpairs=9", "sixteen-chars-xx", "a b", "../x", "a/b", "ü"] {
            assert!(!is_name(wrong), "{wrong}");
        }
    }
}
