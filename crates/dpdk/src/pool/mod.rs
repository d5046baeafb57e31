// SPDX-License-Identifier: Apache-2.0
//! Pools of packets over memory that the caller maps and may share.
//!
//! The mbuf headers are in the EAL's memory, which only this process maps; the packets' bytes are in buffers of the
//! caller's memory (`rte_pktmbuf_pool_create_extbuf`). Buffer i always belongs to the same mbuf: a table gives the mbuf
//! of a buffer, and a subtraction, a shift and a multiplication give the buffer of an mbuf.

mod buffers;
mod dma_mapping;
mod memory;
mod options;

use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};

use dpdk_sys as sys;

use crate::log::{Control, c_string};
use crate::{Batch, Eal, Mbuf, MbufPtr, NumaNode};
pub use buffers::{BufferIndex, BufferLayout, HEADROOM, PoolBuffers};
use dma_mapping::Dma;
pub use dma_mapping::DmaError;
pub(crate) use dma_mapping::DmaPort;
pub use memory::{HeapMemory, PacketMemory};
use options::{MAX_STRIDE, cache_limit};
pub use options::{PoolError, PoolOptions, Store};

/// Addresses of the existing pools. A thread that ends its registration returns the contents of its caches to them.
static LIVE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Returns the contents of this thread's caches to the pools.
pub(crate) fn flush_this_thread() {
    for &pool in LIVE.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        // SAFETY: a pool is freed only after it has been taken off the list, which is locked. The function works on
        // the calling thread's own cache.
        unsafe { sys::netvm_pool_flush(pool as *mut sys::rte_mempool) };
    }
}

/// A pool of packets.
///
/// If it is dropped while packets are out, it and its memory stay allocated, so that the packets stay valid.
///
/// ```
/// use std::sync::Arc;
/// use dpdk::{Batch, BufferLayout, Eal, EalOptions, HeapMemory, HugePages, Pool, PoolBuffers, PoolOptions};
///
/// let eal = Eal::init(&EalOptions { huge_pages: HugePages::Off, ..EalOptions::default() })?;
/// let layout = BufferLayout { first: 0, stride: 2048, buffers: 1024, headroom: 128 };
/// let memory = Arc::new(HeapMemory::new(1024 * 2048).ok_or("no memory")?);
/// let pool = Pool::over_region(eal, "example", PoolBuffers { memory, layout }, PoolOptions::default())?;
///
/// let mut batch = Batch::new();
/// assert_eq!(pool.alloc_into(&mut batch, 32), 32);
/// let packet = &batch.as_slice()[0];
/// let buffer = pool.buffer_of(packet);
/// assert_eq!(pool.mbuf_of(buffer), Some(packet.as_ptr()));
/// assert_eq!(pool.in_use(), 32);
/// drop(batch);
/// assert_eq!(pool.in_use(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Pool {
    name: String,
    mempool: NonNull<sys::rte_mempool>,
    /// The mbuf of each buffer.
    table: Box<[MbufPtr]>,
    index: BufferIndex,
    layout: BufferLayout,
    dma: Dma,
    /// Dropped after the mempool is freed, or never.
    memory: ManuallyDrop<Arc<dyn PacketMemory>>,
}

// SAFETY: the mempool's handlers are multi-producer and multi-consumer (see Store), its caches belong to threads, and
// everything else is read-only or locked.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// Makes a pool whose packets' bytes are in these buffers.
    ///
    /// `name` appears in DPDK's own tools; it need not be unique and is cut to some 20 bytes there.
    ///
    /// # Errors
    /// [`PoolError`] names the invalid option or the failure.
    pub fn over_region(
        _eal: Eal,
        name: &str,
        buffers: PoolBuffers,
        options: PoolOptions,
    ) -> Result<Self, PoolError> {
        let PoolBuffers { memory, layout } = buffers;
        check(name, memory.as_ref(), layout, options)?;
        let own = || name.to_owned();
        let unique = c_string(&unique_name(name)).map_err(|_| PoolError::Name(own()))?;
        let buffers = memory.base().as_ptr().wrapping_add(layout.first);

        let control = Control::enter();
        let mut handler = options.store.handler();
        // SAFETY: a NUL-terminated string; the table of handlers is filled by the plug-ins that the EAL has loaded.
        if unsafe { sys::netvm_pool_has_handler(handler.as_ptr()) } == 0 {
            handler = Store::Ring.handler();
        }
        let spec = sys::netvm_pool_spec {
            name: unique.as_ptr(),
            handler: handler.as_ptr(),
            buffers: buffers.cast(),
            count: layout.buffers,
            stride: layout.stride,
            size: layout.size(),
            cache: options.cache,
            node: NumaNode::to_signed(options.node),
        };
        let mut mempool = ptr::null_mut();
        // SAFETY: the strings live until the call returns; `check` has made sure that the buffers lie in the memory,
        // which PacketMemory keeps mapped; `control` excludes other callers.
        let error = unsafe { sys::netvm_pool_create(&raw const spec, &raw mut mempool) };
        let Some(mempool) = NonNull::new(mempool).filter(|_| error == 0) else {
            let bytes = Self::eal_bytes(layout.buffers);
            return Err(PoolError::Refused { name: own(), errno: -error, log: control.log(), bytes });
        };
        drop(control);

        let index = BufferIndex::new(buffers as usize, layout.stride);
        let mut pool = Self {
            name: own(),
            mempool,
            table: Box::default(),
            index,
            layout,
            dma: Dma::default(),
            memory: ManuallyDrop::new(memory),
        };
        LIVE.lock().unwrap_or_else(PoisonError::into_inner).push(mempool.as_ptr() as usize);
        pool.table = table(mempool, layout.buffers);
        if let Some(buffer) = pool.first_misplaced() {
            return Err(PoolError::Order { name: own(), buffer });
        }
        pool.dma = Dma::place(pool.memory.as_ref(), &pool.table);
        Ok(pool)
    }

    /// Upper bound of the EAL memory for the mbuf headers of a pool with this many buffers, for
    /// [`crate::EalOptions::memory_mib`].
    #[must_use]
    pub const fn eal_bytes(buffers: u32) -> u64 {
        sys::NETVM_POOL_BYTES_FIXED as u64 + buffers as u64 * sys::NETVM_POOL_BYTES_PER_BUFFER as u64
    }

    /// The name that it was made with.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How its memory is divided.
    #[must_use]
    pub const fn layout(&self) -> BufferLayout {
        self.layout
    }

    /// The mbuf of a buffer; `None` if there is no such buffer.
    ///
    /// This does not mean that the caller owns it.
    #[inline(always)]
    #[must_use]
    pub fn mbuf_of(&self, buffer: u32) -> Option<MbufPtr> {
        self.table.get(buffer as usize).copied()
    }

    /// Turns addresses into buffer numbers.
    #[inline(always)]
    #[must_use]
    pub const fn buffer_index(&self) -> BufferIndex {
        self.index
    }

    /// The buffer of a packet of this pool; any number for a packet of another.
    #[inline(always)]
    #[must_use]
    pub fn buffer_of(&self, packet: &Mbuf) -> u32 {
        self.index.of_packet(packet)
    }

    /// Whether a packet is of this pool.
    #[inline(always)]
    #[must_use]
    pub fn owns(&self, packet: &Mbuf) -> bool {
        self.mbuf_of(self.buffer_of(packet)) == Some(packet.as_ptr())
    }

    /// Adds `count` packets to the batch, or as many as it has room for, and returns how many; 0 if the pool has too
    /// few. They are empty and begin at [`HEADROOM`].
    #[inline]
    pub fn alloc_into(&self, batch: &mut Batch, count: usize) -> usize {
        self.alloc_frames_into(batch, count, HEADROOM, 0)
    }

    /// [`Pool::alloc_into`] for packets of `length` bytes at `offset` in the buffer, with arbitrary contents; none if
    /// they exceed the buffer.
    #[inline]
    pub fn alloc_frames_into(&self, batch: &mut Batch, count: usize, offset: u16, length: u16) -> usize {
        let (spare, room) = batch.spare();
        let count = count.min(room);
        if count == 0 || u32::from(offset) + u32::from(length) > self.layout.size() {
            return 0;
        }
        let mempool = self.mempool.as_ptr();
        // SAFETY: there is room for `count` pointers; the pool is alive; the packets lie in their buffers.
        if unsafe { sys::netvm_pool_alloc(mempool, spare, count as u32, offset, length) } != 0 {
            return 0;
        }
        // SAFETY: the call has written `count` mbufs without another owner.
        unsafe { batch.assume_added(count) };
        count
    }

    /// Packets in the pool, including threads' caches. Visits the caches of all possible threads; approximate while
    /// packets move.
    #[must_use]
    pub fn available(&self) -> u32 {
        // SAFETY: the pool is alive; the function only reads.
        unsafe { sys::rte_mempool_avail_count(self.mempool.as_ptr()) }
    }

    /// Packets that are out of the pool: in drivers, batches or NFs.
    #[must_use]
    pub fn in_use(&self) -> u32 {
        self.layout.buffers.saturating_sub(self.available())
    }

    pub(crate) fn mempool(&self) -> *mut sys::rte_mempool {
        self.mempool.as_ptr()
    }

    /// Lets a port's device reach the buffers.
    pub(crate) fn map_for(&self, port: DmaPort) -> Result<(), DmaError> {
        self.dma.map_for(self.memory.as_ref(), port)
    }

    /// Undoes [`Pool::map_for`].
    pub(crate) fn unmap_for(&self, port: DmaPort) {
        self.dma.unmap_for(self.memory.as_ref(), port);
    }

    /// The first buffer that its mbuf does not point to.
    fn first_misplaced(&self) -> Option<u32> {
        let first = self.memory.base().as_ptr() as usize + self.layout.first;
        (0..self.layout.buffers).find(|&buffer| {
            self.mbuf_of(buffer).is_none_or(|mbuf| {
                // SAFETY: the pool is new and not shared yet, so its mbufs may be read although they are in the pool.
                let packet = unsafe { mbuf.borrow() };
                packet.buf_addr() as usize != first + buffer as usize * self.layout.stride as usize
                    || u32::from(packet.buf_len()) != self.layout.size()
            })
        })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
        let whole = (0..100).find_map(|_| {
            // SAFETY: the pool is alive. Only its methods and ports take packets from it; ports hold it in an Arc, so
            // none is left.
            match unsafe { sys::netvm_pool_is_whole(self.mempool.as_ptr()) } {
                1 => Some(true),
                error if error == -libc::EAGAIN => None,
                _ => Some(false),
            }
        });
        if whole != Some(true) {
            // Packets are out: keep the pool and its memory for their owners.
            return;
        }
        live.retain(|&pool| pool != self.mempool.as_ptr() as usize);
        drop(live);
        self.dma.forget(self.memory.as_ref());
        let _control = Control::enter();
        // SAFETY: all mbufs are in the pool and no thread is inside a call that put one there, so no pointer into
        // it is left; it is off the list that ending threads visit. `memory` is not used afterwards.
        unsafe {
            sys::rte_mempool_free(self.mempool.as_ptr());
            ManuallyDrop::drop(&mut self.memory);
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("name", &self.name).field("layout", &self.layout).finish_non_exhaustive()
    }
}

fn check(
    name: &str,
    memory: &dyn PacketMemory,
    layout: BufferLayout,
    options: PoolOptions,
) -> Result<(), PoolError> {
    let BufferLayout { stride, buffers, headroom, .. } = layout;
    let own = || name.to_owned();
    if buffers == 0 {
        return Err(PoolError::Empty(own()));
    }
    if stride < u32::from(HEADROOM) + 64 || stride > MAX_STRIDE {
        return Err(PoolError::Stride { name: own(), stride });
    }
    if headroom > HEADROOM {
        return Err(PoolError::Headroom { name: own(), headroom });
    }
    let end = layout.end().unwrap_or(usize::MAX);
    if end > memory.len() {
        return Err(PoolError::Outside { name: own(), end, bytes: memory.len() });
    }
    if options.cache > cache_limit(buffers) {
        return Err(PoolError::Cache { name: own(), cache: options.cache, buffers });
    }
    Ok(())
}

/// At most 24 bytes: DPDK puts prefixes before it in names of 32.
fn unique_name(name: &str) -> String {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let mut unique = format!("nv{number}-{name}");
    unique.truncate((0..=24).rev().find(|&at| unique.is_char_boundary(at)).unwrap_or(0));
    unique
}

/// The pool's mbufs in the order of their buffers; fewer than `buffers` if DPDK made fewer.
fn table(mempool: NonNull<sys::rte_mempool>, buffers: u32) -> Box<[MbufPtr]> {
    let mut table = vec![ptr::null_mut(); buffers as usize];
    // SAFETY: the pool is alive and the table has the length given.
    unsafe { sys::netvm_pool_table(mempool.as_ptr(), table.as_mut_ptr(), buffers) };
    table.into_iter().map_while(NonNull::new).map(MbufPtr::new).collect()
}
