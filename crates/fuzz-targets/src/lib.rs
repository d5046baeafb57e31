// SPDX-License-Identifier: Apache-2.0
//! Bodies of fuzz targets: they feed everything that a peer can write to the code that reads it.
//!
//! A body plays the peer with the fuzzer's bytes and asserts what must hold for any bytes. It reports a failure by
//! panicking. `fuzz/` wraps each body for libFuzzer; this crate's tests run each on valid examples and mutations, also
//! with a stable compiler. `docs/reference/testing.md` describes both.
//!
//! | body | writer | must hold |
//! |---|---|---|
//! | [`ring_peer`] | the other end of a ring | in bounds, at most the capacity, faults counted, no slot lost or seen twice |
//! | [`control_header`] | the sender of an NF's control memory | refused, or every ring and counter lies within |
//! | [`table`] | the sender of an NF's table | every lookup has a usable answer |
//! | [`attach_message`] | an unknown peer on the attach socket | an error or a message; no descriptor leaks |
//! | [`e1000`] | the client of a card's socket, and its guest | replies are bounded; packets are within guest memory |
//! | [`memif`] | the program at the other side of a memif, as client and as server | packets are within the shared memory; nothing else is read or written |
//! | [`vhost_user`] | a guest's front-end on its vhost-user socket | refused, or every part of a started ring lies in one mapping |
//! | [`nf_descriptors`] | NFs of the group, and a defective engine | the NF stays within its buffers; each packet leaves once |
//! | [`wire_parse`] | a sender of packets | offsets lie in the frame; a prefix agrees with the frame; changes can be undone |
//! | [`connections`] | a sender of packets, and a damaged file of connections | the table is bounded; translated packets stay well-formed, and checksums correct; saved connections go on |
//! | [`nat64`] | a sender of packets | refused, or well-formed in the other family, with the same payload; checksums stay correct |
//! | [`multicast`] | a host that joins groups, and a querier | memberships are bounded, and counted exactly |
//! | [`neighbours`] | a host of a network with EVPN | refused, or an answer that says what was asked, to who asked |
//! | [`vxlan`] | another server | refused, or the same headers before the same packet; congestion marks change nothing else; no fragment is taken for a packet; datagrams within each other end |
//! | [`flow_names`] | a sender of packets | no name, or a printable one of bounded length |
//! | [`capture_read`] | the author of a capture | an error or frames, however the bytes arrive |
//! | [`capture_filter`] | a client that captures | refused, or ends for every packet; a front of a packet decides as the whole does |
//! | [`route_updates`] | a peer of a routing daemon | every address leads where a linear search says |
//! | [`config_fragments`] | operators of several hosts | errors lie in one of the texts, or they say the same as one file |
//! | [`config_parse`], [`rule_files`] | an operator | a printable error, or values that survive the round trip through text |
#![allow(clippy::expect_used, reason = "a body reports by panicking, and its own set-up must work")]

mod attach;
mod capture;
mod e1000;
mod input;
mod memif;
mod packets;
mod routes;
mod shared;
mod text;
mod vhost_user;

pub use attach::attach_message;
pub use capture::{capture_filter, capture_read};
pub use e1000::e1000;
pub use memif::memif;
pub use packets::{connections, flow_names, multicast, nat64, neighbours, vxlan, wire_parse};
pub use routes::route_updates;
pub use shared::{control_header, nf_descriptors, ring_peer, table};
pub use text::{config_fragments, config_parse, rule_files};
pub use vhost_user::{vhost_user, vhost_user_rings};
