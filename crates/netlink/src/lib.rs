// SPDX-License-Identifier: Apache-2.0
//! rtnetlink(7) over plain sockets: links, addresses, routes and filters of tc, also in other network namespaces.

mod addresses;
mod discard;
mod filters;
mod links;
mod namespace;
mod nat;
mod routes;
mod socket;

pub use addresses::{addresses_of, set_addresses};
pub use discard::discard_received;
pub use filters::IngressFilter;
pub use links::{Veth, by_name, change_link, index_of, make_veth, remove_link, set_up};
pub use namespace::{give_number, inside, link_in, nameless, number_of};
pub use nat::NatChains;
pub use routes::{route_address, set_default_route};
pub use socket::{Event, Events, ReadOutcome, Requests};

/// Marks what netvm adds, so that the rest stays (`IFA_PROTO`, Linux 5.18; `rtm_protocol`). Numbers of addresses from 4
/// on are for userspace, and no other daemon in `rt_protos` has this one of routes.
pub const OURS: u8 = 0x6e;
