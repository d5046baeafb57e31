// SPDX-License-Identifier: Apache-2.0
//! virtio-net devices of guests, over vhost-user sockets.
//!
//! A [`VhostPort`] is one socket for one guest: QEMU's `-netdev vhost-user`, or DPDK's `virtio_user`. The guest may
//! connect and disconnect while the port stays open. Packets are copied into and out of a pool's buffers, so a guest
//! shares memory with netvm only. A [`VhostQueue`] serves its share of the guest's queue pairs, however many the guest
//! uses. Each packet costs one copy.
//!
//! | module | contents |
//! |---|---|
//! | `front_end` | sockets and messages: a thread for each port and each guest |
//! | `guests` | the guests of a port, and which of them its workers serve |
//! | `rcu` | keeps workers out of a guest's rings while they change or go away |
//! | `queue` | what a worker calls: bursts from and to the guest. The ring code is `dpdk-sys`'s |
//! | `calls`, `truncated`, `in_flight_dma` | notifications of guests, memory that they take back, copies by a DMA engine |
//! | `announcement` | guests that have moved here |

mod announcement;
mod calls;
mod front_end;
mod guests;
mod in_flight_dma;
mod queue;
mod rcu;
mod truncated;

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netvm_guest_socket::{BindError, RefusedPeer};
use netvm_vhost_user::Refusal;

use crate::log::reason;
use crate::{DmaChannel, DmaChannelStats, Eal};
use front_end::{Listener, StartError};
use guests::{Guests, MAX_PAIRS};
use in_flight_dma::InFlightDma;
pub use queue::{Accepts, VhostQueue};

/// Longest path of a socket, with its NUL byte.
const MAX_PATH: usize = 108;

/// Which side creates the socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VhostMode {
    /// netvm. Guests connect, and reconnect after a restart of netvm if configured to (QEMU: `reconnect=1`).
    #[default]
    Server,
    /// The guest. netvm connects as soon as the socket exists, and again after the guest restarts.
    Client,
}

/// How to serve a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostOptions {
    /// The socket.
    pub path: PathBuf,
    /// Which side creates it.
    pub mode: VhostMode,
    /// Queues to serve it with: 1 to 64. Queue `n` of `N` serves the guest's queue pairs `n`, `n + N`, and so on.
    pub queues: u16,
}

/// State of a port's DMA channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DmaChannelStatus {
    /// DPDK's name for it.
    pub name: String,
    /// Its counters.
    pub stats: DmaChannelStats,
    /// The channel did not finish a copy within a second. It was stopped and is not used any more.
    pub stuck: bool,
}

/// A socket could not be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VhostError {
    /// The path is too long for a socket, or has a NUL byte in it.
    #[error("{path}: a socket's path has 1 to {} bytes and no NUL byte", MAX_PATH - 1)]
    Path {
        /// The socket.
        path: PathBuf,
    },
    /// Too many queues.
    #[error("{path}: {queues} queues; use 1 to {MAX_PAIRS}")]
    Queues {
        /// The socket.
        path: PathBuf,
        /// The number requested.
        queues: u16,
    },
    /// It cannot be listened on.
    #[error("{path}: {problem}")]
    Socket {
        /// The socket.
        path: PathBuf,
        /// Why, and the remedy.
        problem: BindError,
    },
    /// netvm cannot watch for guests that truncate shared memory.
    #[error("{path}: cannot be served: cannot create a thread or descriptor that watches guests: {}", reason(*.errno))]
    Watch {
        /// The socket.
        path: PathBuf,
        /// The error number.
        errno: i32,
    },
}

/// State of a port's guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VhostStatus {
    /// Its driver is ready, and it is not disconnected.
    pub connected: bool,
    /// It truncated memory that it shares (the file is shorter than the mapping). It stays disconnected until it
    /// connects again.
    pub truncated: bool,
    /// Its driver has begun, but its front-end shares no memory with netvm, or a copy that does not change. No packet
    /// passes.
    pub unshared: bool,
    /// The guest is to create the socket, and has not.
    pub absent: bool,
    /// If no guest is connected: why the last guest was disconnected.
    pub refused: Option<Refusal>,
    /// Queue pairs that it uses.
    pub queue_pairs: u16,
    /// Offloads that it accepts.
    pub accepts: Accepts,
}

/// A served socket, until this and all its queues are dropped.
#[derive(Clone, Debug)]
pub struct VhostPort(Arc<Served>);

impl VhostPort {
    /// Starts to serve a socket. The returned queues are for the workers. The DMA channel, if any, copies packets to
    /// the guest; the memory of all pools of these packets must stay mapped while the port is open.
    ///
    /// # Errors
    /// [`VhostError`] names the socket and the obstacle.
    pub fn open(
        _eal: Eal,
        options: &VhostOptions,
        dma: Option<DmaChannel>,
    ) -> Result<(Self, Vec<VhostQueue>), VhostError> {
        let path = options.path.clone();
        let bytes = path.as_os_str().as_bytes();
        if bytes.is_empty() || bytes.contains(&0) || bytes.len() >= MAX_PATH {
            return Err(VhostError::Path { path });
        }
        if options.queues == 0 || options.queues > MAX_PAIRS {
            return Err(VhostError::Queues { path, queues: options.queues });
        }
        if let Err(errno) = truncated::watch(guests::close) {
            return Err(VhostError::Watch { path, errno });
        }
        let fenced = rcu::prepare();
        let number = dma.as_ref().map(DmaChannel::number);
        let guests = match Guests::register(
            path.clone(),
            options.mode,
            options.queues,
            number.map(InFlightDma::new),
        ) {
            Ok(Some(guests)) => guests,
            Ok(None) => return Err(VhostError::Socket { path, problem: BindError::InUse }),
            Err(error) => return Err(VhostError::Watch { path, errno: error.raw_os_error() }),
        };
        // Dropping it ends the registration if a later step fails.
        let mut served = Served { guests, dma, listener: None };
        let listener = Listener::start(&served.guests).map_err(|error| match error {
            StartError::Socket(problem) => VhostError::Socket { path, problem },
            StartError::System(error) => {
                VhostError::Watch { path, errno: error.raw_os_error().unwrap_or(libc::EINVAL) }
            }
        })?;
        served.listener = Some(listener);
        let served = Arc::new(served);
        let queues =
            (0..options.queues).map(|n| VhostQueue::new(Arc::clone(&served), n, fenced, number)).collect();
        Ok((Self(served), queues))
    }

    /// State of its guest.
    #[must_use]
    pub fn status(&self) -> VhostStatus {
        self.0.guests.status()
    }

    /// State of its DMA channel.
    #[must_use]
    pub fn dma(&self) -> Option<DmaChannelStatus> {
        let (dma, in_flight) = (self.0.dma.as_ref()?, self.0.guests.in_flight_dma.as_ref()?);
        let stuck = in_flight.is_stuck();
        Some(DmaChannelStatus { name: dma.name().to_owned(), stats: dma.stats(), stuck })
    }

    /// How often a guest has truncated its memory, since the port was opened.
    #[must_use]
    pub fn truncations(&self) -> u32 {
        self.0.guests.truncations.load(Ordering::Relaxed)
    }

    /// How often a guest was disconnected, not counting repeated refusals, and the last reason.
    #[must_use]
    pub fn refusals(&self) -> (u32, Option<Refusal>) {
        let refused = lock(&self.0.guests.refused);
        (refused.count, refused.last.clone())
    }
}

impl VhostPort {
    /// How many guests were refused, because another one is connected, and the last one.
    #[must_use]
    pub fn refused_peers(&self) -> (u32, Option<RefusedPeer>) {
        self.0.guests.refused_peers.last()
    }

    /// The guest that was refused last, if that was a short time ago.
    #[must_use]
    pub fn refused_peer(&self) -> Option<RefusedPeer> {
        self.0.guests.refused_peers.recent()
    }
}

/// Keeps a socket served.
#[derive(Debug)]
pub(crate) struct Served {
    guests: Arc<Guests>,
    /// Freed once no guest uses it any more.
    dma: Option<DmaChannel>,
    listener: Option<Listener>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.listener = None;
        self.guests.unregister();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
