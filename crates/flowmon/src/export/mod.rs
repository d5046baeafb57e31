//! Exports records: a thread of its own takes them from the rings of all meters and gives them to an IPFIX collector, to
//! an eve file and to the sketch of top talkers.

mod collector;
mod eve;
mod exporter;
mod ipfix;
mod message;
mod template;

pub use collector::{ParseTargetError, Target, Transport};
pub use eve::Drops;
pub use exporter::{Exporter, NamedBytes, Options, StartError, Talker, Totals, View};
pub use message::Clock;
