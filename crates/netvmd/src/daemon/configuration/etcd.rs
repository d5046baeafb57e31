// SPDX-License-Identifier: Apache-2.0
//! What a host remembers of etcd over a restart, in its state directory: `etcd.json`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use netvm_fleet::{HostError, Revision};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

const FILE: &str = "etcd.json";

/// A configuration that did not do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BadRevision {
    pub(crate) revision: Revision,
    pub(crate) error: HostError,
}

/// What is remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EtcdMemory {
    /// The revision of the last good configuration, which is in the configuration file.
    #[serde(default)]
    pub(crate) running: Revision,
    /// The last one that was not healthy.
    #[serde(default)]
    pub(crate) bad: Option<BadRevision>,
    /// The text of one that takes a restart: netvmd starts with it, once.
    #[serde(default)]
    pub(crate) next: Option<String>,
    /// The revision of that text, or of the one with which netvmd has started last; 0: none.
    #[serde(default)]
    pub(crate) next_revision: Revision,
}

impl EtcdMemory {
    /// Whether netvmd has tried to start with a revision.
    pub(crate) fn has_started_with(&self, revision: Revision) -> bool {
        self.next.is_none() && self.next_revision == revision
    }
}

/// The file.
#[derive(Debug)]
pub(crate) struct EtcdStore {
    path: PathBuf,
    pub(crate) memory: EtcdMemory,
}

impl EtcdStore {
    pub(crate) fn open(state_dir: &Path) -> Self {
        let path = state_dir.join(FILE);
        let text = std::fs::read(&path).unwrap_or_default();
        Self { path, memory: serde_json::from_slice(&text).unwrap_or_default() }
    }

    /// Changes what is remembered. If the disk fails, a restart does some work again.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut EtcdMemory)) {
        change(&mut self.memory);
        if let Err(error) = self.write() {
            tracing::warn!("cannot write {}: {error}", self.path.display());
        }
    }

    fn write(&self) -> io::Result<()> {
        let mut file = NamedTempFile::new_in(self.path.parent().unwrap_or(Path::new(".")))?;
        serde_json::to_writer(&mut file, &self.memory)?;
        file.flush()?;
        file.as_file().sync_all()?;
        file.persist(&self.path).map(drop).map_err(|failed| failed.error)
    }
}

/// The configuration for this start alone, if there is one: a start that fails is not repeated with it.
pub(super) fn take_next(state_dir: &Path) -> Option<String> {
    let mut store = EtcdStore::open(state_dir);
    let next = store.memory.next.clone()?;
    store.change(|memory| memory.next = None);
    // Not if it could not be forgotten.
    EtcdStore::open(state_dir).memory.next.is_none().then_some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_there_after_a_restart_and_the_next_configuration_only_once() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(take_next(folder.path()), None);
        let mut store = EtcdStore::open(folder.path());
        store.change(|memory| (memory.running, memory.next) = (7, Some("# next".to_owned())));
        store.change(|memory| memory.next_revision = 8);
        assert!(!store.memory.has_started_with(8));
        assert_eq!(take_next(folder.path()).as_deref(), Some("# next"));
        assert_eq!(take_next(folder.path()), None);
        let memory = EtcdStore::open(folder.path()).memory;
        assert!(memory.running == 7 && memory.has_started_with(8) && !memory.has_started_with(7));
        std::fs::write(folder.path().join(FILE), "{").unwrap();
        assert_eq!(EtcdStore::open(folder.path()).memory, EtcdMemory::default());
    }
}
