//! The flow policy: ordered rules over flow keys, the first that matches decides.
//!
//! - [`Rule`] is what people write: a [`Match`] and [`Actions`]. [`Match::fits`] says what it means.
//! - [`Cube`] is what classifiers are built from: a value, prefix, mask or range for every field of the key.
//!
//! Matching is by numbers: a field that a packet does not have is 0 in its key. Fields of layer 3 and above match IP
//! packets only, unless the rule says another EtherType.

#![forbid(unsafe_code)]

#[cfg(any(test, feature = "arbitrary"))]
pub mod arbitrary;
mod cube;
mod ids;
mod lower;
mod matching;
mod rule;
mod simplify;
mod span;

pub use cube::{Cube, Family, Fields};
pub use ids::{ChainId, PortId, RuleId};
pub use lower::{MAX_CUBES, TooManyCubes};
pub use matching::Match;
pub use rule::{Actions, Police, Rate, Rule, SetVlan, Verdict};
pub use span::{Masked, Span};
