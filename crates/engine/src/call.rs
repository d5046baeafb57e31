//! An eventfd by which the NFs of a group wake a worker.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netvm_bell::{Ear, new_bell};
use rustix::io::Errno;

/// Heard by the worker from before any NF has it until this is dropped. Processes that live on may have it still.
#[derive(Debug)]
pub(crate) struct Call {
    fd: OwnedFd,
    ear: Ear,
}

impl Call {
    pub(crate) fn new(ear: &Ear) -> Result<Self, Errno> {
        let fd = new_bell()?;
        ear.open_to(&fd)?;
        Ok(Self { fd, ear: ear.clone() })
    }
}

impl AsFd for Call {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.ear.close_to(&self.fd);
    }
}
