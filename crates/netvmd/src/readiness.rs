//! Descriptors whose readiness the runtime tells.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::io::unix::AsyncFd;

/// A descriptor of ours that the runtime watches.
pub type Watched = AsyncFd<Arc<OwnedFd>>;

/// Has the runtime watch a descriptor.
///
/// # Errors
/// The kernel's, when it cannot be watched.
pub fn watch(fd: OwnedFd) -> io::Result<Watched> {
    // SAFETY: an OwnedFd stands for the same open descriptor for as long as it lives, and the Arc keeps it alive and
    // unchanged for as long as it is registered.
    let watched = unsafe { AsyncFd::register(Arc::new(fd)) };
    watched.map_err(Into::into)
}
