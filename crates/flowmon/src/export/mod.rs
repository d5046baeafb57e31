// SPDX-License-Identifier: Apache-2.0
//! Exports records: a thread of its own takes them from the rings of all meters and gives them to an IPFIX collector,
//! to an eve file and to the sketch of top talkers. Events of NAT go to the collector, too.

mod eve;
mod exporter;
mod interfaces;
mod ipfix;
mod rings;
mod rules;
mod view;

pub use eve::Drops;
pub use exporter::{Exporter, StartError};
pub use interfaces::{Interface, Interfaces};
pub use ipfix::{
    Clock, NatBlock, NatEnd, NatEvent, NatEventKind, NatSession, Options, ParseTargetError, Target, Transport,
};
pub use rules::RuleNames;
pub use view::{Heaviest, NamedBytes, Talker, Totals, View};
