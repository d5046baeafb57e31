// SPDX-License-Identifier: Apache-2.0
//! Writes the configuration file: first to a temporary file beside it, which is renamed when the change is in force.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

/// The configuration cannot be saved.
#[derive(Debug, thiserror::Error)]
#[error("cannot save {}: {source} (netvmd must be able to write its folder: `ReadWritePaths` of its service)", path.display())]
pub struct SaveError {
    path: PathBuf,
    source: io::Error,
}

/// A new configuration file under a temporary name.
#[derive(Debug)]
pub(super) struct Saving {
    path: PathBuf,
    beside: NamedTempFile,
}

impl Saving {
    /// Writes a file beside the configuration file, with its mode and owner.
    ///
    /// # Errors
    /// [`SaveError`]; nothing has changed.
    pub(super) fn prepare(config: &Path, text: &str) -> Result<Self, SaveError> {
        let failed = |source| SaveError { path: config.to_owned(), source };
        let write = || {
            // Follows a symbolic link, which stays.
            let path = fs::canonicalize(config)?;
            let metadata = fs::metadata(&path)?;
            let folder = path.parent().unwrap_or(Path::new("/"));
            let mut beside = Builder::new().prefix(".netvm-").suffix(".toml").tempfile_in(folder)?;
            beside.write_all(text.as_bytes())?;
            let file = beside.as_file();
            fchown(file, Some(metadata.uid()), Some(metadata.gid()))?;
            file.set_permissions(metadata.permissions())?;
            file.sync_all()?;
            Ok(Self { path, beside })
        };
        write().map_err(failed)
    }

    /// Renames the file to its final name.
    ///
    /// # Errors
    /// [`SaveError`].
    pub(super) fn commit(self) -> Result<PathBuf, SaveError> {
        match self.beside.persist(&self.path) {
            Ok(_) => Ok(self.path),
            Err(failed) => Err(SaveError { path: self.path, source: failed.error }),
        }
    }
}
