// SPDX-License-Identifier: Apache-2.0
//! The state directory: every applied configuration as `history/N.json`, and the change that waits for its confirmation
//! as `unconfirmed.json`.

use std::fs;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::SystemTime;

use netvm_api::{Revision, RevisionInfo};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::runtime::lock;

/// Most revisions to keep.
const MAX_REVISIONS: usize = 100;
/// Largest number of a revision: the largest integer that every reader of JSON reads exactly. Files with larger numbers
/// are not netvmd's.
const MAX_NUMBER: u64 = (1 << 53) - 1;
const FOLDER: &str = "history";
const UNCONFIRMED: &str = "unconfirmed.json";

/// An applied change that was not confirmed, or not yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Unconfirmed {
    /// The configuration before it.
    pub(super) previous: String,
    /// The text of the change.
    pub(super) tried: String,
}

/// The state directory. netvmd logs write errors, which do not prevent a change.
#[derive(Debug)]
pub(crate) struct History {
    folder: PathBuf,
    last: Mutex<Option<RevisionInfo>>,
}

impl History {
    /// Creates the directory if it is missing.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder.join(FOLDER))?;
        Ok(Self { folder: folder.to_owned(), last: Mutex::default() })
    }

    /// Records the configuration in force, unless it equals the last revision.
    pub(in crate::daemon) fn record(&self, source: &str, how: &str, toml: &str) {
        let last = self.numbers().last().copied().unwrap_or_default();
        let before: Option<Revision> = read(&self.path(last)).ok();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let is_same =
            before.as_ref().is_some_and(|before| before.toml == toml && before.info.source == source);
        let number = if is_same { last } else { (last + 1).min(MAX_NUMBER) };
        let info = RevisionInfo {
            number,
            source: source.to_owned(),
            how: how.to_owned(),
            applied_at: now.as_secs(),
        };
        if !is_same {
            let revision = Revision { info: info.clone(), toml: toml.to_owned() };
            if let Err(error) = write(&self.path(number), &revision) {
                tracing::warn!("cannot record the configuration in {}: {error}", self.folder.display());
            }
            let numbers = self.numbers();
            for old in &numbers[..numbers.len().saturating_sub(MAX_REVISIONS)] {
                // If this fails, the next revision tries again.
                let _ = fs::remove_file(self.path(*old));
            }
        }
        *lock(&self.last) = Some(info);
    }

    /// The revision in force.
    pub(crate) fn last(&self) -> Option<RevisionInfo> {
        lock(&self.last).clone()
    }

    /// All revisions, the last one first.
    pub(crate) fn all(&self) -> Vec<RevisionInfo> {
        let revisions = self.numbers().into_iter().rev().filter_map(|number| self.get(number));
        revisions.map(|revision| revision.info).collect()
    }

    pub(crate) fn get(&self, number: u64) -> Option<Revision> {
        read(&self.path(number)).ok()
    }

    /// Saves a change before it is made; `None` when it has been confirmed.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn set_unconfirmed(&self, change: Option<&Unconfirmed>) -> io::Result<()> {
        let path = self.folder.join(UNCONFIRMED);
        match change {
            Some(change) => write(&path, change),
            None => match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            },
        }
    }

    pub(super) fn unconfirmed(&self) -> Option<Unconfirmed> {
        Self::unconfirmed_in(&self.folder)
    }

    /// The unconfirmed change in a state directory that may be missing.
    pub(super) fn unconfirmed_in(folder: &Path) -> Option<Unconfirmed> {
        read(&folder.join(UNCONFIRMED)).ok()
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(FOLDER).join(format!("{number}.json"))
    }

    fn numbers(&self) -> Vec<u64> {
        let entries = fs::read_dir(self.folder.join(FOLDER)).into_iter().flatten().flatten();
        let number =
            |name: &str| name.strip_suffix(".json")?.parse().ok().filter(|number| *number <= MAX_NUMBER);
        let mut numbers: Vec<u64> = entries.filter_map(|entry| number(entry.file_name().to_str()?)).collect();
        numbers.sort_unstable();
        numbers
    }
}

pub(super) fn read<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

/// Replaces a file atomically. Only its owner can read it, because configurations may hold secrets.
pub(super) fn write<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    replace(path, write_beside(path, value)?)
}

/// Writes what is to replace a file, on the disk beside it.
pub(super) fn write_beside<T: Serialize>(path: &Path, value: &T) -> io::Result<NamedTempFile> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = BufWriter::new(NamedTempFile::new_in(folder)?);
    serde_json::to_writer(&mut file, value)?;
    let file = file.into_inner()?;
    file.as_file().sync_all()?;
    Ok(file)
}

/// Replaces a file by one that was written beside it.
pub(super) fn replace(path: &Path, by: NamedTempFile) -> io::Result<()> {
    by.persist(path).map(drop).map_err(|failed| failed.error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_are_numbered_and_limited() {
        let folder = tempfile::tempdir().unwrap();
        let history = History::open(folder.path()).unwrap();
        assert!(history.all().is_empty() && history.last().is_none());
        for n in 0..MAX_REVISIONS + 5 {
            history.record("a.toml", "apply", &format!("# {n}"));
            history.record("a.toml", "restart", &format!("# {n}"));
        }
        let all = history.all();
        assert_eq!((all.len(), all[0].number, all[MAX_REVISIONS - 1].number), (MAX_REVISIONS, 105, 6));
        assert_eq!((history.get(6).unwrap().toml.as_str(), history.get(5)), ("# 5", None));
        assert_eq!(history.last().unwrap().how, "restart");
        // Another daemon goes on from there; damaged files are skipped.
        fs::write(folder.path().join("history/50.json"), "{").unwrap();
        let history = History::open(folder.path()).unwrap();
        history.record("b.toml", "start", "# b");
        assert_eq!((history.all()[0].number, history.get(50)), (106, None));
        // So are those that no netvmd has written.
        for other in ["18446744073709551615", "18446744073709551616", "-1", "9007199254740992"] {
            fs::write(folder.path().join(format!("history/{other}.json")), "{}").unwrap();
        }
        history.record("b.toml", "apply", "# c");
        assert_eq!((history.all()[0].number, history.get(107).unwrap().toml.as_str()), (107, "# c"));
    }

    #[test]
    fn an_unconfirmed_change_is_remembered_until_it_is_confirmed() {
        let folder = tempfile::tempdir().unwrap();
        let history = History::open(folder.path()).unwrap();
        let change = Unconfirmed { previous: "a".to_owned(), tried: "b".to_owned() };
        history.set_unconfirmed(Some(&change)).unwrap();
        assert_eq!(History::open(folder.path()).unwrap().unconfirmed(), Some(change));
        history.set_unconfirmed(None).unwrap();
        history.set_unconfirmed(None).unwrap();
        assert_eq!(history.unconfirmed(), None);
    }
}
