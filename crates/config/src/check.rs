//! What only the whole file can be wrong in. The host and the raw file have the same items in the same order here.

use crate::finding::Findings;
use crate::model::Host;
use crate::raw::RawHost;

mod chains;
mod devices;
mod memory;
mod routers;
mod rules;
mod vms;

/// Finds everything.
pub(crate) fn all(findings: &Findings, raw: &RawHost, host: &Host) {
    devices::check(findings, raw, host);
    memory::check(findings, raw, host);
    chains::check(findings, raw, host);
    routers::check(findings, raw, host);
    rules::check(findings, raw, host);
    vms::check(findings, raw, host);
}
