// SPDX-License-Identifier: Apache-2.0
//! Helpers for the async runtime: runs long work on other threads, watches descriptors, and locks shared state.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::setpriority_process;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

/// Nice value of background work: it gets a tenth of a contended core, so that it also ends on a machine without a free
/// core.
const NICE: i32 = 10;

/// Runs work of some milliseconds on the runtime's blocking threads.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(ended) => std::panic::resume_unwind(ended.into_panic()),
    }
}

/// Runs work of some seconds on a new thread of low priority.
///
/// # Errors
/// The thread cannot be created, or it panicked, with a message on standard error.
pub(crate) async fn in_background<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (done, outcome) = oneshot::channel();
    let main = move || {
        // On failure the work runs at normal priority.
        let _ = setpriority_process(Some(rustix::thread::gettid()), NICE);
        // The receiver is gone if the daemon shuts down.
        let _ = done.send(work());
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(main)?;
    outcome.await.map_err(|_| io::Error::other("the thread panicked"))
}

/// Locks shared state, which is consistent also after a panic.
pub(crate) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A descriptor that the runtime watches.
pub type Watched = AsyncFd<Arc<OwnedFd>>;

/// Registers a descriptor with the runtime.
///
/// # Errors
/// The kernel cannot watch it.
pub fn watch(fd: OwnedFd) -> io::Result<Watched> {
    // SAFETY: an OwnedFd names the same open descriptor for its whole life, and the Arc keeps it alive and unchanged
    // while it is registered.
    let watched = unsafe { AsyncFd::register(Arc::new(fd)) };
    watched.map_err(Into::into)
}
