//! Messages from guests' front-ends to the library.
//!
//! `connection` takes over a guest's connection and puts a `relay` into it. The relay passes a message on once
//! `protocol` allows it at this time and `descriptors` has checked that its descriptors cannot block the library.

pub(super) mod connection;
mod descriptors;
mod protocol;
mod relay;

pub(super) use connection::Taken;
pub(super) use protocol::locks_vrings;
pub(super) use relay::Relay;
