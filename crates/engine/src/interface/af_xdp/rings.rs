//! Sizes of the rings of AF_XDP ports, and the memory that they receive into.

use std::collections::BTreeSet;

use netvm_model::{Host, PortConfig, PortKind};
use netvm_xsk::RingSizes;

use crate::ids::PortId;

/// Ring entries of a router's punt port: the kernel gets thousands of packets a second, not millions.
const PUNT_RING: u32 = 256;
/// Ring entries of all punt ports together, two buffers of 2 KB each, as far as [`MIN_RING`] allows.
const PUNT_RINGS: u32 = 16_384;
/// The fewest entries of a ring.
const MIN_RING: u32 = 64;

/// The memory into which an AF_XDP port receives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XskMemory {
    pub(super) rings: RingSizes,
    /// The port has private memory, instead of the engine's.
    pub(super) is_private: bool,
}

/// The AF_XDP queues of a host, counted once for all ports that open.
#[derive(Debug)]
pub(crate) struct XskQueues {
    punts: BTreeSet<PortId>,
    /// Queues that receive into the engine's own memory.
    own: u32,
}

impl XskQueues {
    pub(crate) fn of(host: &Host) -> Self {
        let interfaces = host.routers.iter().flat_map(|router| &router.interfaces);
        let punts: BTreeSet<PortId> = interfaces.map(|interface| interface.punt).collect();
        let is_own = |port: &&PortConfig| {
            matches!(port.kind, PortKind::AfXdp { .. })
                && !punts.contains(&port.id)
                && host.landing_group(port).is_none()
        };
        let own = host.ports.iter().filter(is_own).map(|port| u32::from(port.queues.max(1))).sum();
        Self { punts, own }
    }

    /// The memory of an AF_XDP port that receives into a memory of `buffers` buffers. All ports in the engine's own
    /// memory share half of it; punt ports copy.
    pub(crate) fn memory(&self, host: &Host, config: &PortConfig, buffers: u32) -> XskMemory {
        let within = |share: u32, most: u32| (1 << share.max(MIN_RING).ilog2()).min(most);
        let is_private = self.punts.contains(&config.id);
        let full = RingSizes::default().fill;
        let entries = if is_private {
            within(PUNT_RINGS / self.punts.len().max(1) as u32, PUNT_RING)
        } else if self.own > 0 && host.landing_group(config).is_none() {
            within(buffers / 2 / self.own, full)
        } else {
            full
        };
        XskMemory {
            rings: RingSizes { fill: entries, rx: entries, tx: entries, completion: entries },
            is_private,
        }
    }

    /// Buffers of the engine's own memory: twice what its ports' rings hold when full, within bounds.
    pub(crate) fn own_buffers(&self) -> u32 {
        (self.own * 2 * RingSizes::default().fill).next_power_of_two().clamp(8192, 65_536)
    }
}
