//! virtio-net devices of guests, over vhost-user sockets, with DPDK's vhost library.
//!
//! A [`VhostPort`] is one socket, by which one guest comes: QEMU's `-netdev vhost-user`, or DPDK's `virtio_user`. The guest
//! may come and go while the port stays open; its packets are copied into buffers of a pool and out of them, so that it
//! shares no memory with anything but netvm. A [`VhostQueue`] serves the guest's queue pairs that fall to it, whatever
//! number of pairs the guest uses.
//!
//! The library serves the sockets in a thread of its own, which frees a device when its guest goes. How that thread and
//! those that move packets keep out of each other's way is in `gate`; what it is told by guests has gone through `relay`.

mod adaptive_burst;
mod callbacks;
mod calls;
mod connection;
mod descriptors;
mod gate;
mod guests;
mod in_flight_dma;
mod protocol;
mod queue;
mod relay;
mod truncated;

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dpdk_sys as sys;

use crate::log::{Control, quoted, reason};
use crate::{Copier, CopierStats, Eal};
use guests::Guests;
use in_flight_dma::InFlightDma;
pub use queue::{Accepts, VhostQueue};

/// Who makes the socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VhostMode {
    /// This side: guests connect to it, and connect again after a restart of this side if they are told to
    /// (QEMU: `reconnect=1`).
    #[default]
    Server,
    /// The guest: it is connected to as soon as its socket is there, and again after it was restarted.
    Client,
}

/// How a socket is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostOptions {
    /// The socket.
    pub path: PathBuf,
    /// Who makes it.
    pub mode: VhostMode,
    /// Queues to serve it with: 1 to 64. Queue `n` of `N` serves the guest's queue pairs `n`, `n + N`, and so on.
    pub queues: u16,
    /// Take TCP segments from the guest that are longer than a packet (TSO), as chains of mbufs.
    pub segmentation: bool,
}

/// The DMA engine of a port, as it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopierStatus {
    /// DPDK's name for it.
    pub name: String,
    /// What it has done.
    pub stats: CopierStats,
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

/// Why a guest was hung up on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It said what no guest does, or when none does.
    Said,
    /// It shared a file as memory whose pages others have to bring.
    NoMemory {
        /// The kernel's name for the file system that it is on; `None` if it is on none, or on one that is not mounted for
        /// this process.
        file_system: Option<String>,
    },
    /// It wants to tell of packets, or to be told, by what is no eventfd.
    NoEventfd,
}

/// What is known of the guest of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VhostStatus {
    /// Its driver is ready, and it is not cut off.
    pub connected: bool,
    /// It has taken back memory that it shares (its file is shorter than what was mapped). It is cut off until it connects
    /// again.
    pub truncated: bool,
    /// Nobody is there, and who was there last was hung up on, for this.
    pub refused: Option<Refusal>,
    /// Queue pairs that it uses.
    pub queue_pairs: u16,
    /// What it takes.
    pub accepts: Accepts,
}

/// A socket that is served until this and all its queues are dropped.
#[derive(Clone, Debug)]
pub struct VhostPort(Arc<Served>);

impl VhostPort {
    /// Begins to serve a socket; the queues go to the workers that move packets. Packets to the guest are copied by the copier, if
    /// there is one; the memory of all pools that they come from must be mapped for as long as the port is open.
    ///
    /// # Errors
    /// [`VhostError`] names the socket and what is in the way.
    pub fn open(
        _eal: Eal,
        options: &VhostOptions,
        copier: Option<Copier>,
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
        let fenced = gate::prepare();
        let number = copier.as_ref().map(Copier::number);
        let guests = match Guests::register(name.clone(), options.mode, options.queues, copier) {
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
            copier: number.is_some().into(),
        };
        let control = Control::enter();
        // SAFETY: the EAL runs; the string lives until the call returns, which copies it; the callbacks are functions, and
        // `control` keeps others out.
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
    pub fn copier(&self) -> Option<CopierStatus> {
        self.0.guests.in_flight_dma.as_ref().map(InFlightDma::status)
    }

    /// How often a guest has truncated its memory, since the port was opened.
    #[must_use]
    pub fn shrinks(&self) -> u32 {
        self.0.guests.shrinks.load(Ordering::Relaxed)
    }

    /// How often a guest has been hung up on, not counting those that followed on another, and for what the last time.
    #[must_use]
    pub fn refusals(&self) -> (u32, Option<Refusal>) {
        let refused = guests::lock(&self.0.guests.refused);
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
