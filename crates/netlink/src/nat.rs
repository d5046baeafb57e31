// SPDX-License-Identifier: Apache-2.0
//! Whether a network namespace translates addresses: nftables' chains of type `nat`, which `iptables-nft` makes, too.

use std::io;
use std::os::fd::OwnedFd;

use netlink_packet_core::NetlinkBuffer;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use crate::socket::attribute;

/// `NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETCHAIN` (`linux/netfilter/nf_tables.h`).
const GET_CHAIN: u16 = 10 << 8 | 4;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const DUMP: u16 = 0x301;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// `NFTA_CHAIN_TYPE`.
const CHAIN_TYPE: u16 = 7;
/// Bytes of `struct nlmsghdr` and of `struct nfgenmsg` behind it.
const HEADER: usize = 16;
const GENERIC: usize = 4;
/// The kernel answers at once.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);
const DATAGRAM: usize = 32 << 10;

/// Asks for chains in the namespace where it was opened.
#[derive(Debug)]
pub struct NatChains {
    socket: OwnedFd,
    sequence: u32,
    datagram: Vec<u8>,
}

impl NatChains {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// The kernel's error, such as `EPROTONOSUPPORT` if it has no netfilter.
    pub fn open() -> io::Result<Self> {
        let (family, kind, flags) = (AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC);
        let socket = rustix::net::socket_with(family, kind, flags, Some(netlink::NETFILTER))?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(TIMEOUT))?;
        Ok(Self { socket, sequence: 0, datagram: vec![0; DATAGRAM] })
    }

    /// Whether there is a chain of type `nat` now.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn are_there(&mut self) -> io::Result<bool> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut request = [0u8; HEADER + GENERIC];
        let length = request.len() as u32;
        request[..4].copy_from_slice(&length.to_ne_bytes());
        request[4..6].copy_from_slice(&GET_CHAIN.to_ne_bytes());
        request[6..8].copy_from_slice(&DUMP.to_ne_bytes());
        request[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        rustix::net::send(&self.socket, &request, SendFlags::empty())?;
        let mut found = false;
        loop {
            let (_, length) = rustix::net::recv(&self.socket, &mut self.datagram[..], RecvFlags::empty())?;
            let mut rest = self.datagram.get(..length).unwrap_or(&self.datagram);
            while let Ok(message) = NetlinkBuffer::new_checked(rest) {
                rest = rest.get((message.length() as usize).next_multiple_of(4)..).unwrap_or_default();
                match message.message_type() {
                    // An answer to an earlier request that timed out.
                    _ if message.sequence_number() != self.sequence => {}
                    NLMSG_DONE => return Ok(found),
                    NLMSG_ERROR => {
                        let code =
                            message.payload().first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
                        return Err(io::Error::from_raw_os_error(-code));
                    }
                    _ => found |= is_nat(message.payload().get(GENERIC..).unwrap_or_default()),
                }
            }
        }
    }
}

/// Whether a chain's attributes say that its type is `nat`.
fn is_nat(attributes: &[u8]) -> bool {
    attribute(attributes, CHAIN_TYPE) == Some(b"nat\0")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::tests::attribute;

    #[test]
    fn a_nat_chain_is_known_by_its_type() {
        let chain = |kind: &[u8]| [attribute(1, b"filter\0"), attribute(CHAIN_TYPE, kind)].concat();
        assert!(is_nat(&chain(b"nat\0")) && !is_nat(&chain(b"filter\0")) && !is_nat(&attribute(3, b"nat\0")));
        let nat = chain(b"nat\0");
        assert!((0..nat.len() - 1).all(|end| !is_nat(&nat[..end])));
        assert!(!is_nat(&[0, 0, 1, 0, 0, 0, 0, 0]));
    }
}
