//! The card's PCI configuration space (PCI Local Bus 3.0, chapter 6).

use crate::nic::registers::{BAR_BYTES, IO_BYTES};
use crate::nic::{DEVICE, SUBSYSTEM};

/// Bytes.
pub(crate) const BYTES: usize = 256;

const COMMAND: usize = 0x04;
const BAR0: usize = 0x10;
const BAR1: usize = 0x14;
const BUS_MASTER: u8 = 1 << 2;

/// The configuration space.
#[derive(Debug)]
pub(crate) struct PciConfig([u8; BYTES]);

impl PciConfig {
    pub(crate) fn new() -> Self {
        const INTEL: u16 = 0x8086;
        const REVISION: u8 = 3;
        let mut bytes = [0; BYTES];
        let mut put = |at: usize, value: u16| bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
        put(0x00, INTEL);
        put(0x02, DEVICE);
        // Medium DEVSEL timing.
        put(0x06, 0x0200);
        // Class: network, Ethernet.
        put(0x08, REVISION.into());
        put(0x0a, 0x0200);
        // I/O.
        put(BAR1, 1);
        put(0x2c, INTEL);
        put(0x2e, SUBSYSTEM);
        // Pin INTA.
        put(0x3c, 0x0100);
        Self(bytes)
    }

    /// Reads bytes; zeros behind the end.
    pub(crate) fn read(&self, at: usize, into: &mut [u8]) {
        for (n, byte) in into.iter_mut().enumerate() {
            *byte = self.0.get(at.saturating_add(n)).copied().unwrap_or(0);
        }
    }

    /// Writes what a driver may write.
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        for (n, byte) in bytes.iter().enumerate() {
            let at = at.saturating_add(n);
            if let Some(place) = self.0.get_mut(at) {
                let mask = writable(at);
                *place = *place & !mask | byte & mask;
            }
        }
    }

    /// Whether the card may access guest memory.
    pub(crate) const fn is_bus_master(&self) -> bool {
        self.0[COMMAND] & BUS_MASTER != 0
    }
}

/// Bits of a byte that a driver can change.
const fn writable(at: usize) -> u8 {
    /// The bits of a base address above those that its size fixes.
    const fn of_bar(bytes: u64, byte: usize) -> u8 {
        (!(bytes as u32 - 1)).to_le_bytes()[byte]
    }
    match at {
        // I/O, memory, bus master, parity, SERR; interrupt disable.
        COMMAND => 0x47,
        0x05 => 0x05,
        // Cache line, latency, interrupt line.
        0x0c | 0x0d | 0x3c => 0xff,
        BAR0..BAR1 => of_bar(BAR_BYTES, at - BAR0),
        BAR1..0x18 => of_bar(IO_BYTES, at - BAR1),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_addresses_show_their_size_and_the_rest_stays() {
        let mut config = PciConfig::new();
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
