// SPDX-License-Identifier: Apache-2.0
//! What a front-end shares besides a table of regions: single regions (`VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS`),
//! and memory that outlives a back-end (`VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD`).

use vhost::vhost_user::message::{
    VhostUserInflight, VhostUserMemory, VhostUserMemoryRegion, VhostUserProtocolFeatures,
    VhostUserSingleMemoryRegion,
};

use super::{Part, Protocol, REGIONS, RINGS, Region, SLOTS};
use crate::payload::structure;

/// Bytes of the memory for inflight I/O at most: this many for each ring, whatever back-end made it.
const MAX_INFLIGHT_OF_RING: u64 = 2 << 20;

impl Protocol {
    /// A table of all regions.
    pub(super) fn set_memory(&mut self, payload: &[u8]) -> Option<()> {
        let count = structure::<VhostUserMemory>(payload)?.num_regions as usize;
        if count > REGIONS {
            return None;
        }
        let rest = payload.get(size_of::<VhostUserMemory>()..)?;
        let region = |n: usize| Region::new(&structure(rest.get(n * size_of::<VhostUserMemoryRegion>()..)?)?);
        let memory = (0..count).map(region).collect::<Option<Vec<_>>>()?;
        let fits = |ring: &super::Ring| !ring.started || ring.fits(self.features, &memory);
        self.rings.iter().all(fits).then(|| self.memory = memory)
    }

    /// A region more. What refers to its addresses finds regions that were there before first.
    pub(super) fn add_region(&mut self, payload: &[u8]) -> Option<()> {
        let region = self.slot(payload)?;
        (self.memory.len() < SLOTS).then(|| self.memory.push(region))
    }

    /// A region less. A ring in it, even a started one, is not used until its memory comes back: front-ends replace a
    /// region by two messages.
    pub(super) fn remove_region(&mut self, payload: &[u8]) -> Option<()> {
        let named = self.slot(payload)?;
        let place = self.memory.iter().position(|region| region.is_named(&named))?;
        self.memory.remove(place);
        Some(())
    }

    /// The region that a message adds or removes.
    #[must_use]
    pub fn slot(&self, payload: &[u8]) -> Option<Region> {
        let region = Region::new(&*structure::<VhostUserSingleMemoryRegion>(payload)?)?;
        self.has(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS).then_some(region)
    }

    /// Whether the front-end may ask for memory for inflight I/O.
    pub(super) fn asks_for_inflight(&self, inflight: &VhostUserInflight) -> Option<()> {
        let rings = u32::from(inflight.num_queues);
        (self.has(VhostUserProtocolFeatures::INFLIGHT_SHMFD) && (1..=RINGS).contains(&rings)).then_some(())
    }

    /// Memory for inflight I/O that this or an earlier back-end made, before any ring is started.
    pub(super) fn set_inflight(&mut self, inflight: &VhostUserInflight) -> Option<()> {
        self.asks_for_inflight(inflight)?;
        let part = Part { bytes: inflight.mmap_size, offset: inflight.mmap_offset };
        let most = u64::from(inflight.num_queues) * MAX_INFLIGHT_OF_RING;
        let is_sound = (1..=most).contains(&part.bytes)
            && part.offset.is_multiple_of(8)
            && part.offset.checked_add(part.bytes).is_some()
            && !self.rings.iter().any(|ring| ring.started);
        is_sound.then(|| self.inflight = Some((part, inflight.num_queues)))
    }

    pub(super) fn may_announce(&self, mac: u64) -> Option<()> {
        let mac = mac.to_ne_bytes();
        let is_unicast = mac[0] & 1 == 0 && mac[..6] != [0; 6];
        (self.has(VhostUserProtocolFeatures::RARP) && is_unicast).then_some(())
    }
}
