// SPDX-License-Identifier: Apache-2.0
//! Interfaces of the kernel that exchange offloads: a [`Queue`] of a TAP device or of a packet socket.
//!
//! Each packet has a `virtio_net_hdr` before it (Linux's `IFF_VNET_HDR` and `PACKET_VNET_HDR`, virtio 1.2 section
//! 5.1.6), which describes pending offloads: a checksum to finish, or a TCP segment of up to 64 KB to be cut. Both
//! directions carry it, so that a segment crosses the program as one packet, and the receiver's kernel takes it as one.
//!
//! ```no_run
//! use netvm_vnet::{ReceiveBurst, TapOptions, tap};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut tap = tap::open(&TapOptions { interface: "nv0".to_owned(), queues: 1, mtu: None, offloads: true })?;
//! let mut queue = tap.queues.remove(0);
//! let mut bytes = vec![0u8; 65_536];
//! let mut burst = ReceiveBurst::default();
//! burst.push([libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }].into_iter());
//! // SAFETY: the part is memory of this function, and not used meanwhile.
//! let packets = unsafe { burst.receive(&mut queue, |header, packet| println!("{header:?} {packet:?}")) };
//! println!("{packets} packets");
//! # Ok(()) }
//! ```
//!
//! A burst of packets takes one system call ([`ReceiveBurst`], [`SendBurst`]): `recvmmsg` and `sendmmsg` on packet
//! sockets, io_uring on TAP devices. Where the kernel refuses io_uring, a TAP device takes one for each packet. For
//! many small packets AF_XDP is the better way.

mod error;
mod features;
mod header;
mod ifreq;
mod managed;
pub mod packet_socket;
mod queue;
pub mod tap;

pub use error::OpenError;
pub use features::Features;
pub use header::{Header, HeaderError, Pending, Segments, header_of, pending};
pub use managed::container::ContainerOptions;
pub use managed::pair::{Pair, PrivateNamespace};
pub use managed::{
    Addressing, LinkEvent, LinkEvents, LinkState, ListeningInterface, ManagedInterface, container, host, pair,
};
pub use packet_socket::SocketOptions;
pub use queue::{
    Drops, MAX_PARTS, MAX_RECEIVED, Queue, ReceiveBurst, ReceiveError, Received, SendBurst, SendError, Watch,
};
pub use tap::TapOptions;

/// The queues of an open interface, and what was negotiated with the kernel.
#[derive(Debug)]
pub struct Opened {
    /// One for each requested queue.
    pub queues: Vec<Queue>,
    /// The offloads.
    pub offloads: Offloads,
}

/// Offloads that both sides of an interface may leave to the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Unfinished checksums, and TCP segments over IPv4 and IPv6.
    pub tcp: bool,
    /// UDP datagrams to be cut (`UDP_SEGMENT`); since Linux 6.2.
    pub udp: bool,
}
