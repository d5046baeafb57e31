// SPDX-License-Identifier: Apache-2.0
//! One packet's header.
//!
//! [`MbufPtr`] is an address and owns nothing; [`Mbuf`] owns a packet and frees it when dropped. Fields are read at the
//! offsets that the C compiler took from DPDK's headers, so that an access is one load or store.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use dpdk_sys as sys;

use crate::PortNumber;

/// Address of an mbuf. Copying it does not copy ownership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct MbufPtr(NonNull<sys::rte_mbuf>);

// SAFETY: an address; everything that goes through it is unsafe.
unsafe impl Send for MbufPtr {}
// SAFETY: as above.
unsafe impl Sync for MbufPtr {}

/// What [`MbufPtr`] points to: DPDK's own type.
pub type RawMbuf = sys::rte_mbuf;

impl MbufPtr {
    /// Addresses of mbufs are multiples of this: of a cache line's bytes.
    pub const ALIGNMENT: usize = 64;

    /// The mbuf at an address.
    #[inline(always)]
    #[must_use]
    pub const fn new(address: NonNull<sys::rte_mbuf>) -> Self {
        Self(address)
    }

    /// The address.
    #[inline(always)]
    #[must_use]
    pub const fn as_ptr(self) -> *mut sys::rte_mbuf {
        self.0.as_ptr()
    }

    /// Fetches the header's first cache line, which holds all that [`Mbuf`] reads.
    #[inline(always)]
    pub fn prefetch(self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: prefetching reads nothing and faults at no address.
        unsafe {
            core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(
                self.as_ptr().cast_const().cast(),
            );
        };
    }

    /// Takes ownership of the packet.
    ///
    /// # Safety
    /// The caller owns the mbuf: it is initialised and out of its pool, the pool's memory is mapped, and no one else
    /// uses or frees it.
    #[inline(always)]
    #[must_use]
    pub const unsafe fn own(self) -> Mbuf {
        Mbuf(self)
    }

    /// Access to the packet without taking ownership.
    ///
    /// # Safety
    /// As for [`MbufPtr::own`], for as long as the result lives.
    #[inline(always)]
    #[must_use]
    pub const unsafe fn borrow(self) -> ManuallyDrop<Mbuf> {
        ManuallyDrop::new(Mbuf(self))
    }
}

/// A packet does not fit at a position in its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a packet of {length} bytes at offset {offset} of a buffer of {buffer} bytes in {segments} segments")]
pub struct BoundsError {
    /// Its requested beginning, in bytes from the start of the buffer.
    pub offset: u16,
    /// Its requested length, in bytes.
    pub length: u16,
    /// Bytes of the buffer.
    pub buffer: u16,
    /// Buffers that the packet is spread over; only packets in one can be changed.
    pub segments: u16,
}

/// A packet with all its segments. Dropping it returns it to its pool.
///
/// A pool that is dropped while packets are out stays allocated, so an `Mbuf` is valid whatever becomes of its pool.
#[derive(Debug)]
#[repr(transparent)]
pub struct Mbuf(MbufPtr);

// SAFETY: nothing in an mbuf belongs to a thread; pools are made with handlers that any thread may give mbufs back to.
unsafe impl Send for Mbuf {}

const BUF_ADDR: usize = sys::NETVM_MBUF_OFF_BUF_ADDR as usize;
const DATA_OFF: usize = sys::NETVM_MBUF_OFF_DATA_OFF as usize;
const REFCNT: usize = sys::NETVM_MBUF_OFF_REFCNT as usize;
const NB_SEGS: usize = sys::NETVM_MBUF_OFF_NB_SEGS as usize;
const PORT: usize = sys::NETVM_MBUF_OFF_PORT as usize;
const OL_FLAGS: usize = sys::NETVM_MBUF_OFF_OL_FLAGS as usize;
const PKT_LEN: usize = sys::NETVM_MBUF_OFF_PKT_LEN as usize;
const DATA_LEN: usize = sys::NETVM_MBUF_OFF_DATA_LEN as usize;
const BUF_LEN: usize = sys::NETVM_MBUF_OFF_BUF_LEN as usize;

// What MbufPtr::prefetch promises, and what makes the typed accesses below aligned: an mbuf is aligned to 64 bytes.
const _: () = {
    assert!(BUF_ADDR.is_multiple_of(8) && OL_FLAGS.is_multiple_of(8) && PKT_LEN.is_multiple_of(4));
    assert!((DATA_OFF | REFCNT | NB_SEGS | PORT | DATA_LEN | BUF_LEN).is_multiple_of(2));
    assert!(BUF_ADDR < 64 && OL_FLAGS < 64 && PKT_LEN < 64 && DATA_LEN < 64 && BUF_LEN < 64);
};

impl Mbuf {
    /// Reads the field at a byte offset.
    ///
    /// # Safety
    /// `OFFSET` is that of a field of type `T`.
    #[inline(always)]
    pub(super) unsafe fn get<T: Copy, const OFFSET: usize>(&self) -> T {
        // SAFETY: the field lies in the mbuf, which is allocated while `self` owns it (see `MbufPtr::own`), and is
        // aligned (checked above); only the owner writes to it.
        unsafe { self.0.as_ptr().byte_add(OFFSET).cast::<T>().read() }
    }

    /// Writes the field at a byte offset.
    ///
    /// # Safety
    /// As for `get`, and the value is one that the packet's buffer allows.
    #[inline(always)]
    pub(super) unsafe fn set<T: Copy, const OFFSET: usize>(&mut self, value: T) {
        // SAFETY: as in `get`.
        unsafe { self.0.as_ptr().byte_add(OFFSET).cast::<T>().write(value) };
    }

    /// Gives up ownership without freeing.
    #[inline(always)]
    #[must_use]
    pub fn into_raw(self) -> MbufPtr {
        ManuallyDrop::new(self).0
    }

    /// The address, without giving up ownership.
    #[inline(always)]
    #[must_use]
    pub const fn as_ptr(&self) -> MbufPtr {
        self.0
    }

    /// Start of the packet's buffer.
    #[inline(always)]
    #[must_use]
    pub fn buf_addr(&self) -> *mut u8 {
        // SAFETY: the field is a pointer.
        unsafe { self.get::<*mut u8, BUF_ADDR>() }
    }

    /// Bytes of the buffer.
    #[inline(always)]
    #[must_use]
    pub fn buf_len(&self) -> u16 {
        // SAFETY: the field is a u16.
        unsafe { self.get::<u16, BUF_LEN>() }
    }

    /// Where the packet begins, in bytes from the start of the buffer.
    #[inline(always)]
    #[must_use]
    pub fn data_off(&self) -> u16 {
        // SAFETY: the field is a u16.
        unsafe { self.get::<u16, DATA_OFF>() }
    }

    /// Bytes of the packet that are in this buffer.
    #[inline(always)]
    #[must_use]
    pub fn data_len(&self) -> u16 {
        // SAFETY: the field is a u16.
        unsafe { self.get::<u16, DATA_LEN>() }
    }

    /// Bytes of the whole packet.
    #[inline(always)]
    #[must_use]
    pub fn pkt_len(&self) -> u32 {
        // SAFETY: the field is a u32.
        unsafe { self.get::<u32, PKT_LEN>() }
    }

    /// The port that received the packet.
    #[inline(always)]
    #[must_use]
    pub fn port(&self) -> PortNumber {
        // SAFETY: the field is a u16.
        PortNumber(unsafe { self.get::<u16, PORT>() })
    }

    /// Sets the port that received the packet.
    #[inline(always)]
    pub fn set_port(&mut self, port: PortNumber) {
        // SAFETY: the field is a u16, and any number is allowed in it.
        unsafe { self.set::<u16, PORT>(port.0) };
    }

    /// Number of buffers (segments) of the packet; 1 if it fits into a buffer.
    #[inline(always)]
    #[must_use]
    pub fn nb_segs(&self) -> u16 {
        // SAFETY: the field is a u16.
        unsafe { self.get::<u16, NB_SEGS>() }
    }

    /// Reference count; more than 1 only if a driver keeps a reference.
    #[inline(always)]
    #[must_use]
    pub fn refcnt(&self) -> u16 {
        // SAFETY: the field is a u16, aligned to 2 and allocated while `self` lives. Drivers change it atomically.
        unsafe { AtomicU16::from_ptr(self.0.as_ptr().byte_add(REFCNT).cast()) }.load(Ordering::Relaxed)
    }

    /// Flags that the driver set on reception, and offload requests to it (`RTE_MBUF_F_*`).
    #[inline(always)]
    #[must_use]
    pub fn ol_flags(&self) -> u64 {
        // SAFETY: the field is a u64.
        unsafe { self.get::<u64, OL_FLAGS>() }
    }

    /// Sets the offload requests.
    #[inline(always)]
    pub(crate) fn set_ol_flags(&mut self, flags: u64) {
        // SAFETY: the field is a u64; callers keep the flag of external buffers.
        unsafe { self.set::<u64, OL_FLAGS>(flags) };
    }

    /// First byte of the packet. Other processes that map the buffer may change it at any time.
    #[inline(always)]
    #[must_use]
    pub fn data(&self) -> *mut u8 {
        // No dereference: data_off is at most buf_len, and either way this is only an address.
        self.buf_addr().wrapping_add(usize::from(self.data_off()))
    }

    /// Sets where in its buffer the packet is.
    ///
    /// # Errors
    /// [`BoundsError`] if it would exceed the buffer, or has several segments.
    #[inline(always)]
    pub fn set_bounds(&mut self, offset: u16, length: u16) -> Result<(), BoundsError> {
        let (buffer, segments) = (self.buf_len(), self.nb_segs());
        if u32::from(offset) + u32::from(length) > u32::from(buffer) || segments != 1 {
            return Err(BoundsError { offset, length, buffer, segments });
        }
        // SAFETY: just checked.
        unsafe { self.set_bounds_unchecked(offset, length) };
        Ok(())
    }

    /// Cuts what follows the first `length` bytes off a packet in one buffer; another one stays as it is.
    pub fn truncate(&mut self, length: u32) {
        let in_first = u16::try_from(length).unwrap_or(u16::MAX);
        if self.nb_segs() == 1 && in_first < self.data_len() {
            // SAFETY: a part of where the packet is already.
            unsafe { self.set_bounds_unchecked(self.data_off(), in_first) };
        }
    }

    /// [`Mbuf::set_bounds`] without the checks.
    ///
    /// # Safety
    /// `offset + length` is at most [`Mbuf::buf_len`], and [`Mbuf::nb_segs`] is 1.
    #[inline(always)]
    pub unsafe fn set_bounds_unchecked(&mut self, offset: u16, length: u16) {
        // SAFETY: the fields have these types; the caller keeps them within the buffer.
        unsafe {
            self.set::<u16, DATA_OFF>(offset);
            self.set::<u16, DATA_LEN>(length);
            self.set::<u32, PKT_LEN>(u32::from(length));
        }
    }

    /// Moves the beginning of the packet in its first buffer.
    ///
    /// # Safety
    /// `offset + in_first` is where the packet's bytes end in that buffer, and `whole` is what all its buffers hold.
    pub(crate) unsafe fn set_front(&mut self, offset: u16, in_first: u16, whole: u32) {
        // SAFETY: the fields have these types; the caller keeps them within the buffer.
        unsafe {
            self.set::<u16, DATA_OFF>(offset);
            self.set::<u16, DATA_LEN>(in_first);
            self.set::<u32, PKT_LEN>(whole);
        }
    }

    /// Copies the beginning of the packet to `out`; returns the number of bytes, at most those in the first buffer.
    pub fn copy_to(&self, out: &mut [u8]) -> usize {
        let length = out.len().min(usize::from(self.data_len()));
        // SAFETY: the packet lies in its buffer: `set_bounds` keeps to that, and a driver has filled it. `out` is
        // private memory. If another process that maps the buffer writes meanwhile, the bytes are any mixture, and
        // nothing here depends on them.
        unsafe { std::ptr::copy_nonoverlapping(self.data(), out.as_mut_ptr(), length) };
        length
    }

    /// Copies the first `N` bytes to `out` in a few moves. If the packet is shorter, this includes bytes of the buffer
    /// after the packet. Returns how many bytes belong to the packet; 0 if the buffer ends before `N` bytes.
    #[inline(always)]
    pub fn copy_first<const N: usize>(&self, out: &mut [u8; N]) -> usize {
        if usize::from(self.data_off()) + N > usize::from(self.buf_len()) {
            return 0;
        }
        // SAFETY: just checked that this is within the buffer; otherwise as in `copy_to`.
        unsafe { std::ptr::copy_nonoverlapping(self.data(), out.as_mut_ptr(), N) };
        N.min(usize::from(self.data_len()))
    }

    /// Overwrites the first bytes of the packet, as many as its first segment has, in a few moves.
    #[inline(always)]
    pub fn overwrite_first<const N: usize>(&mut self, bytes: &[u8; N]) {
        let length = usize::from(self.data_len());
        if length < N {
            // SAFETY: within the first segment, as in `copy_to`; `bytes` is other memory.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.data(), length) };
        } else {
            // SAFETY: as above. A copy of a known length takes `bytes` from registers; a call would load them again,
            // and loads that overlap several recent stores wait until all are in the cache.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.data(), N) };
        }
    }

    /// Overwrites the first bytes of the packet, as many as its first segment has.
    pub fn overwrite(&mut self, bytes: &[u8]) {
        let length = bytes.len().min(usize::from(self.data_len()));
        // SAFETY: within the first segment, as in `copy_to`; `bytes` is other memory, as no reference to a packet's
        // bytes is ever made.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.data(), length) };
    }

    /// Makes `bytes` the packet, at the place where it begins now.
    ///
    /// # Errors
    /// [`BoundsError`] if they do not fit into the buffer.
    pub fn copy_from(&mut self, bytes: &[u8]) -> Result<(), BoundsError> {
        let (offset, buffer) = (self.data_off(), self.buf_len());
        let length = u16::try_from(bytes.len()).map_err(|_| BoundsError {
            offset,
            length: u16::MAX,
            buffer,
            segments: self.nb_segs(),
        })?;
        self.set_bounds(offset, length)?;
        // SAFETY: just checked that this is within the buffer, which this thread owns; `bytes` is other memory, as no
        // reference to a packet's bytes is ever made.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.data(), bytes.len()) };
        Ok(())
    }
}

impl Drop for Mbuf {
    #[inline]
    fn drop(&mut self) {
        let mut mbuf = self.0.as_ptr();
        // SAFETY: `self` owns the mbuf (see `MbufPtr::own`) and gives it up here.
        unsafe { sys::netvm_mbuf_free(&raw mut mbuf, 1) };
    }
}
