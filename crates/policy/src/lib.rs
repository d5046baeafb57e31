// SPDX-License-Identifier: Apache-2.0
//! The flow policy: an ordered list of rules on flow keys, of which the first match decides.
//!
//! - [`Rule`]: a [`Match`] and [`Actions`], as in the configuration. [`Match::fits`] defines a match and [`decide`] an
//!   ordered list; both are slow references.
//! - [`Cube`]: the input of classifiers, a value, prefix, mask or range for every field of the key. [`Match::cubes`]
//!   makes them; [`flatten`] makes the list for a [`Side`] whose first match holds all actions.
//! - [`UsedFields`]: the fields that rules use, so that a flow cache can ignore others.
//! - [`When`]: the times and loads in which a rule applies ([`Rule::set_active`]).
//! - [`Selection`]: the ports of a rule by their [`Labels`] ([`Rule::select`]).
//! - [`analyse`](mod@analyse): finds rules that may not do what their author expects.
//!
//! Matching compares numbers: a field that a packet lacks is 0 in its key. Fields of layer 3 and above match only IP
//! packets, unless the rule names another EtherType.

#![forbid(unsafe_code)]

pub mod analyse;
#[cfg(any(test, feature = "arbitrary"))]
pub mod arbitrary;
mod cubes;
mod decision;
mod flatten;
mod matching;
mod names;
mod reference;
mod rule;
mod span;
mod text;
mod used;

pub use cubes::{Cube, Family, Fields, MAX_CUBES, TooManyCubes};
pub use decision::{Decision, Merged};
pub use flatten::{
    Edit, Edited, EgressClasses, Flat, FlatList, FlattenError, Side, egress_classes, flatten, ingress_classes,
};
pub use matching::{Match, mac_bits};
pub use names::Names;
pub use netvm_ids::{ChainId, PortId, QueueId, RoleId, RouterId, RuleId};
pub use reference::decide;
pub use rule::{
    Action, Actions, Bound, Clocks, Ends, LABEL_BYTES, Label, LabelError, Labels, LoadLimit, MAX_LABELS,
    ParseWindowError, Police, Rate, Rule, RuleParts, Selection, SetVlan, WeekMinute, When, Window,
};
pub use span::{Masked, Span};
pub use text::Named;
pub use used::UsedFields;
