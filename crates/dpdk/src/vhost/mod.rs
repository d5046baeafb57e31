//! virtio-net devices of guests, over vhost-user sockets, with DPDK's vhost library.
//!
//! A [`VhostPort`] is one socket, by which one guest comes: QEMU's `-netdev vhost-user`, or DPDK's `virtio_user`. The
//! guest may come and go while the port stays open; its packets are copied into buffers of a pool and out of them, so
//! that it shares no memory with anything but netvm. A [`VhostQueue`] serves the guest's queue pairs that fall to it,
//! whatever number of pairs the guest uses.
//!
//! The library serves the sockets in a thread of its own, which frees a device when its guest goes. `rcu` keeps that
//! thread and those that move packets apart. Messages of guests go through `relay` before the library sees them.

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
    /// This side. Guests connect, and reconnect after a restart of this side if configured to (QEMU: `reconnect=1`).
    #[default]
    Server,
    /// The guest. This side connects as soon as the socket exists, and again after the guest restarts.
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

/// The DMA engine of a port, as it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DmaChannelStatus {
    /// DPDK's name for it.
    pub name: String,
    /// What it has done.
    pub stats: DmaChannelStats,
    /// It did not finish a copy in a second, was stopped, and is not used any more.
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
    #[error("{path}: {queues} queues; 1 to {} are possible", sys::NETVM_VHOST_MAX_PAIRS)]
    Queues {
        /// The socket.
        path: PathBuf,
        /// What was asked for.
        queues: u16,
    },
    /// Somebody has it.
    #[error("{path}: another port or program serves this socket: stop that one, or choose another path")]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// Something else is there.
    #[error("{path}: is there, and is no socket: remove it, or choose another path")]
    NoSocket {
        /// The path.
        path: PathBuf,
    },
    /// Nothing would hold what a guest does to what it shares against netvm.
    #[error("{path}: cannot be served: no thread or descriptor to watch over guests: {}", reason(*.errno))]
    Watch {
        /// The socket.
        path: PathBuf,
        /// The error number.
        errno: i32,
    },
    /// DPDK refused.
    #[error("{path}: cannot be served: {}{}; does its directory exist, and may this process write there?",
        reason(*.errno), quoted(.said))]
    Refused {
        /// The socket.
        path: PathBuf,
        /// The error number.
        errno: i32,
        /// What DPDK logged.
        said: String,
    },
}

/// Why a guest was disconnected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its messages violate the protocol.
    Protocol,
    /// It shared a file as memory whose page faults another process or a disk serves.
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
    /// No guest is connected; the last one was disconnected for this reason.
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
    /// Starts serving a socket. The queues go to the workers that move packets. The DMA channel, if there is one,
    /// copies packets to the guest; the memory of all pools that they come from must stay mapped while the port is
    /// open.
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
        // Ends the registration when it fails further on.
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
            return Err(VhostError::Refused { path, errno: -error, said: control.said() });
        }
        drop(control);
        served.open = true;
        let served = Arc::new(served);
        let queues =
            (0..options.queues).map(|n| VhostQueue::new(Arc::clone(&served), n, fenced, number)).collect();
        Ok((Self(served), queues))
    }

    /// What is known of its guest.
    #[must_use]
    pub fn status(&self) -> VhostStatus {
        self.0.guests.status()
    }

    /// Its DMA engine.
    #[must_use]
    pub fn dma(&self) -> Option<DmaChannelStatus> {
        self.0.guests.in_flight_dma.as_ref().map(InFlightDma::status)
    }

    /// How often a guest has truncated its memory, since the port was opened.
    #[must_use]
    pub fn shrinks(&self) -> u32 {
        self.0.guests.shrinks.load(Ordering::Relaxed)
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
            // SAFETY: a NUL-terminated string. Callbacks that this call makes find the guests in the list still.
            unsafe { sys::netvm_vhost_close(self.guests.path.as_ptr()) };
        }
        self.guests.unregister();
    }
}

/// Removes a socket that nobody serves any more.
fn remove_stale(path: &Path) -> Result<(), VhostError> {
    let own = || path.to_path_buf();
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(VhostError::NoSocket { path: own() });
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            // If it cannot be removed, binding says why.
            let _ = std::fs::remove_file(path);
            Ok(())
        }
        _ => Err(VhostError::InUse { path: own() }),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
