// SPDX-License-Identifier: Apache-2.0
//! Listens on a path, and accepts.
//!
//! When no file descriptor is free, accept(2) fails, and the connection stays in the queue, so that poll(2) reports it
//! again at once. A listener therefore keeps a spare descriptor, which it closes in order to accept such a connection
//! and to close it. Its client learns at once that it was refused. Without the spare one, the caller pauses.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// How long a caller leaves a listener alone after [`Accepted::Failed`].
pub const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Mode of the directories that are made for a socket.
const FOLDER_MODE: u32 = 0o755;

/// Connections that no listener of this process could serve for want of a descriptor.
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// How many connections were refused because no file descriptor was free, since the process started.
#[must_use]
pub fn refused_for_files() -> u64 {
    REFUSED.load(Ordering::Relaxed)
}

/// A path cannot be listened on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// Another port or program serves the socket.
    #[error("another port or program serves this socket: stop that one, or choose another path")]
    InUse,
    /// The path exists and is not a socket.
    #[error("exists and is not a socket: remove it, or choose another path")]
    NoSocket,
    /// Its folder does not exist and cannot be made.
    #[error("its directory cannot be made: {0}: make it (mkdir -p), or choose another path")]
    NoFolder(Errno),
    /// The system refuses.
    #[error("cannot be served: {0}; may this process write in its directory?")]
    System(Errno),
}

/// What [`Listener::accept`] found.
#[derive(Debug)]
pub enum Accepted {
    /// A connection.
    Connection(UnixStream),
    /// None waits.
    Nothing,
    /// No descriptor is free; the connection was closed.
    Refused,
    /// The kernel refuses: leave the listener alone for [`RETRY_INTERVAL`].
    Failed,
}

/// A socket that accepts connections without waiting. Its path is removed when it is dropped.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
    spare: Mutex<Option<File>>,
}

impl Listener {
    /// Listens on a path, in place of a socket that nothing serves any more. Makes its directory if there is none,
    /// since /run is empty after a boot, as systemd does (`ListenStream=`).
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind(path: &Path) -> Result<Self, BindError> {
        Self::bind_as(path, SocketType::STREAM)
    }

    /// The same, for connections that keep the limits of messages (`SOCK_SEQPACKET`).
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind_packets(path: &Path) -> Result<Self, BindError> {
        Self::bind_as(path, SocketType::SEQPACKET)
    }

    fn bind_as(path: &Path, kind: SocketType) -> Result<Self, BindError> {
        match std::fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => return Err(BindError::NoSocket),
            // A socket of another kind that is served refuses with another error.
            Ok(_) => match UnixStream::connect(path) {
                // If this fails, binding reports why.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    let _ = std::fs::remove_file(path);
                }
                _ => return Err(BindError::InUse),
            },
            Err(_) => {}
        }
        make_folder(path).map_err(|error| BindError::NoFolder(errno(&error)))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, kind, flags, None).map_err(BindError::System)?;
        let address = SocketAddrUnix::new(path).map_err(BindError::System)?;
        bind(&socket, &address).map_err(BindError::System)?;
        let listener = Self { socket: socket.into(), path: path.to_owned(), spare: Mutex::new(spare()) };
        listen(&listener.socket, BACKLOG).map_err(BindError::System)?;
        Ok(listener)
    }

    /// Accepts a connection, if one waits.
    pub fn accept(&self) -> Accepted {
        let error = match self.socket.accept() {
            Ok((stream, _)) => return Accepted::Connection(stream),
            Err(error) => error,
        };
        match Errno::from_io_error(&error) {
            Some(Errno::WOULDBLOCK | Errno::INTR | Errno::CONNABORTED) => Accepted::Nothing,
            Some(Errno::MFILE | Errno::NFILE) => self.refuse(),
            _ => Accepted::Failed,
        }
    }

    /// Accepts a connection by the spare descriptor, and closes it.
    fn refuse(&self) -> Accepted {
        REFUSED.fetch_add(1, Ordering::Relaxed);
        let mut place = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if place.take().is_none() {
            *place = spare();
            return Accepted::Failed;
        }
        let is_closed = self.socket.accept().is_ok();
        *place = spare();
        if is_closed { Accepted::Refused } else { Accepted::Failed }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::INVAL)
}

/// Makes the directories above a path that do not exist.
fn make_folder(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
            DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder)
        }
        _ => Ok(()),
    }
}

fn spare() -> Option<File> {
    File::open("/dev/null").ok()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::Command;

    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;

    #[test]
    fn a_stale_socket_is_replaced_and_a_served_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        drop(UnixListener::bind(&path).unwrap());
        let listener = Listener::bind(&path).unwrap();
        assert!(matches!(Listener::bind(&path), Err(BindError::InUse)));
        assert!(matches!(listener.accept(), Accepted::Connection(_)), "the attempt to bind");
        assert!(matches!(listener.accept(), Accepted::Nothing));
        drop(listener);
        assert!(!path.exists());
        std::fs::write(&path, "").unwrap();
        assert!(matches!(Listener::bind(&path), Err(BindError::NoSocket)));
        // Its directory is made, as after a boot.
        let deep = folder.path().join("run/netvm/a.sock");
        drop(Listener::bind(&deep).unwrap());
        assert!(deep.parent().unwrap().is_dir() && !deep.exists());
        let below_a_file = path.join("a.sock");
        assert!(matches!(Listener::bind(&below_a_file), Err(BindError::NoFolder(_))));
    }

    #[test]
    fn a_socket_of_packets_keeps_their_limits_and_takes_the_place_of_a_stale_one_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        drop(UnixListener::bind(&path).unwrap());
        let listener = Listener::bind_packets(&path).unwrap();
        assert!(matches!(Listener::bind_packets(&path), Err(BindError::InUse)));
        assert!(matches!(Listener::bind(&path), Err(BindError::InUse)));
        assert!(matches!(listener.accept(), Accepted::Nothing), "attempts to bind are no connections");
        let client =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::empty(), None).unwrap();
        rustix::net::connect(&client, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        for packet in [&b"ab"[..], b"c"] {
            rustix::io::write(&client, packet).unwrap();
        }
        let Accepted::Connection(mut connection) = listener.accept() else { panic!("none") };
        let mut bytes = [0; 8];
        assert_eq!((connection.read(&mut bytes).unwrap(), &bytes[..2]), (2, &b"ab"[..]));
        drop(listener);
        assert!(!path.exists());
    }

    /// Not a test by itself: the limit of open files is the process's.
    #[test]
    fn be_without_descriptors() {
        if std::env::var_os("NETVM_TEST_NO_FILES").is_none() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let listener = Listener::bind(&path).unwrap();
        let mut client = UnixStream::connect(&path).unwrap();
        let later = UnixStream::connect(&path).unwrap();
        // All numbers below the limit are in use.
        let files: Vec<File> = std::iter::from_fn(spare).take(100).collect();
        let most = files.iter().map(|file| std::os::fd::AsRawFd::as_raw_fd(file) as u64).max().unwrap() + 1;
        setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..getrlimit(Resource::Nofile) }).unwrap();
        assert!(matches!(listener.accept(), Accepted::Refused));
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "the client is told at once");
        assert_eq!(refused_for_files(), 1);
        // Somebody else takes the spare descriptor's number.
        drop(listener.spare.lock().unwrap().take());
        let taken = spare().unwrap();
        assert!(matches!(listener.accept(), Accepted::Failed));
        drop((taken, files));
        assert!(matches!(listener.accept(), Accepted::Connection(_)));
        drop(later);
    }

    #[test]
    fn without_a_free_descriptor_a_connection_is_closed_and_does_not_wait_in_the_queue() {
        let mut process = Command::new(std::env::current_exe().unwrap());
        let name = "listener::tests::be_without_descriptors";
        process.args([name, "--exact", "--nocapture", "--test-threads=1"]).env("NETVM_TEST_NO_FILES", "1");
        assert!(process.status().unwrap().success());
    }
}
