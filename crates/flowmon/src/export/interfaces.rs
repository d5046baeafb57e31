// SPDX-License-Identifier: Apache-2.0
//! [`Interfaces`]: the names of the ports by which records came in.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What users call a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

impl Interface {
    /// `app=web tier=front`.
    pub(super) fn description(&self) -> String {
        self.labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
    }
}

/// Interfaces by the numbers that records have.
pub(super) type Numbered = BTreeMap<u16, Interface>;

/// The names of interfaces. Clones share them, so that the exporter has the latest.
#[derive(Clone, Debug, Default)]
pub struct Interfaces(Arc<Mutex<Arc<Numbered>>>);

impl Interfaces {
    /// Says which interfaces there are now. One that is gone keeps its name, as its last records are still to come,
    /// until another has its number.
    pub fn set(&self, interfaces: BTreeMap<u16, Interface>) {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = Numbered::clone(&shared);
        all.extend(interfaces);
        *shared = Arc::new(all);
    }

    /// The interfaces of now.
    pub(super) fn current(&self) -> Arc<Numbered> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
