// SPDX-License-Identifier: Apache-2.0
//! Forwarding tables of virtual routers, without DPDK or netlink. The control plane writes them and workers read them.
//!
//! - [`Tables`]: the routes of both families, looked up a burst at a time ([`Tables::lookup_v4`],
//!   [`Tables::lookup_v6`]), and the next hops that routes name ([`NextHop`]). An [`Update`] changes them.
//! - A route names a [`NextHopId`]. All routes through a gateway share one, so a change of the gateway's MAC address
//!   writes one entry, whatever the number of routes.
//! - [`Versions`]: two copies of the tables. Workers read one while the control plane writes the other.
//! - [`check_v4`], [`check_v6`]: whether a packet can be forwarded at all, checked before the lookup. [`forward_v4`],
//!   [`forward_v6`]: the header changes of a forwarded packet.
//! - A packet without a matching route gets [`NextHop::Punt`]: the kernel decides, and no packet is lost while a table
//!   lags.
//!
//! ```
//! use netvm_router::{Hop, NextHop, NextHopId, Tables, Update};
//! use netvm_wire::MacAddr;
//!
//! let gateway = Hop { interface: 1, mac: MacAddr([2, 0, 0, 0, 0, 9]) };
//! let mut tables = Tables::new();
//! tables.apply(&Update {
//!     next_hops: vec![(NextHopId(7), NextHop::Via(gateway))],
//!     routes: vec![("192.0.2.0/24".parse()?, Some(NextHopId(7)))],
//! });
//! let mut found = [NextHopId::PUNT; 2];
//! tables.lookup_v4(&[0xc000_0201, 0x0a00_0001], &mut found);
//! assert_eq!(found, [NextHopId(7), NextHopId::PUNT]);
//! assert_eq!(tables.next_hop(found[0]).choose(0), Some(&gateway));
//! # Ok::<(), netvm_wire::NetError>(())
//! ```

#![deny(unsafe_code)]

mod check;
mod memory;
mod next_hop;
mod prefix;
mod routes;
#[cfg(test)]
mod table_test;
mod tables;
mod trie;
mod update;
mod v4;
mod versions;

pub use check::{Checked, HeaderError, HeaderReason, check_v4, check_v6};
pub use netvm_wire::rewrite::{TtlError, decrement_ttl_v4 as forward_v4, decrement_ttl_v6 as forward_v6};
pub use next_hop::{Hop, MAX_ECMP, MAX_NEXT_HOPS, NextHop, NextHopId};
pub use tables::Tables;
pub use update::Update;
pub use versions::Versions;
