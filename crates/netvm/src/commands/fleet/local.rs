// SPDX-License-Identifier: Apache-2.0
//! The files of a fleet: a folder with `hosts/NAME.toml` and `fragments/NAME.toml`, or the file of one host.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use netvm_fleet::HostName;

use crate::error::FleetError;

/// A file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LocalFile {
    pub(super) path: String,
    pub(super) text: String,
}

/// The files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Local {
    pub(super) hosts: BTreeMap<HostName, LocalFile>,
    pub(super) fragments: BTreeMap<String, LocalFile>,
}

impl Local {
    pub(super) fn read(path: &Path) -> Result<Self, FleetError> {
        let mut local = Self::default();
        if path.is_file() {
            local.hosts.insert(name(path)?, read(path)?);
            return Ok(local);
        }
        for file in files(&path.join("hosts"))? {
            local.hosts.insert(name(&file)?, read(&file)?);
        }
        if local.hosts.is_empty() {
            return Err(FleetError::NoHosts(path.to_owned()));
        }
        for file in files(&path.join("fragments"))? {
            // Fragments have the names that hosts may have.
            local.fragments.insert(name(&file)?.to_string(), read(&file)?);
        }
        Ok(local)
    }
}

/// The TOML files of a folder; none if there is no such folder.
fn files(folder: &Path) -> Result<Vec<PathBuf>, FleetError> {
    let failed = |source| FleetError::Read { path: folder.to_owned(), source };
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let paths: Result<Vec<PathBuf>, _> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
    let is_toml = |path: &PathBuf| path.extension().is_some_and(|end| end == "toml");
    Ok(paths.map_err(failed)?.into_iter().filter(is_toml).collect())
}

/// The name that a file gives.
fn name(path: &Path) -> Result<HostName, FleetError> {
    let wrong = |why: String| FleetError::Name { path: path.to_owned(), why };
    if path.extension().is_none_or(|end| end != "toml") {
        return Err(wrong("it is not".to_owned()));
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    stem.parse().map_err(|error: <HostName as std::str::FromStr>::Err| wrong(error.to_string()))
}

fn read(path: &Path) -> Result<LocalFile, FleetError> {
    let failed = |source| FleetError::Read { path: path.to_owned(), source };
    let text = fs::read_to_string(path).map_err(failed)?;
    Ok(LocalFile { path: path.display().to_string(), text })
}
