// SPDX-License-Identifier: Apache-2.0
//! Measures the round trip of single packets over an interface, such as a veth pair in a private network namespace.

use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketType};
use rustix::thread::UnshareFlags;

use crate::error::BenchError;

/// The engine's end.
pub const ENGINE_END: &str = "nvbench0";
/// The probe's end.
pub const PROBE_END: &str = "nvbench1";
/// An EtherType for local experiments (IEEE 802, 88-B5).
const ETHERTYPE: u16 = 0x88b5;
/// After this time a packet counts as lost.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Moves this thread, and threads that it starts later, into a new network namespace with the pair. The namespace ends
/// with the process.
///
/// # Errors
/// This process may not create namespaces, or `ip` is not installed.
pub fn enter_private_network() -> Result<(), BenchError> {
    leave_network()?;
    // Prevents neighbour discovery traffic. A kernel without IPv6 lacks the file.
    let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
    ip(&["link", "add", ENGINE_END, "type", "veth", "peer", "name", PROBE_END])?;
    ip(&["link", "set", ENGINE_END, "up"])?;
    ip(&["link", "set", PROBE_END, "up"])
}

/// Moves this thread, and threads that it starts later, into a new network namespace, which ends with the process.
///
/// # Errors
/// This process lacks the privilege.
pub fn leave_network() -> Result<(), BenchError> {
    let what = "cannot create a network namespace (run as root)";
    // SAFETY: only this thread's network namespace changes; no descriptor table is unshared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.map_err(BenchError::system(what))
}

/// Runs `ip`.
///
/// # Errors
/// It is not installed, or failed.
pub fn ip(arguments: &[&str]) -> Result<(), BenchError> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let what = || format!("ip {}", arguments.join(" "));
    match Command::new("ip").env("PATH", path).args(arguments).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(BenchError::System { what: what(), source: io::Error::other(status.to_string()) }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(BenchError::MissingPeer { program: "ip", package: "iproute2" })
        }
        Err(error) => Err(BenchError::System { what: what(), source: error }),
    }
}

/// Sends packets and waits for their return.
#[derive(Debug)]
pub struct Probe {
    interface: String,
    socket: OwnedFd,
    sent: u64,
}

impl Probe {
    /// Opens a socket on an interface.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open(interface: &str) -> Result<Self, BenchError> {
        let what = format!("cannot open a packet socket on {interface}");
        let socket = packet_socket(interface).map_err(BenchError::system(what))?;
        Ok(Self { interface: interface.to_owned(), socket, sent: 0 })
    }

    /// Sends a packet; returns its round-trip time in microseconds, this thread's wake-up included.
    ///
    /// # Errors
    /// [`BenchError::Nothing`] if it does not return.
    pub fn round_trip(&mut self) -> Result<f64, BenchError> {
        self.sent += 1;
        let mut frame = [0; 60];
        frame[..6].fill(0xff);
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        frame[12..14].copy_from_slice(&ETHERTYPE.to_be_bytes());
        frame[14..22].copy_from_slice(&self.sent.to_be_bytes());
        let start = Instant::now();
        rustix::net::send(&self.socket, &frame, SendFlags::empty())
            .map_err(BenchError::system("cannot send a packet"))?;
        let mut back = [0; 128];
        loop {
            match rustix::net::recv(&self.socket, &mut back, RecvFlags::empty()) {
                Ok(_) if back[14..22] == frame[14..22] => return Ok(start.elapsed().as_secs_f64() * 1e6),
                // A packet that arrived late.
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => {
                    let what = format!("packet {} over {}", self.sent, self.interface);
                    return Err(BenchError::Nothing { what, seconds: start.elapsed().as_secs_f64() });
                }
                Err(error) => return Err(BenchError::system("cannot receive a packet")(error)),
            }
        }
    }
}

fn packet_socket(interface: &str) -> io::Result<OwnedFd> {
    let protocol = NonZeroU32::new(u32::from(ETHERTYPE.to_be())).map(Protocol::from_raw);
    let socket = rustix::net::socket(AddressFamily::PACKET, SocketType::RAW, protocol)?;
    let index = rustix::net::netdevice::name_to_index(&socket, interface)?;
    bind(&socket, ETHERTYPE, index)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(TIMEOUT))?;
    Ok(socket)
}

/// Binds a packet socket to an interface; it receives packets of a protocol of `linux/if_ether.h`, none with 0.
///
/// # Errors
/// The kernel's error.
pub fn bind(socket: &OwnedFd, protocol: u16, interface: u32) -> io::Result<()> {
    // SAFETY: all zeros are a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = interface as i32;
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address has the given length and outlives the call.
    match unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
