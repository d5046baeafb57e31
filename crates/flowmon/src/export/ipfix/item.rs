// SPDX-License-Identifier: Apache-2.0
//! [`Item`]: what becomes a data record.

use std::sync::Arc;

use super::clock::Clock;
use super::nat::{NatEvent, NatTemplate};
use super::template::{SAMPLING, Template, describe, describe_interface, write_interface};
use crate::entry::Record;
use crate::export::interfaces::Interface;

/// Template number of the options record of interfaces, after those of NAT.
const INTERFACE: u16 = SAMPLING + 1 + NatTemplate::COUNT as u16;

/// What is exported.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "most are flows")]
pub(in crate::export) enum Item {
    /// A record of a flow, and the name of the rule that decided.
    Flow(Record, Option<Arc<str>>),
    /// An event of NAT.
    Nat(NatEvent),
    /// The name of an interface, by its number.
    Interface(u16, Arc<Interface>),
}

impl Item {
    /// Number of templates.
    pub(super) const TEMPLATES: usize = Template::COUNT + NatTemplate::COUNT + 1;

    /// From 0 to `TEMPLATES - 1`.
    pub(super) fn template_index(&self) -> usize {
        match self {
            Self::Flow(record, _) => Template::of(record).index(),
            Self::Nat(event) => Template::COUNT + event.template().index(),
            Self::Interface(..) => Self::TEMPLATES - 1,
        }
    }

    /// Template number, and the number of the sets of its records.
    pub(super) fn template_id(&self) -> u16 {
        match self {
            Self::Flow(record, _) => Template::of(record).id(),
            Self::Nat(event) => event.template().id(),
            Self::Interface(..) => INTERFACE,
        }
    }

    /// Whether it is about the exporter, and no record of traffic: its template is an options template.
    pub(super) const fn is_option(&self) -> bool {
        matches!(self, Self::Interface(..))
    }

    /// Appends the template.
    pub(super) fn describe(&self, out: &mut Vec<u8>) {
        match self {
            Self::Flow(record, _) => describe(self.template_id(), &Template::of(record).fields(), out),
            Self::Nat(event) => describe(self.template_id(), &event.template().fields(), out),
            Self::Interface(..) => describe_interface(INTERFACE, out),
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
            Self::Interface(number, interface) => {
                write_interface(*number, &interface.name, &interface.description(), out);
            }
        }
    }
}
