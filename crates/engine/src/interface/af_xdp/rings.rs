// SPDX-License-Identifier: Apache-2.0
//! Sizes of the rings of AF_XDP ports, and the memory that they receive into.

use std::collections::{BTreeMap, BTreeSet};

use netvm_model::{Host, PortConfig, PortKind};
use netvm_xsk::RingSizes;

use crate::ids::{GroupId, PortId};

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
    /// Queues that receive into the memory of a group.
    of_group: BTreeMap<GroupId, u32>,
}

impl XskQueues {
    pub(crate) fn of(host: &Host) -> Self {
        let interfaces = host.routers.iter().flat_map(|router| &router.interfaces);
        let punts: BTreeSet<PortId> = interfaces.map(|interface| interface.punt).collect();
        let counts =
            |port: &&PortConfig| matches!(port.kind, PortKind::AfXdp { .. }) && !punts.contains(&port.id);
        let (mut own, mut of_group) = (0, BTreeMap::new());
        for port in host.ports.iter().filter(counts) {
            let queues = match host.landing_group(port) {
                Some(group) => of_group.entry(group).or_default(),
                None => &mut own,
            };
            *queues += u32::from(port.queues.max(1));
        }
        Self { punts, own, of_group }
    }

    /// The memory of an AF_XDP port that receives into a memory of `buffers` buffers. All ports in a memory share half
    /// of it; punt ports copy.
    pub(crate) fn memory(&self, host: &Host, config: &PortConfig, buffers: u32) -> XskMemory {
        let within = |share: u32, most: u32| (1 << share.max(MIN_RING).ilog2()).min(most);
        let is_private = self.punts.contains(&config.id);
        let full = RingSizes::default().fill;
        let entries = if is_private {
            within(PUNT_RINGS / self.punts.len().max(1) as u32, PUNT_RING)
        } else {
            let queues = match host.landing_group(config) {
                Some(group) => self.of_group.get(&group).copied().unwrap_or_default(),
                None => self.own,
            };
            within(buffers / 2 / queues.max(1), full)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_a_group_leave_half_of_its_buffers() {
        let port = |name: &str| {
            format!("[[port]]\nname = \"{name}\"\nkind = \"af_xdp\"\ninterface = \"{name}\"\ngroup = \"g\"\n")
        };
        let ports: String = ["a", "b", "c", "d"].map(port).concat();
        let text = format!("[[group]]\nname = \"g\"\nbuffers = 2048\n{ports}");
        let host = netvm_config::parse("rings", &text).unwrap().host;
        let queues = XskQueues::of(&host);
        let entries = |buffers: u32| queues.memory(&host, &host.ports[0], buffers).rings.fill;
        assert_eq!([2048, 4096, 16_384, 65_536].map(entries), [256, 512, 2048, 2048]);
    }
}
