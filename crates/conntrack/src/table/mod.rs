//! The table of connections: [`Connections`].

mod confirm;
mod connections;
mod moves;
mod quotas;
mod slots;
mod track;
mod translate;
mod views;

pub use connections::{Connections, Ended, Refusal};
