//! [`RuleNames`]: the names of the rules in records.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Names by the numbers that [`Decided`](crate::Decided) has.
pub(super) type Names = BTreeMap<u32, Arc<str>>;

/// The names of rules. Clones share them, so that the exporter has the latest.
#[derive(Clone, Debug, Default)]
pub struct RuleNames(Arc<Mutex<Arc<Names>>>);

impl RuleNames {
    /// Replaces them all.
    pub fn set(&self, names: BTreeMap<u32, Arc<str>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(names);
    }

    /// Those of now.
    pub(super) fn current(&self) -> Arc<Names> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
