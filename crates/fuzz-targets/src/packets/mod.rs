//! What senders of packets can do.

mod connections;
mod frames;

pub use connections::connections;
pub use frames::{flow_names, wire_parse};
