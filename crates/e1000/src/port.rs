// SPDX-License-Identifier: Apache-2.0
//! A port: a socket, and the thread that serves it.

use std::io;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use netvm_guest_socket::{Listener, ServeError, ServedPort};

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

/// An open port. Dropping it disconnects the guest, or leaves it to the next process, and removes the socket.
#[derive(Debug)]
pub struct Port {
    served: ServedPort<Status>,
    shared: Arc<Shared>,
    forgets: Arc<AtomicBool>,
    unkept: Option<io::Error>,
}

impl Deref for Port {
    type Target = ServedPort<Status>;

    fn deref(&self) -> &Self::Target {
        &self.served
    }
}

impl Port {
    /// Serves a card on a socket. The queue is for the worker that moves its packets.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn open(options: &Options) -> Result<(Self, Queue), ServeError> {
        let path = &options.path;
        let listener = Listener::bind(path).map_err(ServeError::socket(path))?;
        let (mut files, left, unkept) = match Files::open(path.as_os_str().as_bytes()) {
            Ok((files, left)) => (files, left, None),
            Err(error) => (Files::default(), FilesLeft::default(), Some(error)),
        };
        let (device, client) = match reopen(options, left) {
            Some((device, (stream, session))) => (device, Ok((stream, session.with(files)))),
            None => {
                files.forget();
                let device = Device::new(options.model, options.mac).map_err(ServeError::system(path))?;
                (device, Err(files))
            }
        };
        let shared = Arc::new(Shared::new(device).map_err(ServeError::system(path))?);
        shared.note_activity(&shared.lock());
        let forgets = Arc::new(AtomicBool::new(false));
        let status = Status { is_connected: client.is_ok(), ..Status::default() };
        let serve = {
            let (model, doorbells) = (options.model, options.doorbells);
            let (shared, forgets) = (Arc::clone(&shared), Arc::clone(&forgets));
            move |reports| Server { model, doorbells, listener, reports, shared, forgets }.run(client)
        };
        let served = ServedPort::start("netvm-e1000", status, serve).map_err(ServeError::system(path))?;
        let queue = Queue::new(Arc::clone(&shared));
        Ok((Self { served, shared, forgets, unkept }, queue))
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
