//! The flow policy: ordered rules over flow keys, the first that matches decides.
//!
//! - [`Rule`] is what people write: a [`Match`] and [`Actions`]. [`Match::fits`] says what it means.
//! - [`Cube`] is what classifiers are built from: a value, prefix, mask or range for every field of the key.
//!
//! Matching is by numbers: a field that a packet does not have is 0 in its key. Fields of layer 3 and above match IP
//! packets only, unless the rule says another EtherType.

#![forbid(unsafe_code)]

mod cube;
mod ids;
mod matching;
mod rule;
mod span;

pub use cube::{Cube, Family, Fields, address_bits};
pub use ids::{ChainId, PortId, RuleId};
pub use matching::Match;
pub use rule::{Actions, Police, Rate, Rule, SetVlan, Verdict};
pub use span::{Masked, Span};
