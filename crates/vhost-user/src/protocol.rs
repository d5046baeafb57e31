//! The state machine of the vhost-user protocol: which messages a guest's front-end may send in which state.
//!
//! The specification leaves it to the back-end what to do with a ring that changes while it is in use, or that starts
//! without a size or memory. So this module checks each message against the earlier ones, and a front-end that breaks
//! the protocol is disconnected:
//!
//! ```text
//!           SET_VRING_NUM        SET_VRING_ADDR         SET_VRING_KICK
//!   unknown ─────────────▶ sized ──────────────▶ placed ──────────────▶ started ──▶ unknown
//!                                                                        GET_VRING_BASE
//! ```
//!
//! A started ring does not change, and its parts stay within shared memory. QEMU, DPDK's `virtio_user` and front-ends
//! on rust-vmm's `vhost` conform. A message that fails later also ends the connection, so this state never differs from
//! the device's.

use std::os::fd::OwnedFd;

use vhost::vhost_user::message::{
    VhostUserMemory, VhostUserMemoryRegion, VhostUserMsgValidator, VhostUserVringAddr, VhostUserVringState,
};

use crate::payload::{number, structure};
use crate::request::{
    GET_FEATURES, GET_PROTOCOL_FEATURES, GET_QUEUE_NUM, GET_STATUS, GET_VRING_BASE, NET_SET_MTU, RESET_OWNER,
    SET_FEATURES, SET_MEM_TABLE, SET_OWNER, SET_PROTOCOL_FEATURES, SET_STATUS, SET_VRING_ADDR,
    SET_VRING_BASE, SET_VRING_CALL, SET_VRING_ENABLE, SET_VRING_ERR, SET_VRING_KICK, SET_VRING_NUM,
};
use crate::{Refusal, descriptors};

/// Bits of virtio features (virtio 1.2 sections 5.1.3 and 6).
const MULTIQUEUE: u64 = 1 << 22;
const EVENT_INDEX: u64 = 1 << 29;
/// `VIRTIO_F_RING_PACKED`.
pub const PACKED: u64 = 1 << 34;

/// Rings that a device can have, two a queue pair.
pub const RINGS: u32 = 128;
/// Entries of the longest ring and of the shortest one served.
pub const MAX_RING: u32 = 32_768;
/// See [`MAX_RING`].
pub const MIN_RING: u32 = 32;
/// Regions in one message at most.
pub const REGIONS: usize = 8;
/// Bytes of the longest message, which has these regions.
pub(crate) const MAX_BYTES: usize = 8 + 32 * REGIONS;

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
    fn new(region: &VhostUserMemoryRegion) -> Option<Self> {
        region.is_valid().then_some(Self {
            physical: region.guest_phys_addr,
            bytes: region.memory_size,
            start: region.user_addr,
            offset: region.mmap_offset,
        })
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
#[derive(Clone, Copy, Debug)]
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
    /// It may be used.
    pub started: bool,
}

impl Ring {
    const UNKNOWN: Self = Self { size: None, base: None, addresses: None, started: false };

    /// Whether the ring is valid with these features in this memory.
    fn fits(&self, features: u64, memory: &[Region]) -> bool {
        let (Some(size), Some(at)) = (self.size, self.addresses) else { return false };
        let packed = features & PACKED != 0;
        let entries = u64::from(size);
        // Virtio 1.2 sections 2.7 and 2.8: bytes and alignment of each part.
        let event = if features & EVENT_INDEX == 0 { 0 } else { 2 };
        let (driver, device) = if packed {
            ((4, 4), (4, 4))
        } else {
            ((4 + 2 * entries + event, 2), (4 + 8 * entries + event, 4))
        };
        let held = |address: u64, (bytes, alignment): (u64, u64)| {
            // The first region that contains the address counts.
            let region = memory.iter().find(|region| region.begins(address));
            region.is_some_and(|region| region.holds(address, bytes, alignment))
        };
        let within = |base: u32| base & 0x7fff < size && base >> 16 & 0x7fff < size;
        held(at.descriptors, (16 * entries, 16))
            && held(at.driver, driver)
            && held(at.device, device)
            && (!packed || self.base.is_some_and(within))
    }
}

/// The state of one front-end.
#[derive(Debug, Default)]
pub struct Protocol {
    /// Accepted virtio features.
    pub features: u64,
    /// Regions of shared memory.
    pub memory: Vec<Region>,
    rings: Vec<Ring>,
}

impl Protocol {
    fn ring(&mut self, index: u32) -> Option<&mut Ring> {
        let index = (index < RINGS).then_some(index as usize)?;
        if self.rings.len() <= index {
            self.rings.resize(index + 1, Ring::UNKNOWN);
        }
        self.rings.get_mut(index)
    }

    /// What is known of a ring.
    #[must_use]
    pub fn known(&self, index: u32) -> Ring {
        self.rings.get(index as usize).copied().unwrap_or(Ring::UNKNOWN)
    }

    /// Checks a message and its descriptors against those before it, and applies it to this state.
    ///
    /// # Errors
    /// Why the front-end is disconnected.
    pub fn check(&mut self, request: u32, payload: &[u8], fds: &[OwnedFd]) -> Result<(), Refusal> {
        self.allows(request, payload).ok_or(Refusal::Protocol)?;
        descriptors::check(request, payload, fds)
    }

    /// Applies a message; `None` if the front-end may not send it now.
    fn allows(&mut self, request: u32, payload: &[u8]) -> Option<()> {
        match request {
            // Back-ends must ignore RESET_OWNER, which is obsolete.
            GET_FEATURES | SET_OWNER | GET_PROTOCOL_FEATURES | GET_QUEUE_NUM | GET_STATUS | RESET_OWNER => {
                Some(())
            }
            SET_FEATURES => self.set_features(number(payload)?),
            SET_MEM_TABLE => self.set_memory(payload),
            SET_VRING_NUM => self.set_size(&structure(payload)?),
            SET_VRING_ADDR => self.set_addresses(&structure(payload)?),
            SET_VRING_BASE => {
                let VhostUserVringState { index, num } = structure(payload)?;
                let ring = self.ring(index).filter(|ring| !ring.started)?;
                ring.base = Some(num);
                Some(())
            }
            GET_VRING_BASE => {
                *self.ring(structure::<VhostUserVringState>(payload)?.index)? = Ring::UNKNOWN;
                Some(())
            }
            SET_VRING_KICK => self.start(number(payload)? as u32 & 0xff),
            SET_VRING_CALL
            | SET_VRING_ERR
            | SET_PROTOCOL_FEATURES
            | SET_VRING_ENABLE
            | NET_SET_MTU
            | SET_STATUS => number(payload).map(|_| ()),
            // Logs of migrations, in-flight descriptors, IOMMUs, postcopy, RARP and other devices' messages: not
            // offered.
            _ => None,
        }
    }

    fn set_features(&mut self, features: u64) -> Option<()> {
        let changed = self.features ^ features;
        if changed != 0 && self.rings.iter().any(|ring| ring.started) {
            return None;
        }
        self.features = features;
        if changed & PACKED != 0 {
            self.rings.fill(Ring::UNKNOWN);
        } else if changed != 0 {
            self.rings.iter_mut().for_each(|ring| ring.addresses = None);
        }
        if features & MULTIQUEUE == 0 {
            // There are no others without it.
            self.rings.truncate(2);
        }
        Some(())
    }

    fn set_memory(&mut self, payload: &[u8]) -> Option<()> {
        let count = structure::<VhostUserMemory>(payload)?.num_regions as usize;
        if count > REGIONS {
            return None;
        }
        let rest = payload.get(size_of::<VhostUserMemory>()..)?;
        let region = |n: usize| Region::new(&structure(rest.get(n * size_of::<VhostUserMemoryRegion>()..)?)?);
        let memory = (0..count).map(region).collect::<Option<Vec<_>>>()?;
        let fits = |ring: &Ring| !ring.started || ring.fits(self.features, &memory);
        self.rings.iter().all(fits).then(|| self.memory = memory)
    }

    fn set_size(&mut self, &VhostUserVringState { index, num: size }: &VhostUserVringState) -> Option<()> {
        let packed = self.features & PACKED != 0;
        if !(MIN_RING..=MAX_RING).contains(&size) || !(packed || size.is_power_of_two()) {
            return None;
        }
        let ring = self.ring(index).filter(|ring| !ring.started)?;
        (ring.size, ring.addresses) = (Some(size), None);
        Some(())
    }

    /// The log's address is unused.
    fn set_addresses(&mut self, at: &VhostUserVringAddr) -> Option<()> {
        let ring = self.ring(at.index).filter(|ring| !ring.started && ring.size.is_some())?;
        ring.addresses =
            Some(Addresses { descriptors: at.descriptor, driver: at.available, device: at.used });
        Some(())
    }

    fn start(&mut self, index: u32) -> Option<()> {
        let features = self.features;
        let ring = *self.ring(index)?;
        if !ring.fits(features, &self.memory) || (index >= 2 && features & MULTIQUEUE == 0) {
            return None;
        }
        self.ring(index)?.started = true;
        Some(())
    }
}

#[cfg(test)]
mod tests;
