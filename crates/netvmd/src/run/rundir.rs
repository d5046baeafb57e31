// SPDX-License-Identifier: Apache-2.0
//! The run directory: locked by one daemon at a time, and cleared of a dead daemon's sockets.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use super::lock::{Lock, LockError};

/// Name of the lock file. It stays when the daemon ends; only the lock on it counts.
const LOCK: &str = "netvmd.lock";

/// The run directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// The directory or a file cannot be created.
    #[error("cannot use {path}: {source} (run netvmd as root, or choose another folder with --run-dir)")]
    Unusable {
        /// The directory or file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Another user could put files into it, and netvmd would trust them.
    #[error(
        "{path} {problem}, but netvmd trusts its contents: {remedy}, or choose another folder with {option}"
    )]
    Unsafe {
        /// The directory.
        path: PathBuf,
        /// What is wrong.
        problem: String,
        /// The remedy.
        remedy: String,
        /// The option that names the directory.
        option: &'static str,
    },
    /// Another netvmd runs.
    #[error("another netvmd{pid} uses {path}: stop it first, or choose another folder with --run-dir")]
    Taken {
        /// The run directory.
        path: PathBuf,
        /// The other's process, as ` (process 123)`; empty if unknown.
        pid: String,
    },
    /// The path of a socket is taken.
    #[error("{path} is {what}: remove it, or give another path")]
    InTheWay {
        /// The path.
        path: PathBuf,
        /// What is there.
        what: &'static str,
    },
}

fn unusable(path: &Path) -> impl FnOnce(io::Error) -> RunDirError {
    move |source| RunDirError::Unusable { path: path.to_owned(), source }
}

/// The locked run directory. Dropping it removes the sockets of [`RunDir::claim`].
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    lock: Lock,
    sockets: Vec<PathBuf>,
}

impl RunDir {
    /// Creates the directory if needed and locks it.
    ///
    /// # Errors
    /// [`RunDirError::Taken`] if another daemon holds the lock, [`RunDirError::Unsafe`] if another user owns the
    /// directory or may write to it, [`RunDirError::Unusable`] if it cannot be created.
    pub fn take(path: &Path) -> Result<Self, RunDirError> {
        if !path.is_dir() {
            fs::create_dir_all(path).map_err(unusable(path))?;
            fs::set_permissions(path, Permissions::from_mode(0o755)).map_err(unusable(path))?;
        }
        check_owner(path, "--run-dir")?;
        let lock_path = path.join(LOCK);
        let lock = Lock::take(&lock_path).map_err(|error| match error {
            LockError::Held(pid) => RunDirError::Taken {
                path: path.to_owned(),
                pid: pid.map_or(String::new(), |pid| format!(" (process {pid})")),
            },
            LockError::System(error) => unusable(&lock_path)(error),
        })?;
        Ok(Self { path: path.to_owned(), lock, sockets: Vec::new() })
    }

    /// The lock file, if this process also has a record lock (fcntl(2)) on it. The kernel releases that lock when this
    /// process ends, before it closes sockets, but also when this process opens the file again and closes it.
    pub fn record_lock(&self) -> Option<PathBuf> {
        self.lock.has_record_lock.then(|| self.path.join(LOCK))
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Prepares the path of a socket: removes a stale socket and creates the folder.
    ///
    /// # Errors
    /// [`RunDirError::InTheWay`] if the path is another kind of file or a served socket.
    pub fn claim(&mut self, socket: &Path) -> Result<(), RunDirError> {
        if let Some(folder) = socket.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::create_dir_all(folder).map_err(unusable(folder))?;
        }
        match fs::symlink_metadata(socket) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(unusable(socket)(error)),
            Ok(there) if !there.file_type().is_socket() => {
                return Err(RunDirError::InTheWay { path: socket.to_owned(), what: "not a socket" });
            }
            Ok(_) if is_served(socket) => {
                return Err(RunDirError::InTheWay {
                    path: socket.to_owned(),
                    what: "a socket that another process serves",
                });
            }
            Ok(_) => fs::remove_file(socket).map_err(unusable(socket))?,
        }
        self.sockets.push(socket.to_owned());
        Ok(())
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        for socket in &self.sockets {
            // The socket may not exist; a stale one is harmless.
            let _ = fs::remove_file(socket);
        }
    }
}

/// Refuses a directory that is a symbolic link, belongs to another user, or is writable for others.
pub(crate) fn check_owner(path: &Path, option: &'static str) -> Result<(), RunDirError> {
    let error = |problem: String, remedy: String| {
        Err(RunDirError::Unsafe { path: path.to_owned(), problem, remedy, option })
    };
    let there = fs::symlink_metadata(path).map_err(unusable(path))?;
    let (me, shown) = (rustix::process::geteuid().as_raw(), path.display());
    if there.is_symlink() {
        return error("is a symbolic link".to_owned(), "name the folder itself".to_owned());
    }
    if there.uid() != me && there.uid() != 0 {
        let owner = there.uid();
        return error(format!("belongs to user {owner}"), format!("remove it or `chown {me} {shown}`"));
    }
    if there.mode() & 0o022 != 0 {
        return error("is writable for other users".to_owned(), format!("`chmod go-w {shown}`"));
    }
    Ok(())
}

/// Whether a process listens on a socket of any type (EPROTOTYPE means another type).
fn is_served(socket: &Path) -> bool {
    match UnixStream::connect(socket) {
        Ok(_) => true,
        Err(error) => error.raw_os_error() == Some(libc::EPROTOTYPE) && netvm_attach::connect(socket).is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_excludes_a_second_daemon_and_ends_with_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run");
        let first = RunDir::take(&path).unwrap();
        let error = RunDir::take(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("(process {})", std::process::id())), "{error}");
        drop(first);
        RunDir::take(&path).unwrap();
    }

    #[test]
    fn a_folder_that_others_can_fill_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run");
        drop(RunDir::take(&path).unwrap());
        fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        let error = RunDir::take(&path).unwrap_err().to_string();
        assert!(error.contains("is writable for other users") && error.contains("chmod go-w"), "{error}");
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let error = RunDir::take(&link).unwrap_err().to_string();
        assert!(error.contains("is a symbolic link"), "{error}");
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
            let error = RunDir::take(&path).unwrap_err().to_string();
            assert!(error.contains("belongs to user 65534"), "{error}");
        }
    }

    #[test]
    fn stale_sockets_are_removed_and_served_ones_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run");
        let mut dir = RunDir::take(&path).unwrap();
        let (stale, packets) = (path.join("stale.sock"), path.join("packets.sock"));
        drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
        drop(netvm_attach::listen(&packets).unwrap());
        dir.claim(&stale).unwrap();
        dir.claim(&packets).unwrap();
        assert!(!stale.exists() && !packets.exists());

        let live = netvm_attach::listen(&packets).unwrap();
        assert!(matches!(dir.claim(&packets), Err(RunDirError::InTheWay { .. })));
        let _stream = std::os::unix::net::UnixListener::bind(&stale).unwrap();
        assert!(matches!(dir.claim(&stale), Err(RunDirError::InTheWay { .. })));
        fs::write(path.join("file"), "precious").unwrap();
        assert!(matches!(dir.claim(&path.join("file")), Err(RunDirError::InTheWay { .. })));
        drop((live, dir));
        assert!(!packets.exists(), "the daemon removes its sockets");
        assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "precious");
    }
}
