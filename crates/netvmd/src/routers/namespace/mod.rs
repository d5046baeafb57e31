// SPDX-License-Identifier: Apache-2.0
//! Named network namespaces, as `ip netns` creates them: bind mounts on files in `/run/netns`.

mod claim;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::thread::UnshareFlags;

/// The folder of `ip netns`.
const FOLDER: &str = "/run/netns";
/// `NSFS_MAGIC` of `linux/magic.h`: file system of a mounted namespace.
const NSFS_MAGIC: i64 = 0x6e73_6673;

/// A namespace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    /// A system call failed.
    #[error("network namespace {name}: {what}: {source} (run netvmd as root, with CAP_SYS_ADMIN)")]
    System {
        /// The namespace's name.
        name: String,
        /// The step that failed.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// Its name is another namespace's.
    #[error(
        "the name {name} now is another network namespace's: `ip netns del {name}` removes that one, and netvmd then gives \
         the name back to the router's"
    )]
    Replaced {
        /// The name.
        name: String,
    },
    /// Another netvmd holds it.
    #[error(
        "network namespace {name} belongs to a router of another running netvmd: give this router another name"
    )]
    Taken {
        /// The namespace's name.
        name: String,
    },
}

/// A namespace, claimed against other daemons until dropped. Dropping does not remove it.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    file: File,
    /// Keeps other daemons away while it is open.
    _claim: File,
}

impl Namespace {
    /// Opens or creates a namespace and claims it. The boolean says whether it existed.
    ///
    /// # Errors
    /// [`NamespaceError`].
    pub fn take(name: &str) -> Result<(Self, bool), NamespaceError> {
        let fail = |what| move |source| NamespaceError::System { name: name.to_owned(), what, source };
        let path = path_of(name);
        let mut file = open(&path).map_err(fail("cannot look it up"))?;
        let existed = file.is_some();
        if !existed {
            make(&path).map_err(fail("cannot create it"))?;
            file = open(&path).map_err(fail("cannot look it up"))?;
        }
        let file = file.ok_or_else(|| fail("cannot create it")(io::ErrorKind::NotFound.into()))?;
        match claim::claim(&file) {
            Ok(Some(claim)) => Ok((Self { name: name.to_owned(), file, _claim: claim }, existed)),
            Ok(None) => Err(NamespaceError::Taken { name: name.to_owned() }),
            Err(error) => Err(fail("cannot claim it")(error)),
        }
    }

    /// The name, as for `ip netns exec`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `work` inside, on a new thread, and waits for it.
    ///
    /// # Errors
    /// The thread cannot be created or cannot enter the namespace.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        netvm_netlink::inside(self.file.as_fd(), work)
    }

    /// Binds the namespace to its name again if somebody removed the name (`ip netns del`); true if so.
    ///
    /// # Errors
    /// [`NamespaceError::Replaced`] or [`NamespaceError::System`].
    pub fn keep_name(&self) -> Result<bool, NamespaceError> {
        let path = path_of(&self.name);
        let fail = |source| NamespaceError::System {
            name: self.name.clone(),
            what: "cannot bind it to its name again",
            source,
        };
        match open(&path).map_err(fail)? {
            None => {
                let held = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                bind(&held, &path).map_err(fail)?;
                Ok(true)
            }
            Some(there) if is_same(&there, &self.file).map_err(fail)? => Ok(false),
            Some(_) => Err(NamespaceError::Replaced { name: self.name.clone() }),
        }
    }

    /// Removes the name. The namespace exists as long as a process is in it.
    ///
    /// # Errors
    /// [`NamespaceError::System`]; [`NamespaceError::Replaced`], and the other namespace stays.
    pub fn remove(self) -> Result<(), NamespaceError> {
        self.keep_name()?;
        let path = path_of(&self.name);
        let fail =
            |source| NamespaceError::System { name: self.name.clone(), what: "cannot remove it", source };
        rustix::mount::unmount(&path, UnmountFlags::DETACH).map_err(|error| fail(error.into()))?;
        fs::remove_file(&path).map_err(fail)
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Whether another process holds a namespace. Changes nothing.
///
/// # Errors
/// The path cannot be opened.
pub(crate) fn is_taken(name: &str) -> io::Result<bool> {
    let file = match File::open(path_of(name)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    claim::is_claimed(&file)
}

fn path_of(name: &str) -> PathBuf {
    Path::new(FOLDER).join(name)
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("netvm-netns".to_owned()).spawn_scoped(scope, work)?;
        thread.join().map_err(|_| io::Error::other("the thread in the namespace panicked"))
    })
}

/// Opens a mounted namespace. Removes a file without a mount, which a crash during [`make`] leaves.
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
    on_a_thread(|| {
        // SAFETY: only unsharing file descriptors is unsafe, which NEWNET does not. This thread ends at once, so no
        // other code runs in the new namespace.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET)? };
        bind("/proc/thread-self/ns/net", path)
    })
    .flatten()
}

/// Mounts a namespace on a new file.
fn bind(namespace: &str, path: &Path) -> io::Result<()> {
    share_folder()?;
    OpenOptions::new().write(true).create_new(true).open(path)?;
    let bound = rustix::mount::mount_bind(namespace, path);
    if bound.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(path);
    }
    Ok(bound?)
}

fn is_same(one: &File, other: &File) -> io::Result<bool> {
    let (one, other) = (one.metadata()?, other.metadata()?);
    Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
}

/// Makes mounts here propagate to every mount namespace, as `ip netns add` does.
fn share_folder() -> io::Result<()> {
    fs::create_dir_all(FOLDER)?;
    let shared = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    match rustix::mount::mount_change(FOLDER, shared) {
        // The folder is not a mount point yet.
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
    fn a_namespace_is_created_taken_over_and_removed() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP: only root can create namespaces");
            return;
        }
        let name = format!("netvm-test-{}", std::process::id());
        let (made, existed) = Namespace::take(&name).unwrap();
        assert!(!existed);
        assert!(matches!(Namespace::take(&name), Err(NamespaceError::Taken { .. })));
        assert_eq!(fs::metadata("/run/netvm-netns.lock").unwrap().mode() & 0o777, 0o600);
        let devices = || fs::read_to_string("/proc/thread-self/net/dev").unwrap().lines().count();
        assert_eq!(made.inside(devices).unwrap(), 3, "two lines of heading, and lo");
        drop(made);
        // Every user may lock the namespace's file.
        let file = File::open(path_of(&name)).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
        let (taken, existed) = Namespace::take(&name).unwrap();
        assert!(existed);
        taken.remove().unwrap();
        assert!(!path_of(&name).exists());
        // A crash between two steps leaves this.
        fs::write(path_of(&name), "").unwrap();
        let (again, existed) = Namespace::take(&name).unwrap();
        assert!(!existed);
        again.remove().unwrap();
    }

    #[test]
    fn a_removed_name_is_bound_again_but_never_taken_from_another_namespace() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP: only root can create namespaces");
            return;
        }
        let name = format!("netvm-name-{}", std::process::id());
        let path = path_of(&name);
        let remove = || {
            rustix::mount::unmount(&path, UnmountFlags::DETACH).unwrap();
            fs::remove_file(&path).unwrap();
        };
        let (held, _) = Namespace::take(&name).unwrap();
        assert!(!held.keep_name().unwrap());
        remove();
        assert!(held.keep_name().unwrap() && !held.keep_name().unwrap());
        assert!(is_taken(&name).unwrap(), "it is the locked one");
        // Without its mount, the file remains.
        rustix::mount::unmount(&path, UnmountFlags::DETACH).unwrap();
        assert!(held.keep_name().unwrap() && is_taken(&name).unwrap());
        remove();
        make(&path).unwrap();
        assert!(matches!(held.keep_name(), Err(NamespaceError::Replaced { .. })));
        assert!(!is_taken(&name).unwrap(), "the other one stays");
        remove();
        assert!(held.keep_name().unwrap());
        // Nor is another namespace removed.
        remove();
        make(&path).unwrap();
        assert!(matches!(held.remove(), Err(NamespaceError::Replaced { .. })) && path.exists());
        remove();
    }
}
