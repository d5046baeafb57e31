// SPDX-License-Identifier: Apache-2.0
//! The card's PCI configuration space (PCI Local Bus 3.0, chapter 6).

use crate::nic::Model;
use crate::nic::registers::{BAR_BYTES, IO_BYTES, MSIX_BYTES, MSIX_PENDING};
use crate::nic::state::{Loader, Saver};

/// Bytes.
pub(crate) const BYTES: usize = 256;

const COMMAND: usize = 0x04;
const BAR0: usize = 0x10;
const BAR1: usize = 0x14;
const BAR2: usize = 0x18;
const BAR3: usize = 0x1c;
const BAR4: usize = 0x20;
const CAPABILITIES: usize = 0x34;
/// The MSI-X capability of an 82574, and its control word.
const MSIX: usize = 0x40;
const MSIX_CONTROL: usize = MSIX + 2;
const BUS_MASTER: u8 = 1 << 2;

/// The configuration space.
#[derive(Debug)]
pub(crate) struct PciConfig {
    model: Model,
    bytes: [u8; BYTES],
}

impl PciConfig {
    pub(crate) fn new(model: Model) -> Self {
        const INTEL: u16 = 0x8086;
        let (device, subsystem) = model.identity();
        let (revision, io) = match model {
            Model::I82540 => (3, BAR1),
            Model::I82574 => (0, BAR2),
        };
        let mut bytes = [0; BYTES];
        let mut put = |at: usize, value: u16| bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
        put(0x00, INTEL);
        put(0x02, device);
        // Medium DEVSEL timing.
        put(0x06, 0x0200);
        // Class: network, Ethernet.
        put(0x08, revision);
        put(0x0a, 0x0200);
        // I/O.
        put(io, 1);
        put(0x2c, INTEL);
        put(0x2e, subsystem);
        // Pin INTA.
        put(0x3c, 0x0100);
        if model == Model::I82574 {
            const MSIX_CAPABILITY: u16 = 0x11;
            const IN_BAR3: u16 = 3;
            // There are capabilities.
            put(0x06, 0x0210);
            put(CAPABILITIES, MSIX as u16);
            put(MSIX, MSIX_CAPABILITY);
            put(MSIX_CONTROL, model.vectors() as u16 - 1);
            put(MSIX + 4, IN_BAR3);
            put(MSIX + 8, MSIX_PENDING as u16 | IN_BAR3);
        }
        Self { model, bytes }
    }

    pub(crate) fn save(&self, to: &mut Saver<'_>) {
        self.bytes.as_chunks().0.iter().for_each(|word| to.put(u32::from_le_bytes(*word)));
    }

    pub(crate) fn load(&mut self, from: &mut Loader<'_>) {
        self.bytes.as_chunks_mut().0.iter_mut().for_each(|word| *word = from.next().to_le_bytes());
    }

    /// Reads bytes; zeros behind the end.
    pub(crate) fn read(&self, at: usize, into: &mut [u8]) {
        for (n, byte) in into.iter_mut().enumerate() {
            *byte = self.bytes.get(at.saturating_add(n)).copied().unwrap_or(0);
        }
    }

    /// Writes what a driver may write.
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        for (n, byte) in bytes.iter().enumerate() {
            let at = at.saturating_add(n);
            if let Some(place) = self.bytes.get_mut(at) {
                let mask = writable(self.model, at);
                *place = *place & !mask | byte & mask;
            }
        }
    }

    /// Whether the card may access guest memory.
    pub(crate) const fn is_bus_master(&self) -> bool {
        self.bytes[COMMAND] & BUS_MASTER != 0
    }
}

/// Bits of a byte that a driver can change.
const fn writable(model: Model, at: usize) -> u8 {
    /// The bits of a base address above those that its size fixes.
    const fn of_bar(bytes: u64, byte: usize) -> u8 {
        (!(bytes as u32 - 1)).to_le_bytes()[byte]
    }
    let is_82574 = matches!(model, Model::I82574);
    match at {
        // I/O, memory, bus master, parity, SERR; interrupt disable.
        COMMAND => 0x47,
        0x05 => 0x05,
        // Cache line, latency, interrupt line.
        0x0c | 0x0d | 0x3c => 0xff,
        BAR0..BAR1 => of_bar(BAR_BYTES, at - BAR0),
        BAR1..BAR2 if !is_82574 => of_bar(IO_BYTES, at - BAR1),
        BAR2..BAR3 if is_82574 => of_bar(IO_BYTES, at - BAR2),
        BAR3..BAR4 if is_82574 => of_bar(MSIX_BYTES, at - BAR3),
        // Enable, and mask all.
        _ if is_82574 && at == MSIX_CONTROL + 1 => 0xc0,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_addresses_show_their_size_and_the_rest_stays() {
        let mut config = PciConfig::new(Model::I82540);
        config.write(0, &[0xff; BYTES]);
        let mut bytes = [0; BYTES];
        config.read(0, &mut bytes);
        assert_eq!(bytes[..4], [0x86, 0x80, 0x0e, 0x10]);
        assert_eq!(bytes[BAR0..BAR0 + 8], [0, 0, 0xfe, 0xff, 0xc1, 0xff, 0xff, 0xff]);
        assert!(bytes[0x18..0x2c].iter().all(|byte| *byte == 0));
        assert!(config.is_bus_master());
        config.write(BYTES - 1, &[1; 8]);
        config.read(BYTES - 1, &mut bytes[..2]);
        assert_eq!(bytes[..2], [0, 0]);
    }
}
