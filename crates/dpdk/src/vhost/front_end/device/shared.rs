// SPDX-License-Identifier: Apache-2.0
//! What a front-end shares with a device: its guest's memory, the dirty log of migrations, and memory that outlives a
//! back-end.

use std::ffi::c_void;
use std::os::fd::OwnedFd;

use ::vhost::vhost_user::message::VhostUserInflight;
use dpdk_sys as sys;
use netvm_vhost_user::memory::{GuestMemory, SharedPart, new_shared_file};
use netvm_vhost_user::message::Reply;
use netvm_vhost_user::payload::structure;
use netvm_vhost_user::protocol::{Addresses, Region};
use vm_memory::ByteValued;

use super::super::super::truncated;
use super::Device;

/// What is shared, mapped.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) memory: GuestMemory,
    log: Option<SharedPart>,
    inflight: Option<SharedPart>,
}

impl Shared {
    fn pages(&self) -> impl Iterator<Item = (usize, usize)> {
        let parts = self.log.iter().chain(&self.inflight);
        self.memory.pages().chain(parts.map(SharedPart::pages))
    }
}

/// A guest's memory, as the ring code takes it.
fn regions(memory: &GuestMemory) -> Vec<sys::netvm_vhost_region> {
    let region = |(region, start): (&Region, usize)| sys::netvm_vhost_region {
        guest: region.physical,
        bytes: region.bytes,
        start,
    };
    memory.regions().map(region).collect()
}

/// Where the parts of a ring are mapped; `None` if they are outside.
fn translate(memory: &GuestMemory, at: &Addresses) -> Option<sys::netvm_vhost_ring_addresses> {
    Some(sys::netvm_vhost_ring_addresses {
        descriptors: memory.translate(at.descriptors)?,
        driver: memory.translate(at.driver)?,
        device: memory.translate(at.device)?,
    })
}

/// No worker uses the device while one of these runs; `None` ends the connection.
impl Device {
    /// Maps new memory, and moves started rings there.
    pub(super) fn set_memory(&mut self, files: Vec<OwnedFd>) -> Option<()> {
        if self.shared.memory.is(&self.protocol.memory, &files) {
            return Some(());
        }
        let memory = GuestMemory::map(&self.protocol.memory, files, self.is_copied_to)?;
        let before = std::mem::replace(&mut self.shared.memory, memory);
        let moved = self.move_rings();
        drop(before);
        moved
    }

    /// Maps a region more, where rings that have lost their memory may find it again.
    pub(super) fn add_region(&mut self, payload: &[u8], file: Option<OwnedFd>) -> Option<()> {
        let region = self.protocol.slot(payload)?;
        self.shared.memory.add(&region, file?, self.is_copied_to)?;
        self.move_rings()
    }

    /// Unmaps a region, once its rings are stopped.
    pub(super) fn remove_region(&mut self, payload: &[u8]) -> Option<()> {
        let region = self.protocol.slot(payload)?;
        let removed = self.shared.memory.remove(&region)?;
        let moved = self.move_rings();
        drop(removed);
        moved
    }

    /// Stops started rings, and starts them in the memory of now, as far as they are in it.
    fn move_rings(&mut self) -> Option<()> {
        // Until now, a worker may have touched a missing page of the old memory.
        self.record_pages();
        for (n, ring) in (0u16..).zip(&mut self.rings).filter(|(_, ring)| ring.started) {
            // SAFETY: the device exists, and no worker uses it.
            ring.lost.get_or_insert_with(|| unsafe { sys::netvm_vhost_stop(self.number, n) });
        }
        let regions = regions(&self.shared.memory);
        // SAFETY: as above; the regions are mapped until the device has others or is removed.
        unsafe { sys::netvm_vhost_set_memory(self.number, regions.as_ptr(), regions.len() as u32) };
        for n in 0..self.rings.len() as u16 {
            let lost =
                self.rings.get_mut(usize::from(n))?.lost.take_if(|_| self.protocol.is_in_memory(n.into()));
            if let Some(position) = lost {
                self.start_at(n, position)?;
            }
        }
        Some(())
    }

    fn record_pages(&self) {
        truncated::record_regions(self.number, self.shared.pages());
    }

    /// Starts a ring at a position, where the messages say.
    pub(super) fn start_at(&self, ring: u16, position: u16) -> Option<()> {
        let known = self.protocol.known(ring.into());
        let addresses = translate(&self.shared.memory, &known.addresses?)?;
        let inflight = self.inflight_of(ring).unwrap_or(std::ptr::null_mut());
        // Rings have at most 2^15 entries.
        let size = known.size? as u16;
        // SAFETY: the device exists, and no worker uses it; the function checks the addresses against the device's
        // memory. What is at `inflight` is mapped until the device is removed.
        let error = unsafe {
            sys::netvm_vhost_start(self.number, ring, &raw const addresses, size, position, inflight)
        };
        self.log_used(ring);
        (error == 0).then_some(())
    }

    /// Logs writes into a started ring's used ring, or no longer, as the messages say.
    pub(super) fn log_used(&self, ring: u16) {
        let log = self.protocol.known(ring.into()).log;
        // SAFETY: the device exists, and no worker uses it; there is such a ring.
        unsafe { sys::netvm_vhost_log_used(self.number, ring, log.is_some().into(), log.unwrap_or(0)) };
    }

    /// Maps a dirty log, in place of an older one.
    pub(super) fn set_log(&mut self, file: Option<OwnedFd>) -> Option<()> {
        let log = SharedPart::map(self.protocol.log?, file?)?;
        // SAFETY: the device exists, and no worker uses it; the log is mapped until it is replaced.
        unsafe { sys::netvm_vhost_set_log(self.number, log.start(), self.protocol.log?.bytes) };
        self.shared.log = Some(log);
        self.record_pages();
        Some(())
    }

    /// Unmaps the log if the front-end logs no longer.
    pub(super) fn end_log(&mut self) {
        if self.protocol.log.is_some() || self.shared.log.is_none() {
            return;
        }
        // SAFETY: as above.
        unsafe { sys::netvm_vhost_set_log(self.number, std::ptr::null_mut(), 0) };
        self.shared.log = None;
        self.record_pages();
    }

    /// Makes memory that the front-end keeps for the next back-end (vhost-user, `VHOST_USER_GET_INFLIGHT_FD`).
    pub(super) fn new_inflight(payload: &[u8]) -> Option<Reply> {
        let VhostUserInflight { num_queues, queue_size, .. } = structure(payload)?;
        let bytes = u64::from(num_queues) * u64::from(sys::NETVM_VHOST_INFLIGHT_BYTES);
        let answer = VhostUserInflight::new(bytes, 0, num_queues, queue_size);
        Some(Reply { payload: answer.as_slice().to_vec(), fd: Some(new_shared_file(bytes)?) })
    }

    /// Maps that memory; rings that start from now on keep their positions there.
    pub(super) fn set_inflight(&mut self, file: Option<OwnedFd>) -> Option<()> {
        self.shared.inflight = Some(SharedPart::map(self.protocol.inflight?.0, file?)?);
        self.record_pages();
        Some(())
    }

    /// Where a ring keeps its position for the next back-end.
    fn inflight_of(&self, ring: u16) -> Option<*mut c_void> {
        let (part, rings) = self.protocol.inflight?;
        let bytes = u64::from(sys::NETVM_VHOST_INFLIGHT_BYTES);
        let offset = u64::from(ring) * bytes;
        let start = self.shared.inflight.as_ref()?.start();
        (ring < rings && offset + bytes <= part.bytes).then(|| start.wrapping_byte_add(offset as usize))
    }
}
