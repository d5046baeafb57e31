// SPDX-License-Identifier: Apache-2.0
//! The dirty log of migrations: while it is on, netvm marks each page of the guest that it writes (vhost-user,
//! "Migration").
//!
//! The front-end gives a file for the log (`SET_LOG_BASE`), turns logging on by a feature (`VHOST_F_LOG_ALL`), and
//! gives each ring's address anew with `VHOST_VRING_F_LOG`, all of this while the rings run. A log must have a bit for
//! every page of the memory and of the rings; without such a log, no ring is used while logging is on.

use vhost::vhost_user::message::{
    VhostUserLog, VhostUserProtocolFeatures, VhostUserVringAddr, VhostUserVringAddrFlags,
};

use super::{Addresses, Part, Protocol, Region};

/// `VHOST_F_LOG_ALL`.
pub const LOG_ALL: u64 = 1 << 26;
/// `VHOST_LOG_PAGE`.
const LOG_PAGE: u64 = 4096;
/// Bytes of the longest log: of addresses below 2^47.
const MAX_LOG: u64 = 1 << 32;

impl Protocol {
    /// Whether the front-end wants writes to be logged.
    #[must_use]
    pub const fn is_logging(&self) -> bool {
        self.features & LOG_ALL != 0 && self.has(VhostUserProtocolFeatures::LOG_SHMFD)
    }

    /// Whether everything that is to be logged can be.
    #[must_use]
    pub fn is_log_sufficient(&self) -> bool {
        !self.is_logging() || self.log.is_some_and(|log| self.covers(log.bytes))
    }

    /// Whether a log of so many bytes has a bit for every page that may be written.
    fn covers(&self, bytes: u64) -> bool {
        let has = |last: u64| last / LOG_PAGE / 8 < bytes;
        let last_of = |region: &Region| region.physical.saturating_add(region.bytes - 1);
        self.memory.iter().map(last_of).all(has)
            && self.rings.iter().filter_map(|ring| ring.last_logged(self.features)).all(has)
    }

    pub(super) fn set_log(&mut self, log: &VhostUserLog) -> Option<()> {
        let part = Part { bytes: log.mmap_size, offset: log.mmap_offset };
        let is_negotiated = self.has(VhostUserProtocolFeatures::LOG_SHMFD);
        let is_sound = (1..=MAX_LOG).contains(&part.bytes) && part.offset.checked_add(part.bytes).is_some();
        (is_negotiated && is_sound && self.covers(part.bytes)).then(|| self.log = Some(part))
    }

    /// A ring that is started keeps its place; only whether it is logged changes.
    pub(super) fn set_addresses(&mut self, at: &VhostUserVringAddr) -> Option<()> {
        let addresses = Addresses { descriptors: at.descriptor, driver: at.available, device: at.used };
        let logs = at.flags & VhostUserVringAddrFlags::VHOST_VRING_F_LOG.bits() != 0;
        let ring = self.ring(at.index).filter(|ring| ring.size.is_some())?;
        if ring.started && ring.addresses != Some(addresses) {
            return None;
        }
        (ring.addresses, ring.log) = (Some(addresses), logs.then_some(at.log));
        Some(())
    }
}
