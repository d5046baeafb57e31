// SPDX-License-Identifier: Apache-2.0
//! Packet sockets.

use std::os::fd::{AsRawFd, OwnedFd};

/// A packet socket on an interface of the calling thread's namespace.
pub fn packet_socket(interface: &str) -> OwnedFd {
    use rustix::net::{AddressFamily, SocketType, netdevice, socket};
    let socket = socket(AddressFamily::PACKET, SocketType::RAW, None).unwrap();
    let index = netdevice::name_to_index(&socket, interface).unwrap();
    // SAFETY: a structure of integers: zeros are valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index as i32;
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: an address and its length.
    assert_eq!(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) }, 0);
    socket
}

/// How many frames that end with these bytes a packet socket has received.
pub fn frames_of(socket: &OwnedFd, end: &[u8]) -> usize {
    let mut bytes = [0; 2048];
    let receive = |bytes: &mut [u8]| rustix::net::recv(socket, bytes, rustix::net::RecvFlags::DONTWAIT);
    let mut count = 0;
    while let Ok((length, _)) = receive(&mut bytes) {
        count += usize::from(bytes[..length].ends_with(end));
    }
    count
}

/// Whether a packet socket receives a frame within some time.
pub fn receives(socket: &OwnedFd, frame: &[u8]) -> bool {
    let mut bytes = [0; 2048];
    let flags = rustix::net::RecvFlags::DONTWAIT;
    netvm_testing::within(netvm_testing::LIMIT, || {
        while let Ok((length, _)) = rustix::net::recv(socket, &mut bytes[..], flags) {
            if bytes[..length] == *frame {
                return true;
            }
        }
        false
    })
}
