// SPDX-License-Identifier: Apache-2.0
//! Options of a pool, and the errors of its creation.

use dpdk_sys as sys;

use super::HEADROOM;
use crate::NumaNode;
use crate::log::{quoted, reason};

/// The mempool handler, which stores free packets that are not in a thread's cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Store {
    /// Last in, first out (`stack`): reuses the most recently used buffers, so that the working set fits into the
    /// processor's caches even if one thread allocates packets and another frees them. Takes a spinlock when a thread's
    /// cache overflows or is empty. Falls back to [`Store::Ring`] if the handler is not installed.
    #[default]
    Stack,
    /// First in, first out without a lock (`ring_mp_mc`, DPDK's default): cycles through all buffers when threads'
    /// caches overflow.
    Ring,
}

impl Store {
    pub(super) const fn handler(self) -> &'static std::ffi::CStr {
        match self {
            Self::Stack => c"stack",
            Self::Ring => c"ring_mp_mc",
        }
    }
}

/// How a pool is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// NUMA node for the headers; `None`: any node.
    pub node: Option<NumaNode>,
    /// Cache size of each registered thread in packets: 0 to 512, and at most two thirds of the buffers. A thread
    /// returns packets to the store when its cache holds more than 1.5 times as many.
    pub cache: u32,
    /// Where the pool keeps its other free packets.
    pub store: Store,
}

impl Default for PoolOptions {
    /// Caches of 256, a stack, any node.
    fn default() -> Self {
        Self { node: None, cache: 256, store: Store::Stack }
    }
}

/// A pool could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// No buffers.
    #[error("pool {0}: no buffers; a pool needs at least one")]
    Empty(String),
    /// Buffers too small for a packet, or too far apart.
    #[error("pool {name}: buffers of {stride} bytes; use {} to {MAX_STRIDE}", HEADROOM + 64)]
    Stride {
        /// The pool.
        name: String,
        /// The value requested.
        stride: u32,
    },
    /// More headroom than drivers leave.
    #[error(
        "pool {name}: a headroom of {headroom} bytes, but DPDK's drivers put packets {HEADROOM} bytes into a buffer; \
         configure a headroom of at most {HEADROOM}"
    )]
    Headroom {
        /// The pool.
        name: String,
        /// The value requested.
        headroom: u16,
    },
    /// The buffers do not fit into the memory.
    #[error("pool {name}: its buffers end at byte {end} of memory of {bytes} bytes")]
    Outside {
        /// The pool.
        name: String,
        /// Where the last buffer would end.
        end: usize,
        /// Bytes of the memory.
        bytes: usize,
    },
    /// A cache larger than DPDK supports.
    #[error("pool {name}: caches of {cache} packets with {buffers} buffers; use at most {}", cache_limit(*.buffers))]
    Cache {
        /// The pool.
        name: String,
        /// The value requested.
        cache: u32,
        /// Buffers of the pool.
        buffers: u32,
    },
    /// A NUL byte in the name.
    #[error("pool {0:?}: a name cannot contain a NUL byte")]
    Name(String),
    /// DPDK refused.
    #[error(
        "pool {name}: DPDK cannot create it: {}{}; its headers take {} MiB of DPDK's memory, which is configured when \
         DPDK is started",
        reason(*.errno), quoted(.log), .bytes.div_ceil(1 << 20)
    )]
    Refused {
        /// The pool.
        name: String,
        /// The error number.
        errno: i32,
        /// What DPDK logged.
        log: String,
        /// EAL memory that the pool takes at most.
        bytes: u64,
    },
    /// DPDK did not assign buffer i to mbuf i.
    #[error("pool {name}: this DPDK assigned another buffer to mbuf {buffer}; the release is not supported")]
    Order {
        /// The pool.
        name: String,
        /// First buffer that differs.
        buffer: u32,
    },
}

/// Largest distance of buffers. An mbuf uses 65,535 bytes of it.
pub(super) const MAX_STRIDE: u32 = 128 << 10;

/// Largest cache for this many buffers: DPDK lets a cache grow to 1.5 times its size, and the pool must have so many.
pub(super) const fn cache_limit(buffers: u32) -> u32 {
    let most = buffers as u64 * 2 / 3;
    if most < sys::NETVM_CACHE_MAX as u64 { most as u32 } else { sys::NETVM_CACHE_MAX }
}
