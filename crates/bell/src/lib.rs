//! Waking NFs and guests by eventfds that they share: without ever waiting for them ([`Ringer`]), and at a cost that is
//! bounded, whatever they make of what they share ([`Pace`]).

mod pace;
mod ringer;

pub use pace::{Pace, Wake};
pub use ringer::{Ringer, write};
