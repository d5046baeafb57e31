// SPDX-License-Identifier: Apache-2.0
//! Links: programs attached to interfaces.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libc::c_int;

use crate::program::Program;
use crate::sys::{bpf, bpf_fd};

// Commands of `enum bpf_cmd`.
const LINK_CREATE: c_int = 28;
const LINK_UPDATE: c_int = 29;
const LINK_DETACH: c_int = 34;

/// Where a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// XDP in the kernel's generic hook: runs on skbs, with any driver.
    XdpGeneric,
    /// XDP in the driver.
    XdpNative,
    /// On what an interface receives, after packet sockets have seen it (tcx, Linux 6.6).
    TcxIngress,
    /// On what an interface sends, likewise.
    TcxEgress,
}

impl Attach {
    /// `enum bpf_attach_type`, and `XDP_FLAGS_` of `linux/if_link.h`.
    const fn numbers(self) -> [u32; 2] {
        match self {
            Self::XdpGeneric => [37, 1 << 1],
            Self::XdpNative => [37, 1 << 2],
            Self::TcxIngress => [46, 0],
            Self::TcxEgress => [47, 0],
        }
    }
}

/// An attached program. Dropping it detaches the program, unless it is left to others.
#[derive(Debug)]
pub struct Link {
    fd: OwnedFd,
    is_left: bool,
}

impl Link {
    /// Attaches to an interface in the calling thread's network namespace.
    ///
    /// # Errors
    /// The kernel's error: `EINVAL` if it does not know this place.
    pub fn attach(program: &Program, ifindex: u32, place: Attach) -> io::Result<Self> {
        #[repr(C)]
        struct Attributes {
            prog_fd: u32,
            target_ifindex: u32,
            attach_type: u32,
            flags: u32,
        }
        let [attach_type, flags] = place.numbers();
        let attributes = Attributes {
            prog_fd: program.as_fd().as_raw_fd().unsigned_abs(),
            target_ifindex: ifindex,
            attach_type,
            flags,
        };
        // SAFETY: the attributes of BPF_LINK_CREATE, without addresses or padding; it returns a descriptor.
        unsafe { bpf_fd(LINK_CREATE, &attributes) }.map(|fd| Self { fd, is_left: false })
    }

    /// A link that another process has left, with another program in place of the one that it had, at once.
    ///
    /// # Errors
    /// The kernel's error: `ENOLINK` if the interface has gone, for instance.
    pub fn adopt(fd: OwnedFd, program: &Program) -> io::Result<Self> {
        #[repr(C)]
        struct Attributes {
            link_fd: u32,
            new_prog_fd: u32,
            flags: u32,
            old_prog_fd: u32,
        }
        let attributes = Attributes {
            link_fd: fd.as_raw_fd().unsigned_abs(),
            new_prog_fd: program.as_fd().as_raw_fd().unsigned_abs(),
            flags: 0,
            old_prog_fd: 0,
        };
        // SAFETY: the attributes of BPF_LINK_UPDATE, without addresses or padding.
        unsafe { bpf(LINK_UPDATE, &attributes) }?;
        Ok(Self { fd, is_left: false })
    }

    /// Has the program stay attached when this is dropped, as long as another process has the descriptor.
    pub const fn leave(&mut self) {
        self.is_left = true;
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.is_left {
            return;
        }
        let link = self.fd.as_raw_fd().unsigned_abs();
        // Closing the descriptor is not enough, as a process forked meanwhile may have a copy of it.
        // SAFETY: the attributes of BPF_LINK_DETACH: the link's descriptor.
        let _ = unsafe { bpf(LINK_DETACH, &link) };
    }
}
