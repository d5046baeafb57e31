// SPDX-License-Identifier: Apache-2.0
//! The doorbell register of a VM's `ivshmem-doorbell` device (QEMU's `docs/specs/ivshmem-spec`, "Doorbell").
//!
//! On a write of `peer << 16 | vector` to the register at byte 12, QEMU or KVM signals an eventfd on the host. netvm is
//! peer 0; its vectors are the workers, then the NF threads.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

const PAGE: u64 = 4096;
/// Bytes of the registers, and the offset of the doorbell register.
const REGISTERS: u64 = 256;
const DOORBELL_AT: u64 = 12;

/// The mapped register.
#[derive(Debug)]
pub(crate) struct Doorbell {
    page: NonNull<u8>,
    register: NonNull<u32>,
    workers: usize,
}

// SAFETY: the register is only written, a word at a time; a device accepts writes from any thread.
unsafe impl Send for Doorbell {}
// SAFETY: as above.
unsafe impl Sync for Doorbell {}

impl Doorbell {
    /// Maps the registers of the device in this sysfs folder.
    pub(crate) fn open(device: &Path, workers: usize) -> io::Result<Self> {
        let list = fs::read_to_string(device.join("resource"))?;
        let first = list.split_whitespace().next().and_then(|word| word.strip_prefix("0x"));
        let address = first.and_then(|word| u64::from_str_radix(word, 16).ok());
        // The mapping starts at a page boundary; the registers' address gives their offset in the page.
        let within = address.map(|address| address % PAGE).filter(|within| within + REGISTERS <= PAGE);
        let within = within.ok_or_else(|| io::Error::other("the registers are not within one page"))?;
        let file = OpenOptions::new().read(true).write(true).open(device.join("resource0"))?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address of the new mapping, so it replaces no existing one.
        let page =
            unsafe { mmap(std::ptr::null_mut(), PAGE as usize, protection, MapFlags::SHARED, &file, 0) }?;
        let page = NonNull::new(page.cast::<u8>()).ok_or(io::ErrorKind::Other)?;
        // SAFETY: within the page, as checked above; registers are aligned to 16 bytes (PCI specification 3.0,
        // 6.2.5.1).
        let register = unsafe { page.add((within + DOORBELL_AT) as usize) }.cast();
        Ok(Self { page, register, workers })
    }

    /// Number of the workers' vectors, which precede those of the NF threads.
    pub(crate) const fn workers(&self) -> usize {
        self.workers
    }

    /// Signals one of the host's eventfds; a vector that does not exist has no effect.
    pub(crate) fn ring(&self, vector: usize) {
        const PEER: u32 = 0;
        let word = PEER << 16 | vector as u32 & 0xffff;
        // SAFETY: mapped until `self` is dropped; the register is aligned and may be written at any time.
        unsafe { self.register.as_ptr().write_volatile(word) };
    }
}

impl Drop for Doorbell {
    fn drop(&mut self) {
        // SAFETY: mapped by `open`, and unmapped only here. A failure leaves it mapped, which is harmless.
        let _ = unsafe { munmap(self.page.as_ptr().cast(), PAGE as usize) };
    }
}
