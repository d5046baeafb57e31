// SPDX-License-Identifier: Apache-2.0
//! Whether this machine can have the table.

use std::os::fd::AsFd;

use netvm_netlink::{inside, nameless};

use crate::ends::PortEnds;
use crate::ports::{Hook, PortPrograms, ProgramError};
use crate::table::{Table, TableSize};

/// Index of the loopback interface, which every network namespace has.
const LOOPBACK: u32 = 1;

/// Attaches the programs in a network namespace that ends at once. Returns how.
///
/// # Errors
/// What the kernel refuses.
pub fn probe() -> Result<Hook, ProgramError> {
    let table = Table::new(TableSize { ports: 1, flows: 1 }).map_err(ProgramError::Place)?;
    let namespace = nameless().map_err(ProgramError::Place)?;
    let ends = PortEnds { slot: 0, veth: LOOPBACK, tap: LOOPBACK };
    let attach = || PortPrograms::attach(&table, &ends, Hook::allowed()).map(|programs| programs.hook());
    inside(namespace.as_fd(), attach).map_err(ProgramError::Place)?
}
