// SPDX-License-Identifier: Apache-2.0
//! Connections outside of a table: as records of a fixed size, and files of them, for the next netvmd or a standby.

mod file;
mod record;

pub use file::{LoadError, SaveReader, SaveWriter};
pub use record::SavedConnection;
