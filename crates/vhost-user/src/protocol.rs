// SPDX-License-Identifier: Apache-2.0
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

mod log;
mod ring;
mod shared;

use std::os::fd::OwnedFd;

use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVringState};

use crate::payload::{number, structure};
use crate::request::{
    ADD_MEM_REG, GET_FEATURES, GET_INFLIGHT_FD, GET_MAX_MEM_SLOTS, GET_PROTOCOL_FEATURES, GET_QUEUE_NUM,
    GET_STATUS, GET_VRING_BASE, NET_SET_MTU, REM_MEM_REG, RESET_OWNER, SEND_RARP, SET_FEATURES,
    SET_INFLIGHT_FD, SET_LOG_BASE, SET_LOG_FD, SET_MEM_TABLE, SET_OWNER, SET_PROTOCOL_FEATURES, SET_STATUS,
    SET_VRING_ADDR, SET_VRING_BASE, SET_VRING_CALL, SET_VRING_ENABLE, SET_VRING_ERR, SET_VRING_KICK,
    SET_VRING_NUM,
};
use crate::{Refusal, descriptors};
pub use log::LOG_ALL;
pub use ring::{Addresses, Region, Ring};

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
/// Regions that a front-end may add one by one (vhost-user, `VHOST_USER_GET_MAX_MEM_SLOTS`).
pub const SLOTS: usize = 32;
/// Bytes of the longest message, which has these regions.
pub(crate) const MAX_BYTES: usize = 8 + 32 * REGIONS;

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its length.
    pub bytes: u64,
    /// Its beginning.
    pub offset: u64,
}

/// The state of one front-end.
#[derive(Debug, Default)]
pub struct Protocol {
    /// Accepted virtio features.
    pub features: u64,
    /// Accepted features of the protocol: bits of [`VhostUserProtocolFeatures`].
    pub protocol_features: u64,
    /// Regions of shared memory.
    pub memory: Vec<Region>,
    /// The dirty log of migrations: until logging ends.
    pub log: Option<Part>,
    /// Memory for inflight I/O, and for how many rings it is.
    pub inflight: Option<(Part, u16)>,
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

    const fn has(&self, feature: VhostUserProtocolFeatures) -> bool {
        self.protocol_features & feature.bits() != 0
    }

    /// What is known of a ring.
    #[must_use]
    pub fn known(&self, index: u32) -> Ring {
        self.rings.get(index as usize).copied().unwrap_or(Ring::UNKNOWN)
    }

    /// Whether a ring's parts are in the memory: a started ring may have lost it.
    #[must_use]
    pub fn is_in_memory(&self, index: u32) -> bool {
        self.known(index).fits(self.features, &self.memory)
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
            GET_MAX_MEM_SLOTS => self.has(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS).then_some(()),
            SET_FEATURES => self.set_features(number(payload)?),
            SET_PROTOCOL_FEATURES => {
                self.protocol_features = number(payload)?;
                Some(())
            }
            SET_MEM_TABLE => self.set_memory(payload),
            ADD_MEM_REG => self.add_region(payload),
            REM_MEM_REG => self.remove_region(payload),
            SET_LOG_BASE => self.set_log(&structure(payload)?),
            // It may be signalled when the log has changed. No front-end is known that waits for that.
            SET_LOG_FD => self.has(VhostUserProtocolFeatures::LOG_SHMFD).then_some(()),
            SEND_RARP => self.may_announce(number(payload)?),
            GET_INFLIGHT_FD => self.asks_for_inflight(&structure(payload)?),
            SET_INFLIGHT_FD => self.set_inflight(&structure(payload)?),
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
            SET_VRING_CALL | SET_VRING_ERR | SET_VRING_ENABLE | NET_SET_MTU | SET_STATUS => {
                number(payload).map(|_| ())
            }
            // IOMMUs, postcopy and other devices' messages: not offered.
            _ => None,
        }
    }

    fn set_features(&mut self, features: u64) -> Option<()> {
        // Logging begins and ends while rings are started.
        let changed = (self.features ^ features) & !LOG_ALL;
        if changed != 0 && self.rings.iter().any(|ring| ring.started) {
            return None;
        }
        if self.features & !features & LOG_ALL != 0 {
            self.log = None;
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

    fn set_size(&mut self, &VhostUserVringState { index, num: size }: &VhostUserVringState) -> Option<()> {
        let packed = self.features & PACKED != 0;
        if !(MIN_RING..=MAX_RING).contains(&size) || !(packed || size.is_power_of_two()) {
            return None;
        }
        let ring = self.ring(index).filter(|ring| !ring.started)?;
        (ring.size, ring.addresses) = (Some(size), None);
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
