// SPDX-License-Identifier: Apache-2.0
//! The caller's packet memory as a UMEM.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use crate::buffers::BufferLayout;
use crate::kernel::sys::{self, Mapping};

/// Bytes that the kernel keeps free before every received packet (`XDP_PACKET_HEADROOM` of `linux/bpf.h`).
pub const KERNEL_HEADROOM: u16 = 256;

/// The kernel's smallest chunk (`XDP_UMEM_MIN_CHUNK_SIZE`).
const MIN_STRIDE: u32 = 2048;

/// Location and layout of the packet memory.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Start of the mapping, on a page boundary.
    pub base: NonNull<u8>,
    /// Bytes of the mapping.
    pub len: usize,
    /// Bytes from `base` to buffer 0.
    pub first_buffer: usize,
    /// Bytes per buffer, from 2048 to a page (4096 bytes on x86-64). All drivers support a power of two (aligned mode).
    /// Other sizes need unaligned mode, in which zero-copy drivers also need each buffer to be contiguous for the
    /// device (huge pages or an IOMMU).
    pub stride: u32,
    /// Number of buffers, at most 2^24.
    pub buffers: u32,
    /// Bytes to keep free before a received packet, at least the [`KERNEL_HEADROOM`] that the kernel always keeps.
    pub headroom: u16,
}

/// Why packet memory cannot be a UMEM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the field names are clear")]
pub enum UmemError {
    /// The buffers are larger than a page.
    #[error(
        "buffers of {stride} bytes: AF_XDP needs buffers of at most {page} bytes: use af_packet for jumbo frames, or \
         smaller buffers"
    )]
    StrideTooLarge { stride: u32, page: u32 },
    /// The buffers are smaller than the kernel's minimum.
    #[error("buffers of {0} bytes: AF_XDP needs buffers of at least 2048 bytes")]
    StrideTooSmall(u32),
    /// The first buffer or the stride is odd, but the kernel uses the lowest address bit itself.
    #[error("buffer 0 at byte {first_buffer} with buffers of {stride} bytes: both must be even")]
    Odd { first_buffer: usize, stride: u32 },
    /// There are no buffers, or more than 2^24.
    #[error("{0} buffers: AF_XDP takes from 1 to 16777216")]
    Buffers(u32),
    /// The mapping does not start on a page boundary.
    #[error("packet memory at {address:#x}: AF_XDP needs it to start on a page boundary")]
    NotOnPage { address: usize },
    /// The buffers end after the mapping.
    #[error("the buffers end at byte {end} of packet memory of {len} bytes")]
    PastEnd { end: u64, len: usize },
    /// The headroom leaves no room for a packet.
    #[error("a headroom of {headroom} bytes in buffers of {stride} leaves no room for a packet")]
    Headroom { headroom: u16, stride: u32 },
}

/// Packet memory that AF_XDP can use. Each queue registers it as a separate UMEM with its own fill and completion ring,
/// so queues share nothing but the memory. The caller decides which buffers a queue may use.
#[derive(Clone, Copy, Debug)]
pub struct Umem {
    /// Start of the registered memory: the page of buffer 0.
    address: usize,
    layout: BufferLayout,
    headroom: u16,
    unaligned: bool,
}

impl Umem {
    /// Checks the layout. Registers nothing yet.
    ///
    /// # Safety
    /// `memory.base` to `base + len` must be one mapping, readable and writable. It must stay that mapping until all
    /// sockets that use it have returned their buffers ([`crate::Xsk::close`]) or the process ends. While the kernel
    /// has a buffer (from [`crate::Xsk::fill`] to [`crate::Xsk::rx`], from [`crate::Xsk::tx`] to
    /// [`crate::Xsk::completed`]) it may write to it at any time: no Rust reference to it may exist. (The kernel pins
    /// the pages, so it never writes to a later mapping at the same addresses.)
    ///
    /// # Errors
    /// [`UmemError`] names the bad value.
    pub unsafe fn new(memory: &Memory) -> Result<Self, UmemError> {
        let &Memory { base, len, first_buffer, stride, buffers, headroom } = memory;
        let page = sys::page_size();
        if stride as usize > page || stride > u32::from(u16::MAX) {
            return Err(UmemError::StrideTooLarge { stride, page: page as u32 });
        }
        if stride < MIN_STRIDE {
            return Err(UmemError::StrideTooSmall(stride));
        }
        if first_buffer % 2 != 0 || stride % 2 != 0 {
            return Err(UmemError::Odd { first_buffer, stride });
        }
        if buffers == 0 || buffers > 1 << 24 {
            return Err(UmemError::Buffers(buffers));
        }
        let address = base.as_ptr().addr();
        if !address.is_multiple_of(page) {
            return Err(UmemError::NotOnPage { address });
        }
        let end = (first_buffer as u64).saturating_add(u64::from(buffers) * u64::from(stride));
        if end > len as u64 {
            return Err(UmemError::PastEnd { end, len });
        }
        let headroom = headroom.max(KERNEL_HEADROOM);
        if u32::from(headroom) >= stride {
            return Err(UmemError::Headroom { headroom, stride });
        }
        let skew = first_buffer % page;
        let layout = BufferLayout::new(skew as u64, stride, buffers);
        // Aligned chunks start at multiples of their size from the start of the registered memory.
        let unaligned = !stride.is_power_of_two() || !skew.is_multiple_of(stride as usize);
        Ok(Self { address: address + first_buffer - skew, layout, headroom, unaligned })
    }

    /// Buffers that fill a mapping of this crate, which frees it after the socket. `stride`: a power of two, at most a
    /// page.
    pub(crate) fn filling(memory: &Mapping, stride: u32) -> Self {
        let buffers = (memory.bytes() / stride as usize) as u32;
        let address = memory.address().as_ptr().addr();
        let layout = BufferLayout::new(0, stride, buffers);
        Self { address, layout, headroom: KERNEL_HEADROOM, unaligned: false }
    }

    /// Longest frame that fits in a buffer, with the Ethernet header and without FCS.
    #[must_use]
    pub fn room(&self) -> u32 {
        self.layout.stride() - u32::from(self.headroom)
    }

    /// Whether the memory needs the kernel's unaligned mode.
    #[must_use]
    pub fn is_unaligned(&self) -> bool {
        self.unaligned
    }

    /// Number of buffers.
    #[must_use]
    pub fn buffers(&self) -> u32 {
        self.layout.buffers()
    }

    /// Bytes of a buffer.
    #[must_use]
    pub fn stride(&self) -> u32 {
        self.layout.stride()
    }

    /// Bytes that the kernel registers and pins.
    #[must_use]
    pub fn registered(&self) -> u64 {
        self.layout.registered()
    }

    pub(crate) fn layout(&self) -> BufferLayout {
        self.layout
    }

    /// Registers the memory with a socket.
    pub(crate) fn register(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let registration = libc::xdp_umem_reg {
            addr: self.address as u64,
            len: self.layout.registered(),
            chunk_size: self.layout.stride(),
            headroom: u32::from(self.headroom - KERNEL_HEADROOM),
            flags: if self.unaligned { libc::XDP_UMEM_UNALIGNED_CHUNK_FLAG } else { 0 },
            tx_metadata_len: 0,
        };
        sys::set_option(socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &registration)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn umem(change: impl FnOnce(&mut Memory)) -> Result<Umem, UmemError> {
        let base = NonNull::new(std::ptr::without_provenance_mut(0x10_0000)).unwrap();
        let mut memory =
            Memory { base, len: 1 << 20, first_buffer: 8192, stride: 2048, buffers: 64, headroom: 0 };
        change(&mut memory);
        // SAFETY: these tests register nothing.
        unsafe { Umem::new(&memory) }
    }

    #[test]
    fn power_of_two_buffers_on_their_boundary_are_aligned() {
        let plain = umem(|_| ()).unwrap();
        assert!(!plain.is_unaligned());
        assert_eq!((plain.address, plain.layout.address(0, 0), plain.room()), (0x10_2000, 0, 1792));
        let second_half = umem(|m| m.first_buffer = 2048).unwrap();
        assert!(!second_half.is_unaligned());
        assert_eq!((second_half.address, second_half.layout.address(0, 0)), (0x10_0000, 2048));
        assert_eq!(second_half.registered(), 2048 + 64 * 2048);
        assert!(umem(|m| m.first_buffer = 64).unwrap().is_unaligned());
        assert!(umem(|m| m.stride = 2304).unwrap().is_unaligned());
        assert!(umem(|m| (m.stride, m.first_buffer) = (4096, 2048)).unwrap().is_unaligned());
        assert_eq!(umem(|m| m.headroom = 300).unwrap().room(), 1748);
    }

    #[test]
    fn bad_layouts_are_refused_with_the_bad_value() {
        let jumbo = umem(|m| m.stride = 9600).unwrap_err();
        assert!(
            jumbo
                .to_string()
                .contains("AF_XDP needs buffers of at most 4096 bytes: use af_packet for jumbo frames")
        );
        assert_eq!(umem(|m| m.stride = 1024).unwrap_err(), UmemError::StrideTooSmall(1024));
        assert_eq!(
            umem(|m| m.stride = 2049).unwrap_err(),
            UmemError::Odd { first_buffer: 8192, stride: 2049 }
        );
        assert_eq!(umem(|m| m.buffers = 0).unwrap_err(), UmemError::Buffers(0));
        assert_eq!(umem(|m| m.buffers = (1 << 24) + 1).unwrap_err(), UmemError::Buffers((1 << 24) + 1));
        assert_eq!(
            umem(|m| m.buffers = 509).unwrap_err(),
            UmemError::PastEnd { end: 1_050_624, len: 1 << 20 }
        );
        let nowhere = umem(|m| m.first_buffer = usize::MAX - 1).unwrap_err();
        assert_eq!(nowhere, UmemError::PastEnd { end: u64::MAX, len: 1 << 20 });
        assert_eq!(
            umem(|m| m.headroom = 2048).unwrap_err(),
            UmemError::Headroom { headroom: 2048, stride: 2048 }
        );
        let odd = NonNull::new(std::ptr::without_provenance_mut(0x10_0010)).unwrap();
        assert_eq!(umem(|m| m.base = odd).unwrap_err(), UmemError::NotOnPage { address: 0x10_0010 });
    }
}
