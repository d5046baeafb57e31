// SPDX-License-Identifier: Apache-2.0
//! Errors and warnings about the host as a whole. Each check gets the host and the file, whose items are in the same
//! order.

use netvm_model::Host;

use crate::syntax::file_table::FileTable;
use crate::syntax::finding::Findings;

mod addresses;
mod chains;
mod devices;
mod memory;
mod placement;
mod routers;
mod rules;
mod shares;
mod vms;

/// Runs every check.
pub(crate) fn all(findings: &Findings, file: &FileTable<'_>, host: &Host) {
    devices::check(findings, file, host);
    addresses::check(findings, file, host);
    memory::check(findings, file, host);
    placement::check(findings, file, host);
    chains::check(findings, file, host);
    routers::check(findings, file, host);
    rules::check(findings, file, host);
    shares::check(findings, file, host);
    vms::check(findings, file, host);
}
