//! Work that takes long, apart from what has to answer soon.

use std::io;

use rustix::process::setpriority_process;
use tokio::sync::oneshot;

/// How much work in the background stands back for everything else, as for `nice`: it gets a tenth of a core that is
/// wanted elsewhere, so that it ends even on a machine without a core to spare.
const NICE: i32 = 10;

/// Runs what takes milliseconds apart from the runtime's threads.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(ended) => std::panic::resume_unwind(ended.into_panic()),
    }
}

/// Runs what takes seconds on a thread of its own, which others go before.
///
/// # Errors
/// There is no such thread to be had, or it ended by a panic, which standard error tells of.
pub(crate) async fn in_background<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (done, outcome) = oneshot::channel();
    let main = move || {
        // Without it the work is done just as well.
        let _ = setpriority_process(Some(rustix::thread::gettid()), NICE);
        // Nobody waits any more: the daemon ends.
        let _ = done.send(work());
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(main)?;
    outcome.await.map_err(|_| io::Error::other("the thread has ended early"))
}
