// SPDX-License-Identifier: Apache-2.0
//! Limits that hold for all workers together. Limits of ports, rules and interfaces are in the snapshot, which workers
//! share.

use netvm_clock as clock;
use netvm_switch::Policer;

use crate::router::DestinationLimit;

/// Answers to rejected packets per second.
const REJECTS_PER_SECOND: u64 = 1000;
/// Answers at once.
const REJECT_BURST: u64 = 100;

/// Limits of an engine.
#[derive(Debug)]
pub(crate) struct SharedLimits {
    /// Answers to rejected packets.
    pub(crate) rejects: Option<Policer>,
    /// Packets punted for unresolved neighbours.
    pub(crate) misses: DestinationLimit,
    /// Packets punted for redirects.
    pub(crate) redirects: DestinationLimit,
}

impl SharedLimits {
    pub(crate) fn new() -> Self {
        let hz = clock::cycles_in_micros(1_000_000);
        Self {
            rejects: Policer::new(REJECTS_PER_SECOND, REJECT_BURST, hz).ok(),
            misses: DestinationLimit::of_misses(hz),
            redirects: DestinationLimit::of_redirects(hz),
        }
    }
}
