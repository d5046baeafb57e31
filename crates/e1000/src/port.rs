//! A port: a socket, and the thread that serves it.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use netvm_guest_socket::{BindError, Listener, RefusedPeer, RefusedPeers};
use rustix::io::Errno;

use crate::files::{self, Files, FilesLeft};
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
    /// The socket cannot be listened on.
    #[error("{path}: {problem}")]
    Socket {
        /// The socket.
        path: PathBuf,
        /// Why, and the remedy.
        problem: BindError,
    },
    /// The system refuses memory, descriptors or a thread.
    #[error("{path}: cannot be served: {source}")]
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
    stop: Arc<OwnedFd>,
    shared: Arc<Shared>,
    status: Arc<Mutex<Status>>,
    forgets: Arc<AtomicBool>,
    refused_peers: Arc<RefusedPeers>,
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
        let listener =
            Listener::bind(&path).map_err(|problem| OpenError::Socket { path: path.clone(), problem })?;
        let system = |source| OpenError::System { path: path.clone(), source };
        let system_of = |error: Errno| system(error.into());
        let (mut files, left, unkept) = match Files::open(path.as_os_str().as_bytes()) {
            Ok((files, left)) => (files, left, None),
            Err(error) => (Files::default(), FilesLeft::default(), Some(error)),
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
        let (status, refused_peers) = (Arc::new(Mutex::new(status)), Arc::new(RefusedPeers::default()));
        let server = Server {
            model: options.model,
            doorbells: options.doorbells,
            listener,
            refused_peers: Arc::clone(&refused_peers),
            stop: Arc::clone(&stop),
            shared: Arc::clone(&shared),
            status: Arc::clone(&status),
            forgets: Arc::clone(&forgets),
        };
        let run = move || server.run(client);
        let thread = Some(Builder::new().name("netvm-e1000".to_owned()).spawn(run).map_err(system)?);
        let queue = Queue::new(Arc::clone(&shared));
        Ok((Self { stop, shared, status, forgets, refused_peers, unkept, thread }, queue))
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

    /// How many clients were refused, because another one is connected, and the last one.
    #[must_use]
    pub fn refused(&self) -> (u32, Option<RefusedPeer>) {
        self.refused_peers.last()
    }

    /// The client that was refused last, if that was a short time ago.
    #[must_use]
    pub fn refused_peer(&self) -> Option<RefusedPeer> {
        self.refused_peers.recent()
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
    }
}

/// The card and the client that another process has left.
fn reopen(options: &Options, mut left: FilesLeft) -> Option<(Device, Client)> {
    let connection = UnixStream::from(left.take(files::CONNECTION)?);
    let of_card = [left.take(files::STATE)?, left.take(files::PAGES)?];
    let mut device = Device::reopen(options.model, options.mac, of_card)?;
    let session = Session::new(options.model, options.doorbells).ok()?.reopen(&mut device, left)?;
    let stream = Stream::new(connection).ok()?;
    go_on(&mut device);
    Some((device, (stream, session)))
}
