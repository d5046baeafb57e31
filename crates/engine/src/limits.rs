//! Limits that hold for all workers together. Limits of ports, rules and interfaces are in the snapshot, which workers share.
//!
//! And checks at build time that the limits of netvm-config (values in a file) and of netvm-region (sizes in shared memory)
//! agree. Neither crate depends on the other; the engine uses both.

use netvm_clock as clock;
use netvm_config::model;
use netvm_switch::Policer;

use crate::router::DestinationLimit;

/// Answers to rejected packets per second.
const REJECTS_PER_SECOND: u64 = 1000;
/// Answers at once.
const REJECT_BURST: u64 = 100;

/// Limits of an engine.
#[derive(Debug)]
pub(crate) struct SharedLimits {
    /// Answers to rejected packets.
    pub(crate) rejects: Option<Policer>,
    /// Packets punted for unresolved neighbours.
    pub(crate) misses: DestinationLimit,
    /// Packets punted for redirects.
    pub(crate) redirects: DestinationLimit,
}

impl SharedLimits {
    pub(crate) fn new() -> Self {
        let hz = clock::cycles_in_micros(1_000_000);
        Self {
            rejects: Policer::new(REJECTS_PER_SECOND, REJECT_BURST, hz).ok(),
            misses: DestinationLimit::of_misses(hz),
            redirects: DestinationLimit::of_redirects(hz),
        }
    }
}

const fn same(config: usize, region: usize) {
    assert!(config == region, "a limit of netvm-config is not the one of netvm-region");
}

const _: () = {
    same(model::MAX_CHAINS, netvm_region::MAX_CHAINS);
    same(model::MAX_HOPS, netvm_region::MAX_HOPS);
    same(model::MAX_ROLES, netvm_region::MAX_ROLES);
    same(model::MAX_PORTS, netvm_region::MAX_PORTS);
    same(model::MAX_WORKERS, netvm_region::MAX_WORKERS);
    // A trust group has a region on each node.
    same(model::MAX_NODES, netvm_region::MAX_REGIONS);
    same(model::MAX_THREADS, netvm_region::MAX_THREADS);
    same(model::MAX_REPLICAS, netvm_region::MAX_REPLICAS);
    // NF thread 0 is the engine.
    same(model::MAX_GROUP_THREADS + 1, netvm_region::MAX_NF_THREADS);
    same(model::NAME_BYTES, netvm_region::NAME_BYTES);
};
