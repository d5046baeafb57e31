// SPDX-License-Identifier: Apache-2.0
//! Finds the program that the first word of an NF's `command` names.

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::account::Account;

/// A program cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The path is relative.
    #[error("`{0}` is a relative path, but NFs start in /: give an absolute path or a bare name")]
    Relative(String),
    /// The program does not exist.
    #[error("no program `{name}` (searched {looked}): install it, or give its absolute path")]
    Missing {
        /// The name in the configuration.
        name: String,
        /// The places searched.
        looked: String,
    },
    /// The user may not execute it.
    #[error("uid {uid} cannot execute {path}: chmod a+x it, or name another user")]
    NotExecutable {
        /// The file.
        path: PathBuf,
        /// The user.
        uid: u32,
    },
    /// It cannot be opened.
    #[error("{path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

/// An executable program.
#[derive(Debug)]
pub struct Program {
    path: PathBuf,
    /// The open file, if the user may execute it but may not search its folder, such as a folder in another user's
    /// home.
    file: Option<File>,
}

impl Program {
    /// Finds a program: an absolute path as it is, a bare name beside netvmd's executable, then in `PATH`. `account`:
    /// the user that will execute it; `None` for netvmd's user.
    ///
    /// # Errors
    /// [`ProgramError`].
    pub fn find(name: &str, account: Option<Account>) -> Result<Self, ProgramError> {
        let path = locate(name)?;
        let unreadable = |source| ProgramError::Unreadable { path: path.clone(), source };
        let metadata = fs::metadata(&path).map_err(unreadable)?;
        let own =
            Account { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() };
        let account = account.unwrap_or(own);
        if !metadata.is_file() || !may_execute(&metadata, account) {
            return Err(ProgramError::NotExecutable { path, uid: account.uid });
        }
        let reachable = fs::canonicalize(&path)
            .map_err(unreadable)?
            .ancestors()
            .skip(1)
            .all(|folder| fs::metadata(folder).is_ok_and(|metadata| may_execute(&metadata, account)));
        let open = || OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(&path);
        let file = if reachable || account == own { None } else { Some(open().map_err(unreadable)?) };
        Ok(Self { path, file })
    }

    /// The path, for messages.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path to execute in a child of this process.
    #[must_use]
    pub fn to_execute(&self) -> PathBuf {
        match &self.file {
            Some(file) => PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())),
            None => self.path.clone(),
        }
    }
}

fn locate(name: &str) -> Result<PathBuf, ProgramError> {
    let given = Path::new(name);
    let missing = |looked: String| ProgramError::Missing { name: name.to_owned(), looked };
    if given.is_absolute() {
        return if given.exists() { Ok(given.to_owned()) } else { Err(missing("this path".to_owned())) };
    }
    if name.is_empty() || name.contains('/') {
        return Err(ProgramError::Relative(name.to_owned()));
    }
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_owned()));
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    let folders: Vec<PathBuf> = beside.into_iter().chain(std::env::split_paths(&path)).collect();
    let found = folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
    let looked = || folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", ");
    found.ok_or_else(|| missing(looked()))
}

/// Whether a file's mode lets a user execute the file or search the folder.
fn may_execute(metadata: &Metadata, account: Account) -> bool {
    match account {
        Account { uid: 0, .. } if !metadata.is_dir() => metadata.mode() & 0o111 != 0,
        account => may_use(metadata, account, 0o1),
    }
}

/// Whether a file's mode grants a user all of these rights (4 read, 2 write, 1 execute or search).
pub(crate) fn may_use(metadata: &Metadata, account: Account, rights: u32) -> bool {
    let shift = match account {
        Account { uid: 0, .. } => return true,
        Account { uid, .. } if uid == metadata.uid() => 6,
        Account { gid, .. } if gid == metadata.gid() => 3,
        Account { .. } => 0,
    };
    metadata.mode() >> shift & rights == rights
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const SOMEBODY: Option<Account> = Some(Account { uid: 3_999_999, gid: 3_999_999 });

    #[test]
    fn programs_are_found_by_path_beside_netvmd_and_in_path() {
        assert_eq!(Program::find("/bin/sh", SOMEBODY).unwrap().path(), Path::new("/bin/sh"));
        assert!(Program::find("sh", SOMEBODY).unwrap().path().is_absolute());
        let own = std::env::current_exe().unwrap();
        let name = own.file_name().unwrap().to_str().unwrap();
        assert_eq!(Program::find(name, None).unwrap().path(), own);
    }

    #[test]
    fn errors_name_the_program() {
        for (name, word) in [
            ("/nonexistent/nf", "no program `/nonexistent/nf`"),
            ("no-such-nf", "searched /"),
            ("./nf", "relative path"),
            ("", "relative path"),
            ("/etc/passwd", "cannot execute"),
            ("/etc", "cannot execute"),
        ] {
            let error = Program::find(name, SOMEBODY).unwrap_err().to_string();
            assert!(error.contains(word), "{name}: {error}");
        }
    }

    #[test]
    fn a_program_in_a_private_folder_is_executed_by_its_descriptor() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP: only root can open a file in another user's private folder");
            return;
        }
        let folder = std::env::temp_dir().join(format!("netvmd-program-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        let path = folder.join("true");
        fs::copy("/bin/true", &path).unwrap();
        let closed = Program::find(path.to_str().unwrap(), SOMEBODY).unwrap();
        assert!(closed.to_execute().starts_with("/proc/self/fd"), "{closed:?}");
        assert_eq!(Program::find(path.to_str().unwrap(), None).unwrap().to_execute(), path);
        fs::remove_dir_all(&folder).unwrap();
    }
}
