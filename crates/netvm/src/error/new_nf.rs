// SPDX-License-Identifier: Apache-2.0
//! Errors of `netvm new-nf`.

use std::io;
use std::path::{Path, PathBuf};

/// No project was made.
#[derive(Debug, thiserror::Error)]
pub enum NewNfError {
    /// The name cannot be the name of an NF.
    #[error("`{0}` is not a name for an NF: use 1 to 32 of a-z, 0-9 and `-`, beginning with a letter")]
    Name(String),
    /// The name has another meaning for the compiler.
    #[error("`{0}` is a keyword of a compiler or a library of the project: choose another name")]
    Reserved(String),
    /// A file or folder with this name exists.
    #[error("{} exists: choose another name, or another folder with --into", .0.display())]
    Exists(PathBuf),
    /// netvm's sources are missing.
    #[error(
        "no netvm sources {}: a project in {language} builds netlib from them. Install libnetlib-dev, or name a checkout with --sources",
        sources_place(.sources.as_deref())
    )]
    NoSources {
        /// The folder that the user gave.
        sources: Option<PathBuf>,
        /// The language.
        language: String,
    },
    /// A file or folder cannot be created.
    #[error("cannot create {}: {source}", path.display())]
    Io {
        /// Which one.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

fn sources_place(sources: Option<&Path>) -> String {
    match sources {
        Some(folder) => format!("in {}", folder.display()),
        None => "beside this program or in ../share/netvm/src".to_owned(),
    }
}
