// SPDX-License-Identifier: Apache-2.0
//! Connection tracking: which connection a packet belongs to, and what state it gives the packet.
//!
//! ```text
//!  packet ──▶ tuple ──▶ index ──▶ connection ──▶ TCP window, time-out ──▶ new │ established │ related │ invalid
//!    (fragment: ports of the first; ICMP error: the packet that it is about)
//! ```
//!
//! - One [`Connections`] belongs to one worker, and nothing is allocated after [`Connections::new`]. Tables of several
//!   workers share what [`Shared`] has: nothing that each packet needs is locked.
//! - [`Connections::track`] creates nothing. A connection begins with [`Connections::confirm`], after rules have
//!   accepted its packet, so packets that rules drop leave no trace.
//! - Both directions are in the index, so one look-up finds connection and direction.
//! - A connection stores a number of the caller for each direction ([`Connections::set_decided`]): the same look-up
//!   finds what the caller has decided.
//! - A connection takes 206 bytes: 192 in its slot, and 14 in the index.
//! - A full table evicts the connection that has waited for longest for its handshake or first answer, or since it was
//!   closed. Others are never evicted. Quotas bound what a source prefix, a port or a zone can have.
//! - Ageing costs the same at any time: a hand passes some slots with each [`Connections::expire`], and a look-up that
//!   finds a connection after its time-out ends it.
//! - A connection may be translated from its first packet on ([`Connections::confirm_translated`]); its packets are
//!   rewritten by [`Connection::rewrite`].
//! - Packets of an open connection may pass unseen, if the caller counts them ([`Connections::let_pass`],
//!   [`Connections::passed`]).
//! - Connections can be saved, and restored in another table ([`Connections::save`], [`Connections::restore`]).
//! - What happens to connections can be taken from a bounded queue ([`Connections::take_event`]), for logs.
//! - [`nat64`] translates packets between IPv6 and IPv4.
//! - With a SYN proxy ([`Connections::cookie_for`]), a TCP connection begins only after its client has proved its
//!   address, and its segments are translated by [`Connections::translate_proxied`].
//! - The hash has a random key, so that a sender cannot choose packets that collide.
//!
//! What is tracked follows RFC 9293, the defaults and names of Linux's conntrack, and the window checks of van Rooij
//! ("Real Stateful TCP Packet Filtering in IP Filter", 2001). SCTP is tracked per pair of addresses, with its
//! verification tags (RFC 9260). Other protocols are tracked by addresses and ports alone.

#![forbid(unsafe_code)]

mod config;
mod connection;
mod decided;
mod events;
mod index;
mod mapped;
mod nat;
pub mod nat64;
mod numbers;
mod packet;
mod protocol;
mod queue;
mod saved;
mod syn_proxy;
mod table;
mod workers;

pub use config::{Config, Quotas, Timeouts};
pub use connection::{Connection, ConnectionId, ConnectionState, Origin};
pub use events::{Cause, Event, Happened};
pub use mapped::Filtering;
pub use nat::{
    Allocation, BlockEvent, Change, ContactTable, Half, Incomplete, Pool, Reserved, Rewrite, ServicePorts,
    Target, Translation, deterministic_inside_of,
};
pub use netvm_flow_table::NoMemory;
pub use packet::tuple::{Tuple, Zone};
pub use protocol::TcpEnd;
pub use queue::EventQueue;
pub use saved::{LoadError, SaveReader, SaveWriter, SavedConnection};
pub use syn_proxy::{ByProxy, MAX_PROXY_FRAME, Proved, ProxiedPacket, ProxyTable};
pub use table::{Connections, Ended, Nat64, NextPacket, Refusal, Targets, Unseen};
pub use workers::{FlowOwners, Shared};

use netvm_wire::{ConnState, FlowKey};

/// Ticks of the clock in a second.
pub const TICKS_PER_SECOND: u32 = 10;

/// A packet to track.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Its header fields, complete.
    pub key: &'a FlowKey,
    /// Its zone.
    pub zone: Zone,
    /// Its first bytes, from the Ethernet header on: all headers, of ICMP errors also those of the packet that they are
    /// about.
    pub front: &'a [u8],
    /// Its length.
    pub length: usize,
}

/// What tracking says of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tracked {
    /// The state.
    pub state: ConnState,
    /// Its connection, or that of the packet that an ICMP error is about.
    pub connection: Option<ConnectionId>,
    /// It goes to the end that began the connection.
    pub is_reply: bool,
    /// Its connection is translated: see [`Connection::rewrite`].
    pub is_translated: bool,
    /// What the SYN proxy has to do with it.
    pub proxy: ByProxy,
    /// The ports of a later fragment, which the first one had.
    pub ports: Option<[u16; 2]>,
    /// What the caller has decided on earlier packets of this direction ([`Connections::set_decided`]), whose ends
    /// were the same. `None`: nothing, or this packet is a later fragment, an ICMP error about another one, or was
    /// forwarded by a kernel.
    pub decided: Option<u32>,
}
