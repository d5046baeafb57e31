// SPDX-License-Identifier: Apache-2.0
//! What a client asks of a device first: its regions and interrupts (`linux/vfio.h`).

use super::message::{Reply, word};
use super::pci_config;
use crate::nic::registers::{BAR_BYTES, IO_BYTES, MSIX_BYTES};
use crate::nic::{Doorbells, Model, pages};

pub(super) const EINVAL: u32 = 22;

/// Numbers of regions and of interrupts.
const REGIONS: u32 = 9;
const IRQS: u32 = 5;
pub(super) const BAR0: u32 = 0;
pub(super) const BAR1: u32 = 1;
pub(super) const BAR2: u32 = 2;
const BAR3: u32 = 3;
pub(super) const CONFIG: u32 = 7;
pub(super) const INTX: u32 = 0;
pub(super) const MSIX: u32 = 2;

const DEVICE_RESETS: u32 = 1;
const DEVICE_PCI: u32 = 1 << 1;
const REGION_READ_WRITE: u32 = 3;
const REGION_MAPS: u32 = 1 << 2;
const REGION_CAPABILITIES: u32 = 1 << 3;
const IRQ_EVENTFD: u32 = 1;
const IRQ_MASKABLE: u32 = 1 << 1;
const IRQ_AUTOMASKED: u32 = 1 << 2;

/// Bytes of a region's answer without capabilities, and of the capability for one mapped area.
const REGION_INFO: u32 = 32;
const SPARSE: u32 = 32;

pub(super) fn device_info() -> Reply {
    let words = [16, DEVICE_RESETS | DEVICE_PCI, REGIONS, IRQS];
    words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>().into()
}

/// Bytes of a region; 0 if the model does not have it.
pub(super) const fn region_bytes(model: Model, region: u32) -> u64 {
    match (model, region) {
        (_, BAR0) => BAR_BYTES,
        (Model::I82540, BAR1) | (Model::I82574, BAR2) => IO_BYTES,
        (Model::I82574, BAR3) => MSIX_BYTES,
        (_, CONFIG) => pci_config::BYTES as u64,
        _ => 0,
    }
}

pub(super) fn region_info(model: Model, doorbells: Doorbells, body: &[u8]) -> Result<Reply, u32> {
    let (Some(room), Some(index)) = (word(body, 0), word(body, 8)) else { return Err(EINVAL) };
    if index >= REGIONS {
        return Err(EINVAL);
    }
    let bytes = region_bytes(model, index);
    let (mut flags, mut capability, mut size) =
        (if bytes > 0 { REGION_READ_WRITE } else { 0 }, 0, REGION_INFO);
    let maps = index == BAR0 && doorbells == Doorbells::Mapped;
    if maps {
        flags |= REGION_MAPS | REGION_CAPABILITIES;
        size += SPARSE;
        capability = REGION_INFO;
    }
    // A client that has no room for the capability asks again; QEMU takes the offset for one within the answer.
    let passes_pages = maps && room >= size;
    let mut reply = Vec::new();
    for word in [size, flags, index, capability] {
        reply.extend(word.to_ne_bytes());
    }
    for long in [bytes, 0] {
        reply.extend(long.to_ne_bytes());
    }
    if passes_pages {
        // VFIO_REGION_INFO_CAP_SPARSE_MMAP, version 1, no next one; one area.
        reply.extend(1u16.to_ne_bytes());
        reply.extend(1u16.to_ne_bytes());
        for word in [0u32, 1, 0] {
            reply.extend(word.to_ne_bytes());
        }
        for long in [u64::from(pages::FIRST), u64::from(pages::END - pages::FIRST)] {
            reply.extend(long.to_ne_bytes());
        }
    }
    Ok(Reply { body: reply, passes_pages })
}

pub(super) fn irq_info(model: Model, body: &[u8]) -> Result<Reply, u32> {
    let index = word(body, 8).filter(|index| *index < IRQS).ok_or(EINVAL)?;
    let (flags, count) = match index {
        INTX => (IRQ_EVENTFD | IRQ_MASKABLE | IRQ_AUTOMASKED, 1),
        MSIX => (IRQ_EVENTFD, model.vectors()),
        _ => (IRQ_EVENTFD, 0),
    };
    let words = [16, flags, index, count];
    Ok(words.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect::<Vec<u8>>().into())
}
