//! Named network namespaces, where and as `ip netns` keeps them: a bind mount of the namespace on a file in `/run/netns`.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

/// Where `ip netns` looks.
const FOLDER: &str = "/run/netns";
/// `NSFS_MAGIC` of `linux/magic.h`: what a file is on that a namespace is mounted on.
const NSFS_MAGIC: i64 = 0x6e73_6673;

/// Why a namespace could not be had.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    /// The kernel said no.
    #[error("network namespace {name}: {what}: {source} (run netvmd as root, with CAP_SYS_ADMIN)")]
    System {
        /// Its name.
        name: String,
        /// What was being done.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Another netvmd has it.
    #[error(
        "network namespace {name} belongs to a router of another netvmd that runs: give this router another name"
    )]
    Taken {
        /// Its name.
        name: String,
    },
}

/// A namespace, locked against other daemons for as long as this is held. Dropping it leaves the namespace there.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    file: File,
}

impl Namespace {
    /// Takes the namespace of this name, or makes it; says whether it was there already.
    ///
    /// # Errors
    /// [`NamespaceError`].
    pub fn take(name: &str) -> Result<(Self, bool), NamespaceError> {
        let fail = |what| move |source| NamespaceError::System { name: name.to_owned(), what, source };
        let path = path_of(name);
        let mut file = open(&path).map_err(fail("looking for it"))?;
        let was_there = file.is_some();
        if !was_there {
            make(&path).map_err(fail("making it"))?;
            file = open(&path).map_err(fail("looking for it"))?;
        }
        let file = file.ok_or_else(|| fail("making it")(io::ErrorKind::NotFound.into()))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok((Self { name: name.to_owned(), file }, was_there)),
            Err(Errno::WOULDBLOCK) => Err(NamespaceError::Taken { name: name.to_owned() }),
            Err(error) => Err(fail("locking it")(error.into())),
        }
    }

    /// Its name, as for `ip netns exec`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs something inside, on a thread of its own, and waits for it.
    ///
    /// # Errors
    /// No thread, or it may not enter.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let enter = || {
            rustix::thread::move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(work())
        };
        on_a_thread(enter)?
    }

    /// Takes its name away. It lives on for as long as a process is inside.
    ///
    /// # Errors
    /// [`NamespaceError::System`].
    pub fn remove(self) -> Result<(), NamespaceError> {
        let path = path_of(&self.name);
        let fail = |source| NamespaceError::System { name: self.name.clone(), what: "removing it", source };
        rustix::mount::unmount(&path, UnmountFlags::DETACH).map_err(|error| fail(error.into()))?;
        fs::remove_file(&path).map_err(fail)
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn path_of(name: &str) -> PathBuf {
    Path::new(FOLDER).join(name)
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("netvm-netns".to_owned()).spawn_scoped(scope, work)?;
        thread.join().map_err(|_| io::Error::other("the thread inside has ended early"))
    })
}

/// The namespace mounted there. A file without one, as a crash between two steps leaves it, is removed.
fn open(path: &Path) -> io::Result<Option<File>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    #[allow(clippy::useless_conversion, reason = "the type of f_type differs between architectures")]
    if i64::try_from(rustix::fs::fstatfs(&file)?.f_type) == Ok(NSFS_MAGIC) {
        return Ok(Some(file));
    }
    fs::remove_file(path)?;
    Ok(None)
}

fn make(path: &Path) -> io::Result<()> {
    share_folder()?;
    OpenOptions::new().write(true).create_new(true).open(path)?;
    let made = on_a_thread(|| -> io::Result<()> {
        // SAFETY: unsafe is only the unsharing of file descriptors, which is not asked for. This thread ends at once, so
        // nobody else finds itself in the new namespace.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET)? };
        Ok(rustix::mount::mount_bind("/proc/thread-self/ns/net", path)?)
    })
    .flatten();
    if made.is_err() {
        // What was wrong is said already.
        let _ = fs::remove_file(path);
    }
    made
}

/// Sees to it that namespaces mounted here are seen, and go, in every mount namespace, as `ip netns add` does.
fn share_folder() -> io::Result<()> {
    fs::create_dir_all(FOLDER)?;
    let shared = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    match rustix::mount::mount_change(FOLDER, shared) {
        // It is no mount point yet.
        Err(Errno::INVAL) => {
            rustix::mount::mount_bind_recursive(FOLDER, FOLDER)?;
            Ok(rustix::mount::mount_change(FOLDER, shared)?)
        }
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_made_taken_over_and_removed() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP: only root makes namespaces");
            return;
        }
        let name = format!("netvm-test-{}", std::process::id());
        let (made, was_there) = Namespace::take(&name).unwrap();
        assert!(!was_there);
        assert!(matches!(Namespace::take(&name), Err(NamespaceError::Taken { .. })));
        let devices = || fs::read_to_string("/proc/thread-self/net/dev").unwrap().lines().count();
        assert_eq!(made.inside(devices).unwrap(), 3, "two lines of heading, and lo");
        drop(made);
        let (taken, was_there) = Namespace::take(&name).unwrap();
        assert!(was_there);
        taken.remove().unwrap();
        assert!(!path_of(&name).exists());
        // What a crash between two steps leaves behind.
        fs::write(path_of(&name), "").unwrap();
        let (again, was_there) = Namespace::take(&name).unwrap();
        assert!(!was_there);
        again.remove().unwrap();
    }
}
