//! Waking NFs and guests by eventfds that they share: without ever waiting for them ([`Ringer`]), and at a cost that is
//! bounded, whatever they make of what they share ([`Pace`]); and hearing them in the same way ([`Ear`]).

mod ear;
mod pace;
mod ringer;

pub use ear::Ear;
pub use pace::{Pace, Wake, cpu_nanos};
pub use ringer::{Ringer, new_bell, write};
