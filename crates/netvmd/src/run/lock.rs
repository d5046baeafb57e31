// SPDX-License-Identifier: Apache-2.0
//! The lock of a run directory. In: the directory. Out: a file that one netvmd at a time has locked.
//!
//! A lock of flock(2) needs no more than permission to open the file, and a shared record lock no more than to read it.
//! So only the file's owner may open it: else every user could lock it, and keep the next netvmd from starting. netvmd
//! replaces a file that others may open, such as one of an earlier version, because they may have it open already.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// Rights of the lock file.
const MODE: u32 = 0o600;
/// How often the file may be replaced while it is being locked.
const ATTEMPTS: usize = 8;

/// Why the lock is not held.
#[derive(Debug)]
pub(super) enum LockError {
    /// Another process holds it; `Some`: the process in the file.
    Held(Option<u32>),
    System(io::Error),
}

impl From<io::Error> for LockError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// The locked file.
#[derive(Debug)]
pub(super) struct Lock {
    /// Locked while open. Close-on-exec, so that no NF inherits it.
    _file: File,
    /// Whether this process also has a record lock (fcntl(2)) on it.
    pub(super) has_record_lock: bool,
}

impl Lock {
    /// Locks the file, and writes this process's id into it.
    ///
    /// # Errors
    /// [`LockError::Held`] if another netvmd has locked it.
    pub(super) fn take(path: &Path) -> Result<Self, LockError> {
        for _ in 0..ATTEMPTS {
            let file = open(path)?;
            let is_private = file.metadata()?.mode() & 0o077 == 0;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // Another netvmd has replaced it meanwhile.
                Ok(()) if !is_at(&file, path)? => {}
                Ok(()) if is_private => return Ok(Self::of(file)?),
                // No netvmd has it locked, as this one has.
                Ok(()) => replace(&file, path)?,
                Err(Errno::WOULDBLOCK) if !is_private && is_held_by_others(&file)? => replace(&file, path)?,
                Err(Errno::WOULDBLOCK) => return Err(LockError::Held(holder(file))),
                Err(error) => return Err(LockError::System(error.into())),
            }
        }
        Err(LockError::Held(None))
    }

    fn of(mut file: File) -> io::Result<Self> {
        let has_record_lock = rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())?;
        Ok(Self { _file: file, has_record_lock })
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(MODE).custom_flags(libc::O_NOFOLLOW);
    options.open(path)
}

fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let held = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(there) => Ok((held.dev(), held.ino()) == (there.dev(), there.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Puts a file that only its owner may open in place of `file`, the lock file that is there. Does nothing if another
/// netvmd does so at the same time.
fn replace(file: &File, path: &Path) -> io::Result<()> {
    let fresh_path = path.with_extension("new");
    let created = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&fresh_path);
    let is_new = created.is_ok();
    let fresh = match created {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => File::open(&fresh_path)?,
        created => created?,
    };
    // The netvmd that has locked the new file may rename it.
    let is_locked = rustix::fs::flock(&fresh, FlockOperation::NonBlockingLockExclusive).is_ok();
    if !is_locked || !is_at(&fresh, &fresh_path)? {
        return Ok(());
    }
    if !is_new || !is_at(file, path)? {
        // One that a killed netvmd left, or another netvmd was faster.
        return fs::remove_file(fresh_path);
    }
    // Also if the umask takes rights away.
    fresh.set_permissions(Permissions::from_mode(MODE))?;
    fs::rename(fresh_path, path)
}

/// The process that a netvmd has written into the file, for messages; it may not have done so yet.
fn holder(mut file: File) -> Option<u32> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Whether only processes of users who could not have started netvmd here have locked the file, by `/proc/locks`
/// (proc(5)): neither root nor this process's user.
fn is_held_by_others(file: &File) -> io::Result<bool> {
    let metadata = file.metadata()?;
    let (major, minor) = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
    let place = format!("{major:02x}:{minor:02x}:{}", metadata.ino());
    let locks = fs::read_to_string("/proc/locks")?;
    let me = rustix::process::geteuid().as_raw();
    // "1: FLOCK  ADVISORY  WRITE 1234 00:1c:567 0 EOF"; waiting ones have "->" after the number.
    let holders = locks.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words.get(1) == Some(&"FLOCK") && words.get(5) == Some(&place.as_str())).then_some(*words.get(4)?)
    });
    let mut is_held = false;
    for pid in holders {
        is_held = true;
        let owner = fs::metadata(format!("/proc/{pid}")).map(|folder| folder.uid());
        if owner.is_ok_and(|uid| uid == 0 || uid == me) || pid.parse::<u32>().is_err() {
            return Ok(false);
        }
    }
    Ok(is_held)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    /// What `attempt` gives once nothing holds the lock. A process that another test starts at the same time keeps
    /// every lock of this one from its fork to its exec.
    fn once_free<T>(attempt: impl FnMut() -> Option<T>) -> T {
        netvm_testing::until_some("the lock is free", attempt)
    }

    #[test]
    fn no_other_user_can_open_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("netvmd.lock");
        let lock = Lock::take(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
        assert!(matches!(Lock::take(&path), Err(LockError::Held(Some(pid))) if pid == std::process::id()));
        drop(lock);
        // One of an earlier version, which somebody has open.
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let open = File::open(&path).unwrap();
        let _lock = once_free(|| Lock::take(&path).ok());
        assert_eq!(mode(&path), 0o600);
        once_free(|| rustix::fs::flock(&open, FlockOperation::NonBlockingLockExclusive).ok());
        assert!(!is_at(&open, &path).unwrap());
    }

    #[test]
    fn a_lock_that_another_user_holds_does_not_count() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIP: needs root to act as another user");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let path = folder.path().join("netvmd.lock");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let mut flock = Command::new("flock");
        flock.arg(&path).args(["sh", "-c", "echo locked; exec sleep 60"]).uid(65534).gid(65534);
        let mut other = flock.stdout(Stdio::piped()).spawn().unwrap();
        let mut said = [0; 6];
        other.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
        let _lock = Lock::take(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
