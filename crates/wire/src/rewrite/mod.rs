//! Rewrites frames in place.
//!
//! Every function checks bounds against its slice, whatever the [`crate::Headers`] say, and changes nothing on error.

mod mac;
mod ttl;
mod vlan;

pub use mac::{FrameTooShort, set_macs, swap_macs};
pub use ttl::{TtlError, decrement_ttl, decrement_ttl_v4, decrement_ttl_v6};
pub use vlan::{VlanError, push_vlan, set_vlan, strip_vlan};
