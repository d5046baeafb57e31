//! virtio-net devices of guests, over vhost-user sockets, with DPDK's vhost library.
//!
//! A [`VhostPort`] is one socket for one guest: QEMU's `-netdev vhost-user`, or DPDK's `virtio_user`. The guest may
//! connect and disconnect while the port stays open. Packets are copied into and out of a pool's buffers, so a guest
//! shares memory with netvm only. A [`VhostQueue`] serves its share of the guest's queue pairs, however many the guest
//! uses. Each packet costs one copy.
//!
//! The library serves the sockets in its own thread, which frees a device when its guest disconnects. `rcu` synchronises this
//! thread with the workers. Guests' messages pass `messages` before the library gets them.

mod adaptive_burst;
mod callbacks;
mod calls;
mod guests;
mod in_flight_dma;
mod messages;
mod queue;
mod rcu;
mod truncated;

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dpdk_sys as sys;

use crate::log::{Control, quoted, reason};
use crate::{DmaChannel, DmaChannelStats, Eal};
use guests::Guests;
use in_flight_dma::InFlightDma;
use messages::connection;
pub use queue::{Accepts, VhostQueue};

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
    /// Accept TCP segments longer than a packet from the guest (TSO), as mbuf chains.
    pub segmentation: bool,
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
    #[error("{path}: a socket's path has 1 to {} bytes and no NUL byte", sys::NETVM_VHOST_PATH - 1)]
    Path {
        /// The socket.
        path: PathBuf,
    },
    /// Too many queues.
    #[error("{path}: {queues} queues; use 1 to {}", sys::NETVM_VHOST_MAX_PAIRS)]
    Queues {
        /// The socket.
        path: PathBuf,
        /// The number requested.
        queues: u16,
    },
    /// Another port or program serves it.
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
    /// netvm cannot watch for guests that truncate shared memory.
    #[error("{path}: cannot be served: cannot create a thread or descriptor that watches guests: {}", reason(*.errno))]
    Watch {
        /// The socket.
        path: PathBuf,
        /// The error number.
        errno: i32,
    },
    /// DPDK refused.
    #[error("{path}: cannot be served: {}{}; does its directory exist, and may this process write there?",
        reason(*.errno), quoted(.log))]
    Refused {
        /// The socket.
        path: PathBuf,
        /// The error number.
        errno: i32,
        /// What DPDK logged.
        log: String,
    },
}

/// Why a guest was disconnected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its messages violate the protocol.
    Protocol,
    /// It shared memory from a file whose pages come from another process or a disk.
    ServedMemory {
        /// The kernel's name of its file system; `None` if it has none, or none that is mounted for this process.
        file_system: Option<String>,
    },
    /// Its kick or call descriptor is not an eventfd.
    NotAnEventfd,
}

/// State of a port's guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VhostStatus {
    /// Its driver is ready, and it is not disconnected.
    pub connected: bool,
    /// It truncated memory that it shares (the file is shorter than the mapping). It stays disconnected until it
    /// connects again.
    pub truncated: bool,
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
    /// Starts to serve a socket. The returned queues are for the workers. The DMA channel, if any, copies packets to the guest;
    /// the memory of all pools of these packets must stay mapped while the port is open.
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
        let name = CString::new(bytes)
            .ok()
            .filter(|_| !bytes.is_empty() && bytes.len() < sys::NETVM_VHOST_PATH as usize);
        let Some(name) = name else { return Err(VhostError::Path { path }) };
        if options.queues == 0 || u32::from(options.queues) > sys::NETVM_VHOST_MAX_PAIRS {
            return Err(VhostError::Queues { path, queues: options.queues });
        }
        if let Err(errno) = truncated::watch(guests::close) {
            return Err(VhostError::Watch { path, errno });
        }
        connection::prepare();
        let fenced = rcu::prepare();
        let number = dma.as_ref().map(DmaChannel::number);
        let guests = match Guests::register(name.clone(), options.mode, options.queues, dma) {
            Ok(Some(guests)) => guests,
            Ok(None) => return Err(VhostError::InUse { path }),
            Err(error) => return Err(VhostError::Watch { path, errno: error.raw_os_error() }),
        };
        // Dropping it ends the registration if a later step fails.
        let mut served = Served { guests, open: false };
        if options.mode == VhostMode::Server {
            remove_stale(&path)?;
        }
        let spec = sys::netvm_vhost_spec {
            path: name.as_ptr(),
            callbacks: callbacks::ALL,
            client: (options.mode == VhostMode::Client).into(),
            segmentation: options.segmentation.into(),
            dma: number.is_some().into(),
        };
        let control = Control::enter();
        // SAFETY: the EAL runs; the string lives until the call returns, which copies it; the callbacks are functions,
        // and `control` keeps others out.
        let error = unsafe { sys::netvm_vhost_open(&raw const spec) };
        if error != 0 {
            return Err(VhostError::Refused { path, errno: -error, log: control.log() });
        }
        drop(control);
        served.open = true;
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
        self.0.guests.in_flight_dma.as_ref().map(InFlightDma::status)
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

/// Keeps a socket served.
#[derive(Debug)]
pub(crate) struct Served {
    guests: Arc<Guests>,
    /// DPDK serves it.
    open: bool,
}

impl Drop for Served {
    fn drop(&mut self) {
        if self.open {
            let _control = Control::enter();
            // SAFETY: a NUL-terminated string. Callbacks during this call still find the guests in the list.
            unsafe { sys::netvm_vhost_close(self.guests.path.as_ptr()) };
        }
        self.guests.unregister();
    }
}

/// Removes a socket that no program serves.
fn remove_stale(path: &Path) -> Result<(), VhostError> {
    let own = || path.to_path_buf();
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(VhostError::NoSocket { path: own() });
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            // If this fails, binding reports why.
            let _ = std::fs::remove_file(path);
            Ok(())
        }
        _ => Err(VhostError::InUse { path: own() }),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
