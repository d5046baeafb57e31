//! Forwarding tables of virtual routers, with nothing of DPDK or of netlink: what the control plane writes and workers read.
//!
//! - [`Tables`]: the routes of both families ([`Tables::look_up_v4`], [`Tables::look_up_v6`], a burst at a time) and the
//!   next hops that they name ([`NextHop`]). Changed by [`Update`]s.
//! - A route names a [`NextHopId`]; many routes by one gateway share one, so that a change of the gateway's MAC address
//!   touches one entry, whatever the number of routes.
//! - [`Versions`]: two of them in turn, one that workers read and one that is written.
//! - [`check_v4`], [`check_v6`]: whether a packet can be forwarded at all, which is to be found out before a route is looked
//!   up; [`forward_v4`], [`forward_v6`]: what changes in its header when it is.
//! - What no route matches is [`NextHop::Punt`]: the kernel decides, and nothing is lost while a table is behind.
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
//! tables.look_up_v4(&[0xc000_0201, 0x0a00_0001], &mut found);
//! assert_eq!(found, [NextHopId(7), NextHopId::PUNT]);
//! assert_eq!(tables.next_hop(found[0]).choose(0), Some(&gateway));
//! # Ok::<(), netvm_wire::NetError>(())
//! ```

#![deny(unsafe_code)]

mod check;
mod next_hop;
mod tables;
mod trie;
mod update;
mod versions;

pub use check::{Checked, Punted, Refused, check_v4, check_v6};
pub use netvm_wire::rewrite::{TtlError, decrement_ttl_v4 as forward_v4, decrement_ttl_v6 as forward_v6};
pub use next_hop::{Hop, MAX_NEXT_HOPS, MAX_SPREAD, NextHop, NextHopId};
pub use tables::Tables;
pub use update::Update;
pub use versions::Versions;
