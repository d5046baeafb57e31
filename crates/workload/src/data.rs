// SPDX-License-Identifier: Apache-2.0
//! Larger public sets, if the variable `NETVM_DATA` names a folder of them: `acl/*.rules` (ClassBench) and `pcap/*`
//! (captures). Tests take these besides the generated ones.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::PathBuf;

/// The variable.
pub const VARIABLE: &str = "NETVM_DATA";

/// The folder, if the variable is set.
#[must_use]
pub fn folder() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from)
}

/// The rule sets: name and text; the generated ones first.
///
/// # Errors
/// Of the file system.
pub fn filter_sets() -> io::Result<Vec<(String, String)>> {
    let mut sets = crate::rules::standard_sets();
    for path in files("acl")? {
        if path.extension() == Some(OsStr::new("rules")) {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            sets.push((format!("public {name}"), fs::read_to_string(&path)?));
        }
    }
    Ok(sets)
}

/// The public captures.
pub(crate) fn captures() -> io::Result<Vec<PathBuf>> {
    files("pcap")
}

/// The files of a folder in the folder of the variable, by name; none without the variable or the folder.
fn files(name: &str) -> io::Result<Vec<PathBuf>> {
    let Some(folder) = folder().map(|folder| folder.join(name)).filter(|folder| folder.is_dir()) else {
        return Ok(Vec::new());
    };
    let mut paths = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}
