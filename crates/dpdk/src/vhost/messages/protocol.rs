//! The state machine of the vhost-user protocol: which messages a guest's front-end may send in which state.
//!
//! DPDK's library accepts most messages at any time: it resizes rings in use, starts rings without a size or with freed
//! lists, and takes parts of a packed ring for those of a split one (22.11 to 25.11). So this module checks each
//! message against the earlier ones, and a front-end that breaks the protocol is disconnected:
//!
//! ```text
//!           SET_VRING_NUM        SET_VRING_ADDR         SET_VRING_KICK
//!   unknown ─────────────▶ sized ──────────────▶ placed ──────────────▶ started ──▶ unknown
//!                                                                        GET_VRING_BASE
//! ```
//!
//! A started ring does not change, and its parts stay within shared memory. QEMU, DPDK's `virtio_user` and front-ends
//! on rust-vmm's `vhost` conform. A message that fails in the library also ends the connection, so this state never
//! differs from the library's.

use dpdk_sys as sys;

use crate::vhost_user::{
    GET_FEATURES, GET_PROTOCOL_FEATURES, GET_QUEUE_NUM, GET_STATUS, GET_VRING_BASE, NET_SET_MTU, RESET_OWNER,
    SET_FEATURES, SET_MEM_TABLE, SET_OWNER, SET_PROTOCOL_FEATURES, SET_STATUS, SET_VRING_ADDR,
    SET_VRING_BASE, SET_VRING_CALL, SET_VRING_ENABLE, SET_VRING_ERR, SET_VRING_KICK, SET_VRING_NUM,
};

/// Bits of virtio features (virtio 1.2 sections 5.1.3 and 6).
const MULTIQUEUE: u64 = 1 << 22;
const EVENT_INDEX: u64 = 1 << 29;
const PACKED: u64 = 1 << 34;

/// Rings that a device can have, two a queue pair.
const RINGS: u32 = 256;
/// Entries of the longest ring (virtio 1.2 section 2.6) and of the shortest one served. If a guest claims more buffers
/// than entries in a ring shorter than a burst, the library writes beyond its list of used buffers, and beyond the
/// ring.
const LONGEST: u32 = 1 << 15;
const SHORTEST: u32 = sys::NETVM_VHOST_BURST;
/// Regions in one message at most, and bytes of that longest message.
pub(super) const REGIONS: usize = 8;
pub(super) const MOST_BYTES: usize = 8 + 32 * REGIONS;

/// A region of shared memory: its addresses in the guest and in the front-end, and its offset in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Region {
    physical: u64,
    bytes: u64,
    start: u64,
    offset: u64,
}

impl Region {
    /// Whether it contains `bytes` bytes from an address on, with this alignment in netvm's mapping.
    fn holds(&self, address: u64, bytes: u64, alignment: u64) -> bool {
        let Some(distance) = address.checked_sub(self.start) else { return false };
        distance.checked_add(bytes).is_some_and(|end| end <= self.bytes)
            && distance.wrapping_add(self.offset).is_multiple_of(alignment)
    }

    fn begins(&self, address: u64) -> bool {
        address.checked_sub(self.start).is_some_and(|distance| distance < self.bytes)
    }

    /// The fields by which the library decides whether memory has changed.
    const fn key(&self) -> [u64; 3] {
        [self.physical, self.bytes, self.start]
    }
}

/// Addresses of a ring: its descriptors, and the areas that the driver and the device write.
#[derive(Clone, Copy, Debug)]
struct Addresses {
    descriptors: u64,
    driver: u64,
    device: u64,
}

#[derive(Clone, Copy, Debug)]
struct Ring {
    size: Option<u32>,
    /// The index to continue at; for packed rings, two indexes in one word (vhost-user, "Vring state").
    base: Option<u32>,
    addresses: Option<Addresses>,
    started: bool,
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
            // The library looks only at the first region that contains the address.
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
#[derive(Debug)]
pub(super) struct Protocol {
    features: u64,
    memory: Vec<Region>,
    rings: Vec<Ring>,
}

impl Protocol {
    pub(super) const fn new() -> Self {
        Self { features: 0, memory: Vec::new(), rings: Vec::new() }
    }

    fn ring(&mut self, index: u32) -> Option<&mut Ring> {
        let index = (index < RINGS).then_some(index as usize)?;
        if self.rings.len() <= index {
            self.rings.resize(index + 1, Ring::UNKNOWN);
        }
        self.rings.get_mut(index)
    }

    /// Applies a message; `None` if the front-end may not send it now.
    pub(super) fn allows(&mut self, request: u32, payload: &[u8]) -> Option<()> {
        match request {
            // RESET_OWNER is ignored later.
            GET_FEATURES | SET_OWNER | GET_PROTOCOL_FEATURES | GET_QUEUE_NUM | GET_STATUS | RESET_OWNER => {
                Some(())
            }
            SET_FEATURES => self.set_features(word(payload, 0)?),
            SET_MEM_TABLE => self.set_memory(payload),
            SET_VRING_NUM => self.set_size(state(payload)?),
            SET_VRING_ADDR => self.set_addresses(payload),
            SET_VRING_BASE => {
                let (index, base) = state(payload)?;
                let ring = self.ring(index).filter(|ring| !ring.started)?;
                ring.base = Some(base);
                Some(())
            }
            GET_VRING_BASE => {
                *self.ring(state(payload)?.0)? = Ring::UNKNOWN;
                Some(())
            }
            SET_VRING_KICK => self.start(word(payload, 0)? as u32 & 0xff),
            SET_VRING_CALL
            | SET_VRING_ERR
            | SET_PROTOCOL_FEATURES
            | SET_VRING_ENABLE
            | NET_SET_MTU
            | SET_STATUS => word(payload, 0).map(|_| ()),
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
            // The library frees them.
            self.rings.truncate(2);
        }
        Some(())
    }

    fn set_memory(&mut self, payload: &[u8]) -> Option<()> {
        let count = word(payload, 0)? as u32 as usize;
        let region = |n: usize| {
            let field = |field| word(payload, 1 + 4 * n + field);
            Some(Region { physical: field(0)?, bytes: field(1)?, start: field(2)?, offset: field(3)? })
        };
        let memory = (0..count.min(REGIONS + 1)).map(region).collect::<Option<Vec<_>>>()?;
        let ends = |region: &Region| region.start.checked_add(region.bytes).is_some();
        if count > REGIONS || !memory.iter().all(ends) {
            return None;
        }
        // The library ignores an unchanged table.
        if !self.memory.is_empty() && self.memory.iter().map(Region::key).eq(memory.iter().map(Region::key)) {
            return Some(());
        }
        let fits = |ring: &Ring| !ring.started || ring.fits(self.features, &memory);
        self.rings.iter().all(fits).then(|| self.memory = memory)
    }

    fn set_size(&mut self, (index, size): (u32, u32)) -> Option<()> {
        let packed = self.features & PACKED != 0;
        if !(SHORTEST..=LONGEST).contains(&size) || !(packed || size.is_power_of_two()) {
            return None;
        }
        let ring = self.ring(index).filter(|ring| !ring.started)?;
        (ring.size, ring.addresses) = (Some(size), None);
        Some(())
    }

    fn set_addresses(&mut self, payload: &[u8]) -> Option<()> {
        let index = word(payload, 0)? as u32;
        let (descriptors, device, driver) = (word(payload, 1)?, word(payload, 2)?, word(payload, 3)?);
        // The log's address is unused.
        word(payload, 4)?;
        let ring = self.ring(index).filter(|ring| !ring.started && ring.size.is_some())?;
        ring.addresses = Some(Addresses { descriptors, driver, device });
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

/// The `n`th 8-byte word of a payload.
pub(super) fn word(payload: &[u8], n: usize) -> Option<u64> {
    payload.get(8 * n..8 * n + 8)?.try_into().ok().map(u64::from_ne_bytes)
}

/// A ring's index and value (vhost-user, "Vring state").
fn state(payload: &[u8]) -> Option<(u32, u32)> {
    let (index, number) = payload.get(..8)?.split_at(4);
    Some((u32::from_ne_bytes(index.try_into().ok()?), u32::from_ne_bytes(number.try_into().ok()?)))
}

/// Messages during which the library holds the locks of all vrings (DPDK 22.11 to 25.11). They change memory or rings,
/// so relays pause the device before they pass them on.
pub(in crate::vhost) const fn locks_vrings(request: u32) -> bool {
    matches!(
        request,
        SET_FEATURES
            | SET_OWNER
            | SET_MEM_TABLE
            | SET_VRING_NUM
            | SET_VRING_ADDR
            | SET_VRING_BASE
            | SET_VRING_KICK
            | SET_VRING_CALL
            | SET_VRING_ERR
            | SET_PROTOCOL_FEATURES
            | SET_VRING_ENABLE
            | NET_SET_MTU
    )
}

#[cfg(test)]
mod tests;
