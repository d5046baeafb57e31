//! Exports records: a thread of its own takes them from the rings of all meters and gives them to an IPFIX collector,
//! to an eve file and to the sketch of top talkers.

mod collector;
mod eve;
mod exporter;
mod ipfix;
mod message;
mod options;
mod template;
mod view;

pub use collector::{ParseTargetError, Target, Transport};
pub use eve::Drops;
pub use exporter::{Exporter, StartError};
pub use message::Clock;
pub use options::Options;
pub use view::{Heaviest, NamedBytes, Talker, Totals, View};
