// SPDX-License-Identifier: Apache-2.0
//! Links: programs attached to interfaces.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use libc::c_int;

use crate::program::Program;
use crate::sys::{bpf, bpf_fd};

// Commands of `enum bpf_cmd`.
const LINK_CREATE: c_int = 28;
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
}

impl Attach {
    /// `enum bpf_attach_type`, and `XDP_FLAGS_` of `linux/if_link.h`.
    const fn numbers(self) -> [u32; 2] {
        match self {
            Self::XdpGeneric => [37, 1 << 1],
            Self::XdpNative => [37, 1 << 2],
            Self::TcxIngress => [46, 0],
        }
    }
}

/// An attached program. Dropping it detaches the program.
#[derive(Debug)]
pub struct Link(OwnedFd);

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
        unsafe { bpf_fd(LINK_CREATE, &attributes) }.map(Self)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let link = self.0.as_raw_fd().unsigned_abs();
        // Closing the descriptor is not enough, as a process forked meanwhile may have a copy of it.
        // SAFETY: the attributes of BPF_LINK_DETACH: the link's descriptor.
        let _ = unsafe { bpf(LINK_DETACH, &link) };
    }
}
