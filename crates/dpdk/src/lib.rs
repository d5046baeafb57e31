// SPDX-License-Identifier: Apache-2.0
//! A safe wrapper of the parts of DPDK 22.11 to 25.11 that netvm uses.
//!
//! | module | contents |
//! |---|---|
//! | `eal` | [`Eal`]: started once, with or without huge pages and privileges; threads register with it; [`cycles()`] |
//! | `pool` | [`Pool`]: packets whose bytes are in memory that the caller maps and shares, and whose headers are private |
//! | `packet` | [`Mbuf`] owns a packet, [`MbufPtr`] is its address, [`Batch`] owns up to 64; offloads of guests' packets |
//! | `port` | [`PortBuilder`] opens a [`Port`] on a [`Device`]; [`RxQueue`] and [`TxQueue`] move batches |
//! | `acl` | [`AclBuilder`] compiles rules into an [`Acl`]: DPDK's `rte_acl` |
//! | `vhost` | [`VhostPort`] serves a vhost-user socket; [`VhostQueue`] moves batches from and to the guest |
//! | `dma_channel` | [`DmaChannel`]: a DMA engine that copies to a port's guest |
//! | `ring` | [`ring()`]: DPDK's `rte_ring`, for comparison |
//!
//! Types express ownership. Safe code cannot free a packet twice or use one that it has sent: [`Mbuf`] and
//! [`Batch`] are not copied, sending takes packets out of the batch, and a pool that is dropped while packets are out
//! stays allocated. Queues are handles that move between threads and are not shared. Unchecked operations are `unsafe`
//! and document their conditions.
//!
//! Nothing on the packet path allocates, locks or logs, and there is one call into C per burst.

mod acl;
mod dma_channel;
mod eal;
mod ids;
mod inherit;
mod log;
mod packet;
mod pool;
mod port;
mod ring;
mod vhost;

pub use acl::{Acl, AclBuilder, AclError, AclField, AclKind, AclValue};
pub use dma_channel::{DmaChannel, DmaChannelError, DmaChannelStats};
pub use eal::{Eal, EalError, EalOptions, HugePages, ThreadError, ThreadGuard, cycles, tsc_hz, version};
pub use ids::{NumaNode, PortNumber, QueueId};
pub use log::LogLevel;
pub use netvm_vhost_user::Refusal as VhostRefusal;
pub use packet::{
    Batch, BoundsError, Drain, MAX_HEADER_LENGTHS, MAX_PARTS, Mbuf, MbufPtr, Oversized, Part, RawMbuf,
    Unfinished,
};
pub use pool::{
    BufferIndex, BufferLayout, DmaError, HEADROOM, HeapMemory, PacketMemory, Pool, PoolBuffers, PoolError,
    PoolOptions, Store,
};
pub use port::{
    Device, Link, PciAddress, PciAddressError, Port, PortBuilder, PortError, PortInfo, PortStats, RxQueue,
    Started, TxQueue,
};
pub use ring::{RingConsumer, RingError, RingProducer, ring};
pub use vhost::{
    Accepts, DmaChannelStatus, VhostError, VhostMode, VhostOptions, VhostPort, VhostQueue, VhostStatus,
};
