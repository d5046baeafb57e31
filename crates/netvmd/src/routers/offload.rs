// SPDX-License-Identifier: Apache-2.0
//! Switches off transmit offloads of a router's veth interfaces.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// Commands of `linux/ethtool.h` that take `struct ethtool_value`: (get, set).
const TX_CHECKSUM: (u32, u32) = (0x16, 0x17);
const TSO: (u32, u32) = (0x1e, 0x1f);
const GSO: (u32, u32) = (0x23, 0x24);
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_SFLAGS: u32 = 0x26;
/// `ETH_FLAG_TXVLAN`.
const TX_VLAN: u32 = 1 << 7;

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// Makes the kernel compute checksums, segment to the MTU and insert VLAN tags before it sends by an interface of the
/// calling thread's namespace. With offloads, AF_XDP at the other end of a veth receives unfinished packets.
///
/// # Errors
/// The kernel's error.
pub fn finish_packets(interface: &str) -> io::Result<()> {
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    for (get, set) in [TX_CHECKSUM, TSO, GSO] {
        // The kernel refuses to switch off features that are fixed off, such as TSO towards an XDP program.
        if ethtool(&socket, interface, get, 0)? != 0 {
            ethtool(&socket, interface, set, 0)?;
        }
    }
    let flags = ethtool(&socket, interface, ETHTOOL_GFLAGS, 0)?;
    if flags & TX_VLAN != 0 {
        ethtool(&socket, interface, ETHTOOL_SFLAGS, flags & !TX_VLAN)?;
    }
    Ok(())
}

fn ethtool(socket: &impl AsFd, interface: &str, command: u32, data: u32) -> io::Result<u32> {
    let mut value = Value { command, data };
    // SAFETY: plain data, for which all bits zero is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte remains for the terminating NUL.
    let most = request.ifr_name.len() - 1;
    if interface.len() > most {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the request and the value it points to outlive the call, and the value has the type that these commands
    // read and write.
    let outcome = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(value.data) }
}
