// SPDX-License-Identifier: Apache-2.0
//! Compiles the rules of a configuration into lookup tables.

mod compilation;
mod ports;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dpdk::Eal;
use netvm_classifier::{Limits, Prefilter, Table};
use netvm_model::Host;
use netvm_policy::Flat;

use super::port::Lookup;
use super::{Policy, PolicyError};
use compilation::Compilation;

/// The table of a rule list and its prefilter.
type Built = (Arc<Table<Flat>>, Option<Prefilter>);

/// Compiles policies. Clones share the generation counter; any thread may use one.
#[derive(Clone, Debug)]
pub struct Compiler {
    eal: Eal,
    generation: Arc<AtomicU32>,
}

/// Why a compilation stopped.
enum Stop {
    Error(PolicyError),
    /// The changes exceed the overlay.
    TooMuch,
}

impl<T: Into<PolicyError>> From<T> for Stop {
    fn from(error: T) -> Self {
        Self::Error(error.into())
    }
}

impl Compiler {
    pub(crate) fn new(eal: Eal) -> Self {
        Self { eal, generation: Arc::default() }
    }

    /// Compiles all rules. For thousands of rules this takes a second or more, while packets continue to pass.
    ///
    /// # Errors
    /// [`PolicyError`] names what is too large.
    pub fn compile(&self, host: &Host, before: &Policy) -> Result<Policy, PolicyError> {
        let limits = Limits { memory: host.policy.memory as usize * (1 << 20), ..Limits::default() };
        let mut spent = 0;
        let build = |_: Option<&Lookup>, flats: &Arc<[Arc<Flat>]>| {
            let left = Limits { memory: limits.memory.saturating_sub(spent), ..limits };
            let table = Table::build(self.eal, Arc::clone(flats), &left)?;
            spent += table.classifier().bytes();
            let prefilter = Prefilter::build(&flats.iter().map(|flat| &flat.cubes).collect::<Vec<_>>());
            Ok((Arc::new(table), prefilter))
        };
        match Compilation::new(host, before, before, build).run(self.next_generation()) {
            Ok(policy) => Ok(policy),
            Err(Stop::Error(error)) => Err(error),
            // Only `carried_over` returns it.
            Err(Stop::TooMuch) => {
                Err(PolicyError::Memory { needed: spent >> 20, allowed: host.policy.memory as usize })
            }
        }
    }

    /// The policy for a host; reuses `before`, compiled for `running`, if its sources are the same.
    ///
    /// # Errors
    /// As [`Compiler::compile`].
    pub fn policy_for(
        &self,
        host: &Host,
        running: &Host,
        before: &Arc<Policy>,
    ) -> Result<Arc<Policy>, PolicyError> {
        if before.is_for(running) && Policy::same_sources(running, host) {
            return Ok(Arc::clone(before));
        }
        self.compile(host, before).map(Arc::new)
    }

    /// Compiles the changes since `before` as an overlay, in about a millisecond; `None` if there are too many.
    #[must_use]
    pub fn change(&self, host: &Host, before: &Policy) -> Option<Policy> {
        self.carried_over(host, before, before)
    }

    /// Adapts `compiled`, which was compiled for an older configuration, to `host`: changes become an overlay; token
    /// buckets and addresses come from `running`, the policy in force. `None` if there are too many changes.
    #[must_use]
    pub fn carried_over(&self, host: &Host, compiled: &Policy, running: &Policy) -> Option<Policy> {
        let build = |before: Option<&Lookup>, flats: &Arc<[Arc<Flat>]>| {
            let before = before.ok_or(Stop::TooMuch)?;
            let table = before.table.as_ref().and_then(|table| table.changed(Arc::clone(flats)));
            let old = before.prefilter.as_ref();
            let prefilter = old.and_then(|prefilter| prefilter.changed(before.list.flats(), flats));
            Ok((Arc::new(table.ok_or(Stop::TooMuch)?), prefilter))
        };
        let mut compilation = Compilation::new(host, running, compiled, build);
        // Fields that only deleted rules used keep distinguishing flows until the next full compilation.
        compilation.used = compiled.used;
        compilation.run(self.next_generation()).ok()
    }

    fn next_generation(&self) -> u32 {
        self.generation.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }
}
