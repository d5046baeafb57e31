// SPDX-License-Identifier: Apache-2.0
//! The status of a port's guest.

use netvm_guest_memory::FileError;

use crate::memory::MapError;

/// Why a guest was disconnected, or does not get packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It violates the protocol.
    #[error("its messages violate the vfio-user protocol")]
    Protocol,
    /// It passed a descriptor of the wrong kind.
    #[error("the descriptor of its interrupt is not an eventfd")]
    NotAnEventfd,
    /// It shares memory that cannot be used safely.
    #[error("its memory is not usable: {0} (QEMU: -object memory-backend-memfd,share=on)")]
    Memory(&'static str),
    /// A ring or buffer is not in memory that the guest shares.
    #[error(
        "its driver uses a ring or buffer outside the memory that it shares (QEMU: -object memory-backend-memfd,share=on \
         and -machine memory-backend=)"
    )]
    Ring,
}

/// State of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// A client is connected.
    pub is_connected: bool,
    /// Its last fault, or an earlier client's.
    pub fault: Option<Fault>,
    /// Faults so far.
    pub faults: u32,
}

/// Requests and interrupts of the card, since the port was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages of QEMU: accesses to registers that are not mapped, mostly.
    pub requests: u64,
    /// Of these, writes of TDT or RDT; none while the client has these pages mapped.
    pub doorbells: u64,
    /// Interrupts signalled.
    pub interrupts: u64,
}

impl From<MapError> for Fault {
    fn from(error: MapError) -> Self {
        Self::Memory(match error {
            MapError::Range => "a range of it is empty, not of whole pages, or beyond the address space",
            MapError::Overlap => "two ranges of it overlap",
            MapError::TooMany => "it has too many ranges",
            MapError::File(FileError::Unsealed) => "it is not a memfd that is sealed against shrinking",
            MapError::File(FileError::Huge) => "it has huge pages: leave hugetlb out",
            MapError::Short => "its file is shorter than the range",
            MapError::Map => "this process has no address space for it",
        })
    }
}
