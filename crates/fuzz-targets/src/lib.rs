//! Bodies of fuzz targets: everything that a peer can write, given to the code that reads it.
//!
//! Each body takes the bytes that a fuzzer made, plays the peer with them, and asserts what must hold whatever they
//! are; it reports by panicking. `fuzz/` wraps each for libFuzzer; this crate's tests run each over valid examples and
//! mutations of them, so that they are exercised by a stable compiler too. `docs/reference/testing.md` says how to run both.
//!
//! | body | who writes | what must hold |
//! |---|---|---|
//! | [`ring_peer`] | the other end of a ring | in bounds, at most the capacity, faults counted, no slot lost or seen twice |
//! | [`control_header`] | the sender of an NF's its control memory | refused, or every ring and counter lies within |
//! | [`table`] | the sender of an NF's its table | every look-up has an answer that can be acted on |
//! | [`attach_message`] | an unknown peer on the attach socket | an error or a message; no descriptor leaks |
//! | [`nf_descriptors`] | NFs of the group, and a defective engine | what an NF sees stays in its buffer; each packet leaves once |
//! | [`wire_parse`] | a sender of packets | offsets in the frame; a prefix says what the frame says; changes can be undone |
//! | [`capture_read`] | the author of a capture | an error or frames, the same however the bytes arrive |
//! | [`route_updates`] | a peer of a routing daemon | every address leads where a linear search says |
//! | [`config_parse`], [`rule_files`] | an operator | an error that can be shown, or what is written reads back the same |
#![allow(clippy::expect_used, reason = "a body reports by panicking, and what it sets up itself must work")]

mod attach;
mod capture;
mod config;
mod control;
mod input;
mod nf;
mod ring;
mod routes;
mod rules;
mod table;
mod wire;

pub use attach::attach_message;
pub use capture::capture_read;
pub use config::config_parse;
pub use control::control_header;
pub use nf::nf_descriptors;
pub use ring::ring_peer;
pub use routes::route_updates;
pub use rules::rule_files;
pub use table::table;
pub use wire::wire_parse;
