// SPDX-License-Identifier: Apache-2.0
//! The targets of NAT rules that do not answer. In: what netvmd finds out, at any time. Out: a flag for each target,
//! which the rules of all snapshots share, so that a target that fails needs no new snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use netvm_model::{CheckedTarget, Host};

/// Whether a target is down. The manager writes it, and workers read it once a connection: none of them waits for
/// another, and what a worker sees late by a moment costs one connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct DownFlag(Arc<AtomicBool>);

impl DownFlag {
    pub(crate) fn is_down(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, is_down: bool) {
        self.0.store(is_down, Ordering::Relaxed);
    }
}

/// The flags of all targets that are checked.
#[derive(Debug, Default)]
pub(crate) struct TargetHealth {
    flags: BTreeMap<CheckedTarget, DownFlag>,
}

impl TargetHealth {
    /// Follows a new host: a target that stays keeps its flag, and a new one counts as healthy.
    pub(crate) fn follow(&mut self, host: &Host) {
        let checked = host.checked_targets();
        self.flags.retain(|target, _| checked.contains_key(target));
        for target in checked.into_keys() {
            self.flags.entry(target).or_default();
        }
    }

    /// Notes whether a target is healthy; a target that is not checked any more has no flag.
    pub(crate) fn set(&self, target: &CheckedTarget, is_healthy: bool) {
        if let Some(flag) = self.flags.get(target) {
            flag.set(!is_healthy);
        }
    }

    /// The flag of a target.
    pub(crate) fn flag(&self, target: &CheckedTarget) -> Option<DownFlag> {
        self.flags.get(target).cloned()
    }
}
