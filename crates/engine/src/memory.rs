// SPDX-License-Identifier: Apache-2.0
//! The engine's view of a region: an mbuf for each buffer, the in-flight table, and the time stamps of captured
//! packets.
//!
//! Only the engine maps the mbuf headers. While an NF has a packet, [`crate::inflight`] owns its mbuf.

pub(crate) mod mark;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dpdk::{
    BufferLayout, Eal, EalOptions, HEADROOM, HugePages, Mbuf, NumaNode, PacketMemory, Pool, PoolBuffers,
    PoolError, PoolOptions,
};
use netvm_region::Region;

use crate::ids::{MemoryId, PortId};
use crate::inflight::InFlightTable;

/// What a capture says of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Nanoseconds since 1970.
    pub(crate) time: u64,
    /// The length on the wire.
    pub(crate) original: u32,
}

/// Packet memory on the packet path.
#[derive(Debug)]
pub struct Memory {
    /// Its number.
    pub id: MemoryId,
    /// The mbufs.
    pub pool: Arc<Pool>,
    /// The mbufs of large buffers, if it has any.
    pub large: Option<Arc<Pool>>,
    region: Arc<Region>,
    /// Buffers that NFs have.
    pub(crate) in_flight: Arc<InFlightTable>,
    /// For capture ports, per buffer: the time stamp, and the original length with the number of the capture port plus
    /// 1 in the upper half. A stamp of another port belongs to an earlier packet in the same buffer.
    stamps: Box<[[AtomicU64; 2]]>,
}

impl Memory {
    pub(crate) fn new(id: MemoryId, region: Arc<Region>, pools: Pools) -> Self {
        let Pools { pool, large } = pools;
        let in_flight = InFlightTable::new(Arc::clone(&region), pool.buffer_index());
        let stamps = (0..region.geometry().numbers()).map(|_| Default::default()).collect();
        Self { id, pool: Arc::new(pool), large: large.map(Arc::new), region, in_flight, stamps }
    }

    /// Free buffers of both sizes.
    pub(crate) fn free(&self) -> u32 {
        self.pool.available() + self.large.as_ref().map_or(0, |large| large.available())
    }

    /// The shared memory.
    #[inline(always)]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Stores a packet's stamp, valid for packets of its port; `None`: no capture port read it.
    pub(crate) fn set_stamp(&self, mbuf: &Mbuf, stamp: Option<Stamp>) {
        let Some([t, l]) = self.stamps.get(self.pool.buffer_of(mbuf) as usize) else { return };
        let noted = stamp.map_or(0, |Stamp { time, original }| {
            t.store(time, Ordering::Relaxed);
            u64::from(original) | read_by(mbuf.port().0)
        });
        l.store(noted, Ordering::Relaxed);
    }

    /// The stored stamp; `None` for a packet that no capture port read.
    pub(crate) fn stamp(&self, mbuf: &Mbuf) -> Option<Stamp> {
        let [t, l] = self.stamps.get(self.pool.buffer_of(mbuf) as usize)?;
        let noted = l.load(Ordering::Relaxed);
        let is_its_own = noted >> 32 == read_by(mbuf.port().0) >> 32;
        is_its_own.then(|| Stamp { time: t.load(Ordering::Relaxed), original: noted as u32 })
    }

    /// Copies the stamp of a packet to another one of this memory with the same port.
    pub(crate) fn copy_stamp(&self, from: &Mbuf, to: &Mbuf) {
        self.set_stamp(to, self.stamp(from));
    }

    /// Clears the stamps of a port whose number is about to be reused.
    pub(crate) fn forget_stamps(&self, port: PortId) {
        for [_, l] in &self.stamps {
            if l.load(Ordering::Relaxed) >> 32 == read_by(port.0) >> 32 {
                l.store(0, Ordering::Relaxed);
            }
        }
    }
}

/// The upper half of a stamp's second word.
const fn read_by(port: u16) -> u64 {
    (port as u64 + 1) << 32
}

/// A region as DPDK sees it.
struct Buffers(Arc<Region>);

// SAFETY: the region stays mapped at one address while the Arc lives; its buffers hold only packets, and the layout
// passed to the pool covers only them.
unsafe impl PacketMemory for Buffers {
    fn base(&self) -> core::ptr::NonNull<u8> {
        self.0.mapping().base()
    }

    fn len(&self) -> usize {
        self.0.mapping().len()
    }

    fn page_bytes(&self) -> usize {
        if self.0.mapping().pages() == netvm_region::PageKind::Huge { 2 << 20 } else { 4096 }
    }
}

/// EAL options: its memory holds only mbuf headers.
pub(crate) fn eal_options(huge_pages: bool, pci: bool) -> EalOptions {
    let huge_pages = if huge_pages { HugePages::Auto } else { HugePages::Off };
    EalOptions { huge_pages, memory_mib: 1024, pci, ..EalOptions::default() }
}

/// The pools of a memory.
#[derive(Debug)]
pub(crate) struct Pools {
    pool: Pool,
    large: Option<Pool>,
}

/// mbufs over the buffers of a region.
pub(crate) fn pools_over(
    eal: Eal,
    region: &Arc<Region>,
    id: MemoryId,
    node: u32,
) -> Result<Pools, PoolError> {
    let geometry = region.geometry();
    let layout = BufferLayout {
        first: geometry.buffers_at as usize,
        stride: geometry.stride,
        buffers: geometry.buffers,
        // Drivers use DPDK's build-time headroom; the configured one applies where netvm places packets.
        headroom: (geometry.headroom as u16).min(HEADROOM),
    };
    let buffers: Arc<dyn PacketMemory> = Arc::new(Buffers(Arc::clone(region)));
    // Few buffers must not all wait in the caches of some threads.
    let cache = PoolOptions::default().cache.min(geometry.buffers / 4);
    let options = PoolOptions { node: existing(node), cache, ..PoolOptions::default() };
    let pool = Pool::over_region(
        eal,
        &format!("memory-{id}"),
        PoolBuffers { memory: Arc::clone(&buffers), layout },
        options,
    )?;
    let large = (geometry.large > 0).then(|| {
        let layout = BufferLayout {
            first: layout.first + geometry.buffers as usize * geometry.stride as usize,
            stride: geometry.stride * geometry.large_numbers,
            buffers: geometry.large,
            ..layout
        };
        // Without a cache: for a segment of 64 KB, the cost of the shared store does not matter.
        let options = PoolOptions { cache: 0, ..options };
        Pool::over_region(eal, &format!("large-{id}"), PoolBuffers { memory: buffers, layout }, options)
    });
    Ok(Pools { pool, large: large.transpose()? })
}

/// The node, if this machine has it; a configured topology may name other nodes.
fn existing(node: u32) -> Option<NumaNode> {
    std::path::Path::new(&format!("/sys/devices/system/node/node{node}")).exists().then_some(NumaNode(node))
}

/// The EAL of a test process, which can start only one: without huge pages or root.
#[cfg(test)]
pub(crate) fn eal_for_tests() -> Eal {
    Eal::init(&eal_options(false, false)).unwrap()
}

#[cfg(test)]
impl Memory {
    /// A memory in ordinary pages, for tests without root: `buffers` of 512 bytes, and `rings` of `ring_capacity` in
    /// its region.
    pub(crate) fn for_tests(buffers: u32, rings: u16, ring_capacity: u32) -> Self {
        let spec = netvm_region::RegionSpec {
            buffers,
            stride: 512,
            headroom: HEADROOM,
            large: 4,
            rings,
            ring_capacity,
        };
        let region = Region::create("test", spec, netvm_region::Pages::Normal, None).unwrap();
        let (id, region) = (MemoryId(0), Arc::new(region));
        let pools = pools_over(eal_for_tests(), &region, id, 0).unwrap();
        Self::new(id, region, pools)
    }
}
