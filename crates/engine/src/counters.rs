//! Counters: each has one writer, a worker, and any number of readers that never stall it.

use std::sync::atomic::{AtomicU64, Ordering};

use netvm_config::model::MAX_ROUTERS;
use netvm_region::{MAX_CHAINS, MAX_PORTS};
use netvm_wire::Malformed;

use crate::drop_reason::{DropReason, Violation};
use crate::link::MAX_LINKS;

/// A number that one thread counts up and others read: a load and a store, no locked instruction.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds; for the one thread that writes this counter.
    #[inline(always)]
    pub(crate) fn add(&self, by: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    }

    /// The value now.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Drops by reason.
#[derive(Debug, Default)]
pub struct Drops([Counter; DropReason::COUNT]);

impl Drops {
    #[inline]
    pub(crate) fn add(&self, reason: DropReason, by: u64) {
        self.0[reason as usize].add(by);
    }

    /// How many were dropped for a reason.
    #[must_use]
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize].get()
    }
}

/// What one worker counts of one port.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct PortCounters {
    /// Packets received.
    pub rx_packets: Counter,
    /// Bytes received, without FCS.
    pub rx_bytes: Counter,
    /// Packets given to the device to send.
    pub tx_packets: Counter,
    /// Bytes of these.
    pub tx_bytes: Counter,
    /// Drops of packets that came in here and had not entered a chain, or were to go out here.
    pub drops: Drops,
    /// Of [`DropReason::Malformed`], by [`Malformed`]: what was wrong.
    pub malformed: [Counter; Malformed::COUNT],
}

/// What one worker counts of one chain.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ChainCounters {
    /// Packets handed to the first hop.
    pub entered: Counter,
    /// Packets that left by a port.
    pub left: Counter,
    /// Drops in the chain, at its entry or later.
    pub drops: Drops,
}

/// What one worker counts of one virtual router.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct RouterCounters {
    /// Packets that were forwarded by its table.
    pub forwarded: Counter,
    /// Packets that its kernel got.
    pub punted: Counter,
    /// Packets that came from its kernel.
    pub from_kernel: Counter,
}

/// What one worker counts of one NF thread.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct LinkCounters {
    /// Packets handed to it by the engine.
    pub delivered: Counter,
    /// Packets taken from it by the engine.
    pub returned: Counter,
    /// Drops for what it said or did, or for its ring being full.
    pub drops: Drops,
    /// What no honest NF does.
    pub violations: [Counter; Violation::COUNT],
    /// Packets with which it decided about their flows.
    pub flows_decided: Counter,
    /// Packets with which it may not, or whose flow was no longer known.
    pub flows_refused: Counter,
}

/// The stages of the packet path (NetVM's Table 1), as one worker passes them.
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
    /// All of them, in the order of a packet's way.
    pub const ALL: [Self; 4] = [Self::Receive, Self::Deliver, Self::Collect, Self::Transmit];

    /// The name that people see; NetVM's in brackets.
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

/// Cycles and packets of one stage, over the turns that were timed.
#[derive(Debug, Default)]
pub struct StageCounters {
    /// Cycles.
    pub cycles: Counter,
    /// Packets.
    pub packets: Counter,
}

/// Everything that one worker counts.
#[derive(Debug)]
pub struct WorkerCounters {
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
    /// Packets of these turns, received or collected.
    pub busy_packets: Counter,
    /// How often the worker slept.
    pub sleeps: Counter,
    /// Packets copied from one region to another.
    pub copies: Counter,
    /// Bytes of these.
    pub copied_bytes: Counter,
    /// Buffers taken back from NFs that died or left.
    pub reclaimed: Counter,
    /// For the manager: a chain without some hops that is wanted, as `1 << 32 | chain << 16 | hops`, or 0.
    pub(crate) wanted_chain: AtomicU64,
    /// Longest turn of the loop since the start, in cycles, sleep excluded.
    pub longest_turn: Counter,
}

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
            stages: Default::default(),
            turns: Counter::default(),
            busy_cycles: Counter::default(),
            busy_packets: Counter::default(),
            sleeps: Counter::default(),
            copies: Counter::default(),
            copied_bytes: Counter::default(),
            reclaimed: Counter::default(),
            wanted_chain: AtomicU64::new(0),
            longest_turn: Counter::default(),
        }
    }
}
