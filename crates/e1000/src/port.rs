//! A port: a socket, and the thread that serves it.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use crate::nic::pages::Pages;
use crate::nic::{Device, Model};
use crate::ring::{Queue, Shared};
use crate::server::Server;
use crate::status::{Counts, Status};

/// How to serve a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The socket, which this side creates.
    pub path: PathBuf,
    /// The card.
    pub model: Model,
    /// Its MAC address.
    pub mac: [u8; 6],
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

/// An open port. Dropping it disconnects the guest and removes the socket.
#[derive(Debug)]
pub struct Port {
    path: PathBuf,
    stop: Arc<OwnedFd>,
    shared: Arc<Shared>,
    status: Arc<Mutex<Status>>,
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
        listener.set_nonblocking(true).map_err(system)?;
        let pages = Arc::new(Pages::new().map_err(io::Error::from).map_err(system)?);
        let shared = Arc::new(Shared::new(Device::new(options.model, options.mac, pages)));
        let stop = Arc::new(netvm_notify::new_eventfd().map_err(io::Error::from).map_err(system)?);
        let status = Arc::<Mutex<Status>>::default();
        let server = Server {
            model: options.model,
            listener,
            stop: Arc::clone(&stop),
            shared: Arc::clone(&shared),
            status: Arc::clone(&status),
        };
        let run = move || server.run();
        let thread = Some(Builder::new().name("netvm-e1000".to_owned()).spawn(run).map_err(system)?);
        let queue = Queue::new(Arc::clone(&shared));
        Ok((Self { path, stop, shared, status, thread }, queue))
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
