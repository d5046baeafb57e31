// SPDX-License-Identifier: Apache-2.0
//! What all ports with a thread and a socket share: why one cannot be opened, the thread and its end, and what the
//! thread reports.

use std::fmt::Debug;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use rustix::event::{EventfdFlags, eventfd};

use crate::listener::BindError;
use crate::refused_peers::{RefusedPeer, RefusedPeers};

/// A port cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
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

impl ServeError {
    /// For a socket that cannot be listened on.
    pub fn socket(path: &Path) -> impl Fn(BindError) -> Self {
        move |problem| Self::Socket { path: path.to_owned(), problem }
    }

    /// For an error of the system.
    pub fn system<E: Into<io::Error>>(path: &Path) -> impl Fn(E) -> Self {
        move |error| Self::System { path: path.to_owned(), source: error.into() }
    }
}

/// The thread's side of a port.
#[derive(Debug)]
pub struct Reports<S> {
    /// Readable when the thread is to end.
    pub stop: Arc<OwnedFd>,
    /// Peers that were refused, because another one is connected.
    pub refused_peers: Arc<RefusedPeers>,
    status: Arc<Mutex<S>>,
}

impl<S> Clone for Reports<S> {
    fn clone(&self) -> Self {
        let Self { stop, refused_peers, status } = self;
        Self { stop: Arc::clone(stop), refused_peers: Arc::clone(refused_peers), status: Arc::clone(status) }
    }
}

impl<S> Reports<S> {
    /// Changes the port's state.
    pub fn note(&self, change: impl FnOnce(&mut S)) {
        change(&mut self.status.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// A port that a thread serves, with a state of type `S`. When it is dropped, the thread ends first.
#[derive(Debug)]
pub struct ServedPort<S> {
    reports: Reports<S>,
    thread: Option<JoinHandle<()>>,
}

impl<S: Clone + Send + 'static> ServedPort<S> {
    /// Starts a thread of this name, which serves the port until its `stop` is readable.
    ///
    /// # Errors
    /// The system refuses descriptors or a thread.
    pub fn start(
        thread: &str,
        status: S,
        serve: impl FnOnce(Reports<S>) + Send + 'static,
    ) -> io::Result<Self> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let reports = Reports { stop, refused_peers: Arc::default(), status: Arc::new(Mutex::new(status)) };
        let given = reports.clone();
        let thread = Some(Builder::new().name(thread.to_owned()).spawn(move || serve(given))?);
        Ok(Self { reports, thread })
    }

    /// Its state.
    #[must_use]
    pub fn status(&self) -> S {
        self.reports.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many peers were refused, because another one is connected, and the last one.
    #[must_use]
    pub fn refused(&self) -> (u32, Option<RefusedPeer>) {
        self.reports.refused_peers.last()
    }

    /// The peer that was refused last, if that was a short time ago.
    #[must_use]
    pub fn refused_peer(&self) -> Option<RefusedPeer> {
        self.reports.refused_peers.recent()
    }
}

impl<S> Drop for ServedPort<S> {
    fn drop(&mut self) {
        // It has room: nobody else writes to it.
        let _ = rustix::io::write(&self.reports.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;
    use crate::peer::Peer;

    #[test]
    fn a_port_shows_what_its_thread_reports_and_waits_for_the_end_of_it() {
        let has_ended = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&has_ended);
        let (noted, is_noted) = std::sync::mpsc::channel();
        let port = ServedPort::start("served", 1, move |reports: Reports<i32>| {
            reports.note(|status| *status += 1);
            let (one, _other) = UnixStream::pair().unwrap();
            reports.refused_peers.note(Peer::of(&one), Peer::of(&one));
            noted.send(()).unwrap();
            poll(&mut [PollFd::new(&reports.stop, PollFlags::IN)], None).unwrap();
            ended.store(true, Ordering::Relaxed);
        })
        .unwrap();
        is_noted.recv().unwrap();
        assert_eq!(port.status(), 2);
        assert_eq!((port.refused().0, port.refused().1), (1, port.refused_peer()));
        assert_eq!(port.refused_peer().unwrap().who.pid, std::process::id());
        assert!(!has_ended.load(Ordering::Relaxed));
        drop(port);
        assert!(has_ended.load(Ordering::Relaxed));
    }
}
