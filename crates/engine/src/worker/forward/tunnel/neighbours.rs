// SPDX-License-Identifier: Apache-2.0
//! ARP and neighbour discovery of hosts in networks with EVPN (RFC 9161). In: packets that would leave by the port of
//! a tunnel. Out: a request for an address that EVPN knows becomes its answer, which the port receives, as if the host
//! behind the other server had sent it; all others go on.
//!
//! What hosts of this server say of their own addresses is noted for the control plane. That a host looks whether it
//! may have an address (a probe) goes to all servers, so that the one who has it can object.
//!
//! Cost: a comparison for each packet into such a tunnel. Of ARP and neighbour discovery, the whole packet is read.

use dpdk::Mbuf;
use netvm_wire::neighbour::{Holder, MAX_ANSWER, Message};
use netvm_wire::{Address, MacAddr};

use crate::router::Tunnel;
use crate::worker::state::Datapath;

/// Longest message that is read.
const MAX_MESSAGE: usize = 256;

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It goes on to other servers.
    Forwarded,
    /// It is the answer now.
    Answered,
    /// This server's own router has the address, and answers.
    Own,
}

/// Reads a message, notes what it says, and makes its answer of it.
#[cold]
pub(super) fn answer(dp: &Datapath, tunnel: &Tunnel, mbuf: &mut Mbuf) -> Outcome {
    let Some(hosts) = &tunnel.hosts else { return Outcome::Forwarded };
    let mut frame = [0; MAX_MESSAGE];
    let copied = mbuf.copy_to(&mut frame);
    let frame = &frame[..copied];
    let message = Message::read(frame).filter(|_| copied == mbuf.pkt_len() as usize);
    let hear = |address: Address, mac: MacAddr| {
        if !dp.is_dry {
            hosts.claim((address, mac));
        }
    };
    let request = match message {
        None => return Outcome::Forwarded,
        Some(Message::Claim(address, mac)) => {
            hear(address, mac);
            return Outcome::Forwarded;
        }
        Some(Message::Request(request)) => request,
    };
    let Some(source) = request.source else { return Outcome::Forwarded };
    hear(source, request.source_mac);
    let is_to_all = frame[0] & 1 != 0;
    if !is_to_all || !tunnel.answers {
        return Outcome::Forwarded;
    }
    if tunnel.own.contains(&request.target) {
        return Outcome::Own;
    }
    let Some(mac) = hosts.find(request.target).filter(|mac| *mac != request.source_mac) else {
        return Outcome::Forwarded;
    };
    let mut answer = [0; MAX_ANSWER];
    let Some(length) = request.answer(Holder { mac, is_router: false, vlan: None }, &mut answer) else {
        return Outcome::Forwarded;
    };
    mbuf.forget_pending();
    match mbuf.copy_from(&answer[..length]) {
        Ok(()) => Outcome::Answered,
        Err(_) => Outcome::Forwarded,
    }
}
