// SPDX-License-Identifier: Apache-2.0
//! Counters. Each has one writer, a worker, and any number of readers that never stall it. Those that users see are
//! entries of the tables of `netvm-counters`. The others are declared here.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use netvm_counters::words;
use netvm_model::MAX_ROUTERS;
use netvm_region::{MAX_CHAINS, MAX_PORTS};
use netvm_wire::Malformed;

use crate::drop_reason::{DropReason, Violation};
use crate::link::MAX_LINKS;

/// A counter with one writer: a load and a store, no locked instruction.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds. Only the counter's writer may call it.
    #[inline(always)]
    pub(crate) fn add(&self, by: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    }

    /// Sets a value that is not a sum, such as a length. Only the counter's writer may call it.
    #[inline(always)]
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The value now.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

netvm_counters::monitor! { words! {
    /// Counters of a worker's flow monitor; all 0 without one.
    #[derive(Debug, Default)]
    pub words MonitorCounters: Counter {}
    /// Counts of the flow monitors.
    pub counts MonitorCounts;
} }

netvm_counters::connections! { words! {
    /// Counters of a worker's connections; all 0 if no port tracks them.
    #[derive(Debug, Default)]
    pub words ConnectionCounters: Counter {}
    /// Counts of connections.
    pub counts ConnectionCounts;
} }

/// Drops by reason.
#[derive(Debug)]
pub struct Drops([Counter; DropReason::COUNT]);

impl Default for Drops {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Counter::default()))
    }
}

impl Drops {
    #[inline]
    pub(crate) fn add(&self, reason: DropReason, by: u64) {
        self.0[reason as usize].add(by);
    }

    /// Packets dropped for a reason.
    #[must_use]
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize].get()
    }
}

/// Drops by reason, without zeros.
pub type DropCounts = Vec<(DropReason, u64)>;

netvm_counters::port! { words! {
    /// One worker's counters of one port.
    #[derive(Debug, Default)]
    #[repr(align(128))]
    pub words PortCounters: Counter {
        /// Drops of packets received here before they entered a chain, and of packets to be sent here.
        pub drops: Drops,
        /// If it is a punt port: counters of the virtual router's interface.
        pub interface: InterfaceCounters,
        /// Cycles that its packets took, and turns in which it had to wait; counted if a port has a share of the
        /// worker.
        pub cycles: Counter,
        /// See `cycles`.
        pub waited: Counter,
        /// Cycles that its packets took in timed turns, from receive to dispatch.
        pub timed_cycles: Counter,
        /// Packets of chains that entered a program by it, and that came back from a program by it.
        pub into_hop: Counter,
        /// See `into_hop`.
        pub from_hop: Counter,
        /// Probes that came back from a program by it.
        pub probes: Counter,
        /// [`DropReason::Malformed`] and [`DropReason::TooManyHeaders`] by cause ([`Malformed`]).
        pub malformed: [Counter; Malformed::COUNT],
    }
    /// Counts of a port.
    pub counts PortCounts;
} }

netvm_counters::interface! { words! {
    /// One worker's counters of an interface of a virtual router: what it receives and sends, forwarded or by the
    /// kernel.
    #[derive(Debug, Default)]
    pub words InterfaceCounters: Counter {}
    /// Counts of packets through an interface of a virtual router.
    pub counts InterfaceCounts;
} }

netvm_counters::queue! { words! {
    /// Counters of one queue of a port's shaper.
    #[derive(Debug, Default)]
    #[repr(align(128))]
    pub(crate) words QueueCounters: Counter {}
    /// Counts of one queue of a port's shaper.
    pub(crate) counts QueueCounts;
} }

netvm_counters::chain! { words! {
    /// One worker's counters of one chain.
    #[derive(Debug, Default)]
    #[repr(align(128))]
    pub words ChainCounters: Counter {
        /// Drops at the chain's entry or inside it.
        pub drops: Drops,
    }
    /// Counts of a chain.
    pub counts ChainCounts;
} }

netvm_counters::router! { words! {
    /// One worker's counters of one virtual router.
    #[derive(Debug, Default)]
    #[repr(align(128))]
    pub words RouterCounters: Counter {}
    /// Counts of a virtual router.
    pub counts RouterCounts;
} }

netvm_counters::nf! { words! {
    /// One worker's counters of one NF thread.
    #[derive(Debug, Default)]
    #[repr(C, align(128))]
    pub words LinkCounters: Counter {
        /// Packets that the engine handed to it. Not the first field, as that may have the same offset in its page as a
        /// ring's index has. Processors that compare only these 12 bits of addresses let the load wait for the store of
        /// the index (4K aliasing).
        pub delivered: Counter,
        /// Packets that it returned to the engine.
        pub returned: Counter,
        /// Drops because of its verdict, an invalid descriptor, or its full ring.
        pub drops: Drops,
        /// Violations: events that no correct NF causes.
        pub violations: [Counter; Violation::COUNT],
    }
    /// Counts of an NF thread that workers keep.
    pub counts LinkCounts;
} }

/// The stages of the packet path in a worker (NetVM paper, Table 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Stage {
    /// From the port's queue into mbufs.
    Receive,
    /// Parsing and steering, and descriptors into an NF's ring.
    Deliver,
    /// Descriptors out of an NF's ring, checked.
    Collect,
    /// Into the port's transmit queue.
    Transmit,
}

impl Stage {
    /// All stages in the order of the packet path.
    pub const ALL: [Self; 4] = [Self::Receive, Self::Deliver, Self::Collect, Self::Transmit];

    /// Display name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Receive => "port to engine",
            Self::Deliver => "engine to NF",
            Self::Collect => "NF to engine",
            Self::Transmit => "engine to port",
        }
    }
}

/// Cycles and packets of one stage in the timed turns.
#[derive(Debug, Default)]
pub struct StageCounters {
    /// Cycles.
    pub cycles: Counter,
    /// Packets.
    pub packets: Counter,
}

netvm_counters::worker! { words! {
    /// All counters of one worker.
    #[derive(Debug, Default)]
    pub words WorkerCounters: Counter {
        /// By port number.
        pub ports: Box<[PortCounters]>,
        /// By chain number.
        pub chains: Box<[ChainCounters]>,
        /// By router number.
        pub routers: Box<[RouterCounters]>,
        /// By link number.
        pub links: Box<[LinkCounters]>,
        /// By [`Stage`].
        pub stages: [StageCounters; Stage::ALL.len()],
        /// Turns of the loop.
        pub turns: Counter,
        /// Cycles spent in turns that had packets.
        pub busy_cycles: Counter,
        /// Packets received or collected in these turns.
        pub busy_packets: Counter,
        /// How often it woke another worker.
        pub woken_workers: Counter,
        /// Buffers reclaimed from NFs that ended.
        pub reclaimed: Counter,
        /// Request to the manager for a chain with bypassed hops: `1 << 32 | chain << 16 | hops`, or 0.
        pub(crate) wanted_chain: AtomicU64,
        /// The flow monitor's.
        pub monitor: MonitorCounters,
        /// The tracked connections'.
        pub connections: ConnectionCounters,
        /// Whether packets that other workers have received waited for it when it last finished what was handed over,
        /// for want of room in a chain.
        pub(crate) has_arrivals: AtomicBool,
        /// Whether latencies are measured; the manager sets it.
        pub(crate) measures_latency: AtomicBool,
        /// Whether nobody wants to know what happens to connections; the manager sets it.
        pub(crate) ignores_events: AtomicBool,
        /// Longest turn of the loop since the start in cycles, without sleep.
        pub longest_turn: Counter,
    }
    /// Counts of a worker.
    pub counts WorkerCounts;
} }

impl WorkerCounters {
    pub(crate) fn new() -> Self {
        fn many<T: Default>(count: usize) -> Box<[T]> {
            (0..count).map(|_| T::default()).collect()
        }
        Self {
            ports: many(MAX_PORTS),
            chains: many(MAX_CHAINS),
            routers: many(MAX_ROUTERS),
            links: many(MAX_LINKS),
            ..Self::default()
        }
    }
}
