//! A port: a socket, and the thread that serves it.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use rustix::io::Errno;

use crate::files::{self, Files, Left};
use crate::nic::{Device, Doorbells, Model};
use crate::ring::{Queue, Shared, go_on};
use crate::server::{Client, Server};
use crate::status::{Counts, Status};
use crate::vfio::session::Session;
use crate::vfio::stream::Stream;

/// How to serve a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The socket, which this side creates.
    pub path: PathBuf,
    /// The card.
    pub model: Model,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// How its driver's writes of TDT and RDT arrive, for clients that connect from now on.
    pub doorbells: Doorbells,
}

/// A card cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another port or program serves the socket.
    #[error("{path}: another port or program serves this socket: stop that one, or choose another path")]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// The path exists and is not a socket.
    #[error("{path}: exists and is not a socket: remove it, or choose another path")]
    NoSocket {
        /// The path.
        path: PathBuf,
    },
    /// The system refuses the socket, memory or thread.
    #[error(
        "{path}: cannot be served: {source}; does its directory exist, and may this process write there?"
    )]
    System {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// An open port. Dropping it disconnects the guest, or leaves it to the next process, and removes the socket.
#[derive(Debug)]
pub struct Port {
    path: PathBuf,
    stop: Arc<OwnedFd>,
    shared: Arc<Shared>,
    status: Arc<Mutex<Status>>,
    forgets: Arc<AtomicBool>,
    unkept: Option<io::Error>,
    thread: Option<JoinHandle<()>>,
}

impl Port {
    /// Serves a card on a socket. The queue is for the worker that moves its packets.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(options: &Options) -> Result<(Self, Queue), OpenError> {
        let path = options.path.clone();
        let listener = listen(&path)?;
        let system = |source| OpenError::System { path: path.clone(), source };
        let system_of = |error: Errno| system(error.into());
        listener.set_nonblocking(true).map_err(system)?;
        let (mut files, left, unkept) = match Files::open(path.as_os_str().as_bytes()) {
            Ok((files, left)) => (files, left, None),
            Err(error) => (Files::default(), Left::default(), Some(error)),
        };
        let (device, client) = match reopen(options, left) {
            Some((device, (stream, session))) => (device, Ok((stream, session.with(files)))),
            None => {
                files.forget();
                (Device::new(options.model, options.mac).map_err(system_of)?, Err(files))
            }
        };
        let shared = Arc::new(Shared::new(device));
        shared.note_activity(&shared.lock());
        let (stop, forgets) = (Arc::new(netvm_notify::new_eventfd().map_err(system_of)?), Arc::default());
        let status = Status { is_connected: client.is_ok(), ..Status::default() };
        let status = Arc::new(Mutex::new(status));
        let server = Server {
            model: options.model,
            doorbells: options.doorbells,
            listener,
            stop: Arc::clone(&stop),
            shared: Arc::clone(&shared),
            status: Arc::clone(&status),
            forgets: Arc::clone(&forgets),
        };
        let run = move || server.run(client);
        let thread = Some(Builder::new().name("netvm-e1000".to_owned()).spawn(run).map_err(system)?);
        let queue = Queue::new(Arc::clone(&shared));
        Ok((Self { path, stop, shared, status, forgets, unkept, thread }, queue))
    }

    /// Why its client cannot be left to another process, if it is to be ([`crate::keep_cards_in`]).
    #[must_use]
    pub const fn unkept(&self) -> Option<&io::Error> {
        self.unkept.as_ref()
    }

    /// Closes it for good: its client is not left to another process ([`crate::keep_cards_in`]).
    pub fn close(self) {
        self.forgets.store(true, Ordering::Relaxed);
    }

    /// Its state.
    #[must_use]
    pub fn status(&self) -> Status {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its counters.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let device = self.shared.lock();
        Counts {
            requests: self.shared.requests.load(Ordering::Relaxed),
            doorbells: device.doorbells,
            interrupts: device.interrupts.count,
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        netvm_notify::write(&self.stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The card and the client that another process has left.
fn reopen(options: &Options, mut left: Left) -> Option<(Device, Client)> {
    let connection = UnixStream::from(left.take(files::CONNECTION)?);
    let of_card = [left.take(files::STATE)?, left.take(files::PAGES)?];
    let mut device = Device::reopen(options.model, options.mac, of_card)?;
    let session = Session::new(options.model, options.doorbells).ok()?.reopen(&mut device, left)?;
    let stream = Stream::new(connection).ok()?;
    go_on(&mut device);
    Some((device, (stream, session)))
}

/// Listens on a socket, in place of one that nothing serves any more.
fn listen(path: &Path) -> Result<UnixListener, OpenError> {
    let path_of = || path.to_owned();
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => return Err(OpenError::NoSocket { path: path_of() }),
        Ok(_) if UnixStream::connect(path).is_ok() => return Err(OpenError::InUse { path: path_of() }),
        Ok(_) => drop(std::fs::remove_file(path)),
        Err(_) => {}
    }
    UnixListener::bind(path).map_err(|source| OpenError::System { path: path_of(), source })
}
