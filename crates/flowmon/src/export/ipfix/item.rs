//! [`Item`]: what becomes a data record.

use std::sync::Arc;

use super::clock::Clock;
use super::nat::{NatEvent, NatTemplate};
use super::template::{Field, Template};
use crate::entry::Record;

/// What is exported.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "most are flows")]
pub(in crate::export) enum Item {
    /// A record of a flow, and the name of the rule that decided.
    Flow(Record, Option<Arc<str>>),
    /// An event of NAT.
    Nat(NatEvent),
}

impl Item {
    /// Number of templates.
    pub(super) const TEMPLATES: usize = Template::COUNT + NatTemplate::COUNT;

    /// From 0 to `TEMPLATES - 1`.
    pub(super) fn template_index(&self) -> usize {
        match self {
            Self::Flow(record, _) => Template::of(record).index(),
            Self::Nat(event) => Template::COUNT + event.template().index(),
        }
    }

    /// Template number, and the number of the sets of its records.
    pub(super) fn template_id(&self) -> u16 {
        match self {
            Self::Flow(record, _) => Template::of(record).id(),
            Self::Nat(event) => event.template().id(),
        }
    }

    pub(super) fn fields(&self) -> Vec<Field> {
        match self {
            Self::Flow(record, _) => Template::of(record).fields(),
            Self::Nat(event) => event.template().fields(),
        }
    }

    /// Appends the data record.
    pub(super) fn write(&self, clock: &Clock, out: &mut Vec<u8>) {
        match self {
            Self::Flow(record, rule) => {
                Template::of(record).write(record, |cycles| clock.millis(cycles), out);
                Template::of(record).write_decided(record, rule.as_deref(), out);
            }
            Self::Nat(event) => event.write(clock.millis(event.at), out),
        }
    }
}
