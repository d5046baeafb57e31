//! The files of a replay: `-` is standard input or output, and a replay that fails leaves the output as it was.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile, TempPath};

/// A capture to read. A replay reads it twice, so standard input is copied to a file.
pub(super) struct Input {
    path: PathBuf,
    _stored: Option<TempPath>,
}

/// A capture to write.
pub(super) struct Output {
    wanted: PathBuf,
    /// A temporary file beside the output, renamed at the end; `None` for a device or pipe, which is written directly.
    beside: Option<NamedTempFile>,
}

fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

impl Input {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let is_pipe = fs::metadata(path).is_ok_and(|at| !at.is_file());
        if !is_standard(path) && !is_pipe {
            return Ok(Self { path: path.to_owned(), _stored: None });
        }
        let mut stored = NamedTempFile::with_prefix("netvm-replay-")?;
        if is_standard(path) {
            io::copy(&mut io::stdin().lock(), &mut stored)?;
        } else {
            io::copy(&mut File::open(path)?, &mut stored)?;
        }
        let stored = stored.into_temp_path();
        Ok(Self { path: stored.to_path_buf(), _stored: Some(stored) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Output {
    pub(super) fn create(wanted: &Path) -> io::Result<Self> {
        let there = fs::metadata(wanted).ok().filter(|_| !is_standard(wanted));
        if there.as_ref().is_some_and(|there| !there.is_file()) {
            return Ok(Self { wanted: wanted.to_owned(), beside: None });
        }
        // The format follows from the name.
        let suffix = wanted.extension().map(|extension| format!(".{}", extension.to_string_lossy()));
        let mode = there.map_or(0o666, |there| there.permissions().mode() & 0o777);
        let mut builder = Builder::new();
        builder.prefix(".netvm-replay-").suffix(suffix.as_deref().unwrap_or(".pcap"));
        builder.permissions(Permissions::from_mode(mode));
        let folder = wanted.parent().filter(|folder| !folder.as_os_str().is_empty());
        let beside = match folder {
            _ if is_standard(wanted) => builder.tempfile()?,
            Some(folder) => builder.tempfile_in(folder)?,
            None => builder.tempfile_in(".")?,
        };
        Ok(Self { wanted: wanted.to_owned(), beside: Some(beside) })
    }

    /// The file to write.
    pub(super) fn path(&self) -> &Path {
        self.beside.as_ref().map_or(&self.wanted, NamedTempFile::path)
    }

    /// Renames the temporary file to the output.
    pub(super) fn finish(self) -> io::Result<()> {
        match self.beside {
            None => Ok(()),
            Some(beside) if is_standard(&self.wanted) => {
                // Another descriptor wrote the file, so it is opened again for reading.
                io::copy(&mut File::open(beside.path())?, &mut io::stdout().lock()).map(drop)
            }
            Some(beside) => beside.persist(&self.wanted).map(drop).map_err(|failed| failed.error),
        }
    }
}
