// SPDX-License-Identifier: Apache-2.0
//! The table of connections: [`Connections`].

mod bounds;
mod confirm;
mod connections;
mod moves;
mod nat64;
mod owned;
mod proxy;
mod track;
mod translate;
mod views;

pub use connections::{Connections, Ended, Refusal};
pub use nat64::{Nat64, NextPacket};
pub use track::Unseen;
pub use translate::Targets;
