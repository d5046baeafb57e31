//! The eventfd that the NFs of a group signal to wake a worker.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netvm_notify::{EpollWaiter, new_eventfd};
use rustix::io::Errno;

/// The worker's epoll instance watches it until this is dropped. NF processes may keep their descriptor for longer.
#[derive(Debug)]
pub(crate) struct Call {
    fd: OwnedFd,
    waiter: EpollWaiter,
}

impl Call {
    pub(crate) fn new(waiter: &EpollWaiter) -> Result<Self, Errno> {
        let fd = new_eventfd()?;
        waiter.add(&fd)?;
        Ok(Self { fd, waiter: waiter.clone() })
    }
}

impl AsFd for Call {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.waiter.remove(&self.fd);
    }
}
