// SPDX-License-Identifier: Apache-2.0
//! `netvm status`, `port`, `nf`, `chain` and `group`.

mod chain;
mod live_port;
mod nf;
mod port;
mod status;

use serde::Serialize;

use crate::error::CliError;
use crate::output::Output;

pub use chain::{chain, group};
pub use live_port::live_port;
pub use nf::nf;
pub use port::port;
pub use status::status;

/// The items named `name`, or all.
fn select<T>(
    what: &'static str,
    all: Vec<T>,
    name: Option<&str>,
    name_of: impl Fn(&T) -> &str,
) -> Result<Vec<T>, CliError> {
    let Some(name) = name else { return Ok(all) };
    let mut known: Vec<String> = all.iter().map(|item| name_of(item).to_owned()).collect();
    known.dedup();
    let found: Vec<T> = all.into_iter().filter(|item| name_of(item) == name).collect();
    if found.is_empty() { Err(CliError::Unknown { what, name: name.to_owned(), known }) } else { Ok(found) }
}

fn show<T: Serialize>(items: &T, output: &Output, draw: impl FnOnce(&T) -> String) -> Result<(), CliError> {
    if output.json { output.value(items) } else { output.text(&draw(items)) }
}
