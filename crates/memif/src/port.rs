//! A port: a socket, and the thread that serves it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use netvm_guest_socket::{BindError, Listener, RefusedPeer, RefusedPeers};
use rustix::io::Errno;

use crate::options::{Options, Role};
use crate::queue::{Queue, Shared};
use crate::session::largest;
use crate::status::Status;
use crate::thread::Thread;

/// A port cannot be served.
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
    /// More memory than descriptors can tell of.
    #[error(
        "{queues} queues with rings of {ring_size} buffers of {buffer_size} bytes take {bytes} bytes, and memif allows \
         2^32: lower `ring_size`, `buffer_size` or `queues`"
    )]
    Memory {
        /// Queues.
        queues: u16,
        /// Descriptors of a ring.
        ring_size: u32,
        /// Bytes of a buffer.
        buffer_size: u32,
        /// What they take.
        bytes: u64,
    },
    /// The system refuses descriptors or a thread.
    #[error("{path}: cannot be served: {source}")]
    System {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// An open port. Dropping it disconnects the peer, and removes the socket if the port made it.
#[derive(Debug)]
pub struct Port {
    stop: Arc<OwnedFd>,
    status: Arc<Mutex<Status>>,
    refused_peers: Arc<RefusedPeers>,
    thread: Option<JoinHandle<()>>,
}

impl Port {
    /// Serves a socket, or connects to one, again and again. There is one queue for each of `options.queues`.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(options: &Options) -> Result<(Self, Vec<Queue>), OpenError> {
        let path = &options.path;
        let system = |source| OpenError::System { path: path.clone(), source };
        let system_of = |error: Errno| system(error.into());
        let listener = match options.role {
            Role::Server => {
                let problem = |problem| OpenError::Socket { path: path.clone(), problem };
                Some(Listener::bind_packets(path).map_err(problem)?)
            }
            Role::Client => {
                let Options { queues, buffer_size, log2_ring_size, .. } = *options;
                let bytes = largest(options).bytes();
                if bytes > u64::from(u32::MAX) {
                    return Err(OpenError::Memory {
                        queues,
                        ring_size: 1 << log2_ring_size,
                        buffer_size,
                        bytes,
                    });
                }
                None
            }
        };
        let shared = Arc::new(Shared::new(options.queues).map_err(system_of)?);
        let (status, refused_peers) = (Arc::default(), Arc::new(RefusedPeers::default()));
        let stop = Arc::new(netvm_notify::new_eventfd().map_err(system_of)?);
        let thread =
            Thread::new(options, listener, &shared).reporting_to(&status, &refused_peers).until(&stop);
        let run = move || thread.run();
        let thread = Some(Builder::new().name("netvm-memif".to_owned()).spawn(run).map_err(system)?);
        let queues = (0..usize::from(options.queues)).map(|n| Queue::new(Arc::clone(&shared), n)).collect();
        Ok((Self { stop, status, refused_peers, thread }, queues))
    }

    /// Its state.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many peers were refused, because another one is connected, and the last one.
    #[must_use]
    pub fn refused(&self) -> (u32, Option<RefusedPeer>) {
        self.refused_peers.last()
    }

    /// The peer that was refused last, if that was a short time ago.
    #[must_use]
    pub fn refused_peer(&self) -> Option<RefusedPeer> {
        self.refused_peers.recent()
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
