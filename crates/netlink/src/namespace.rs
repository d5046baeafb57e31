//! Work in another network namespace.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::thread::LinkNameSpaceType;

/// Runs `work` in a network namespace, on a new thread, and waits for it.
///
/// # Errors
/// The thread cannot be made or cannot enter the namespace (`EPERM` without CAP_SYS_ADMIN).
pub fn inside<T: Send>(namespace: BorrowedFd<'_>, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let enter = || -> io::Result<T> {
        rustix::thread::move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?;
        Ok(work())
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("netvm-netns".to_owned()).spawn_scoped(scope, enter)?;
        thread.join().map_err(|_| io::Error::other("the thread in the namespace panicked"))?
    })
}
