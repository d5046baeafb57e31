// SPDX-License-Identifier: Apache-2.0
//! [`RuleNames`]: the names of the rules in records.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::entry::Decided;

/// Names by the numbers that [`Decided`](crate::Decided) has.
pub(super) type Names = BTreeMap<u32, Arc<str>>;

/// The name of the rule that decided. Of a rule that has no name (yet), its number.
pub(super) fn name_of(names: &Names, decided: Decided) -> Option<Arc<str>> {
    let number = decided.rule.checked_sub(1)?;
    Some(names.get(&decided.rule).map_or_else(|| number.to_string().into(), Arc::clone))
}

/// The names of rules. Clones share them, so that the exporter has the latest.
#[derive(Clone, Debug, Default)]
pub struct RuleNames(Arc<Mutex<Arc<Names>>>);

impl RuleNames {
    /// Replaces them all.
    pub fn set(&self, names: BTreeMap<u32, Arc<str>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(names);
    }

    /// The names of now.
    pub(super) fn current(&self) -> Arc<Names> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
