//! The flow policy: ordered rules over flow keys, the first that matches decides.
//!
//! - [`Rule`] is what people write: a [`Match`] and [`Actions`]. [`Match::fits`] says what a match means, [`decide`] what
//!   an ordered list does; both are slow and plain.
//! - [`Cube`] is what classifiers are built from: a value, prefix, mask or range for every field of the key.
//!   [`Match::cubes`] makes them, and [`flatten`] makes the list of which the first that matches says all, for the
//!   [`Side`] that a classifier is for.
//! - [`UsedFields`] tells which fields are looked at, so that a flow cache need not tell flows apart by others.
//! - [`analyse`](mod@analyse) finds rules that do not do what they seem to.
//!
//! Matching is by numbers: a field that a packet does not have is 0 in its key. Fields of layer 3 and above match IP
//! packets only, unless the rule says another EtherType.

#![forbid(unsafe_code)]

pub mod analyse;
#[cfg(any(test, feature = "arbitrary"))]
pub mod arbitrary;
mod cube;
mod decision;
mod edit;
mod flatten;
mod ids;
mod lower;
mod matching;
mod reference;
mod rule;
mod side;
mod simplify;
mod span;
mod text;
mod used;

pub use cube::{Cube, Family, Fields};
pub use decision::{Decision, Merged};
pub use edit::Edit;
pub use flatten::{Flat, FlatList, FlattenError, flatten};
pub use ids::{ChainId, PortId, RouterId, RuleId};
pub use lower::{MAX_CUBES, TooManyCubes};
pub use matching::{Match, mac_bits};
pub use reference::decide;
pub use rule::{Action, Actions, Police, Rate, Rule, RuleParts, SetVlan};
pub use side::{EgressClasses, Side, egress_classes, ingress_classes};
pub use span::{Masked, Span};
pub use text::{Named, Names};
pub use used::UsedFields;
