// SPDX-License-Identifier: Apache-2.0
//! Regions of memory, and rings in them.

use vhost::vhost_user::message::{VhostUserMemoryRegion, VhostUserMsgValidator};

use super::{EVENT_INDEX, PACKED};

/// A region of shared memory: its addresses in the guest and in the front-end, and its offset in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// In the guest.
    pub physical: u64,
    /// Its length.
    pub bytes: u64,
    /// In the front-end.
    pub start: u64,
    /// In the file.
    pub offset: u64,
}

impl Region {
    pub(super) fn new(region: &VhostUserMemoryRegion) -> Option<Self> {
        region.is_valid().then_some(Self {
            physical: region.guest_phys_addr,
            bytes: region.memory_size,
            start: region.user_addr,
            offset: region.mmap_offset,
        })
    }

    /// Whether a message names the same region (vhost-user, `VHOST_USER_REM_MEM_REG`).
    pub(crate) fn is_named(&self, named: &Self) -> bool {
        let name = |region: &Self| (region.physical, region.bytes, region.start);
        name(self) == name(named)
    }

    /// Whether it contains `bytes` bytes from an address on, with this alignment in netvm's mapping.
    fn holds(&self, address: u64, bytes: u64, alignment: u64) -> bool {
        let Some(distance) = address.checked_sub(self.start) else { return false };
        distance.checked_add(bytes).is_some_and(|end| end <= self.bytes)
            && distance.wrapping_add(self.offset).is_multiple_of(alignment)
    }

    fn begins(&self, address: u64) -> bool {
        address.checked_sub(self.start).is_some_and(|distance| distance < self.bytes)
    }
}

/// Addresses of a ring: its descriptors, and the areas that the driver and the device write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The descriptors.
    pub descriptors: u64,
    /// The area that the driver writes.
    pub driver: u64,
    /// The area that the device writes.
    pub device: u64,
}

/// A ring, as the messages say.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    /// Its entries.
    pub size: Option<u32>,
    /// The index to continue at; for packed rings, two indexes in one word (vhost-user, "Vring state").
    pub base: Option<u32>,
    /// Where it lies.
    pub addresses: Option<Addresses>,
    /// The guest's address of the area that the device writes, if writes there are logged (`VHOST_VRING_F_LOG`).
    pub log: Option<u64>,
    /// It may be used.
    pub started: bool,
}

/// Bytes of the areas that the driver and the device write, and their alignments (virtio 1.2 sections 2.7 and 2.8).
struct Areas {
    driver: (u64, u64),
    device: (u64, u64),
}

impl Areas {
    fn of(entries: u64, features: u64) -> Self {
        if features & PACKED != 0 {
            return Self { driver: (4, 4), device: (4, 4) };
        }
        let event = if features & EVENT_INDEX == 0 { 0 } else { 2 };
        Self { driver: (4 + 2 * entries + event, 2), device: (4 + 8 * entries + event, 4) }
    }
}

impl Ring {
    pub(super) const UNKNOWN: Self =
        Self { size: None, base: None, addresses: None, log: None, started: false };

    /// Whether the ring is valid with these features in this memory.
    pub(super) fn fits(&self, features: u64, memory: &[Region]) -> bool {
        let (Some(size), Some(at)) = (self.size, self.addresses) else { return false };
        let packed = features & PACKED != 0;
        let entries = u64::from(size);
        let areas = Areas::of(entries, features);
        let held = |address: u64, (bytes, alignment): (u64, u64)| {
            // The first region that contains the address counts.
            let region = memory.iter().find(|region| region.begins(address));
            region.is_some_and(|region| region.holds(address, bytes, alignment))
        };
        let within = |base: u32| base & 0x7fff < size && base >> 16 & 0x7fff < size;
        held(at.descriptors, (16 * entries, 16))
            && held(at.driver, areas.driver)
            && held(at.device, areas.device)
            && (!packed || self.base.is_some_and(within))
    }

    /// The last address of the guest at which writes into the ring are logged; `None` if they are not.
    pub(super) fn last_logged(&self, features: u64) -> Option<u64> {
        let (size, log) = (self.size?, self.log.filter(|_| self.started)?);
        Some(log.saturating_add(Areas::of(size.into(), features).device.0 - 1))
    }
}
