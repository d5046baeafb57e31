// SPDX-License-Identifier: Apache-2.0
//! The EEPROM: 64 words, read by EERD or, bit by bit, by EECD (SDM 5.3 and 5.6, Microwire). An 82574 supports EERD
//! only.

use super::Model;
use super::state::{Loader, Saver};

/// Words.
const WORDS: usize = 64;
/// The sum of all words (SDM 5.6.35).
const SUM: u16 = 0xbaba;

const CLOCK: u32 = 1;
const SELECT: u32 = 1 << 1;
const DATA_IN: u32 = 1 << 2;
const DATA_OUT: u32 = 1 << 3;
const REQUEST: u32 = 1 << 6;
const GRANT: u32 = 1 << 7;
const PRESENT: u32 = 1 << 8;
/// Of an 82574: it was read after the reset.
const READ_AFTER_RESET: u32 = 1 << 9;

/// A start bit, two bits of operation and six of address.
const COMMAND_BITS: u32 = 9;
/// Start bit and "read".
const READ: u32 = 0b110;

/// The EEPROM and its serial interface.
#[derive(Debug)]
pub(super) struct Eeprom {
    model: Model,
    words: [u16; WORDS],
    /// EECD as written.
    control: u32,
    /// Bits of the command so far, and how many; leading zeros do not count.
    command: u32,
    bits: u32,
    /// Bits of data put out so far.
    given: u32,
    is_out: bool,
}

impl Eeprom {
    /// With a MAC address and the card's identity.
    pub(super) fn new(model: Model, mac: [u8; 6]) -> Self {
        const INTEL: u16 = 0x8086;
        let (device, subsystem) = model.identity();
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(mac.chunks_exact(2)) {
            *word = u16::from_le_bytes([bytes[0], bytes[1]]);
        }
        // Initialization control 1 (the signature 01, and the identity below is valid), subsystem, device.
        words[0x0a..=0x0e].copy_from_slice(&[0x4003, subsystem, INTEL, device, INTEL]);
        let sum = words.iter().fold(0u16, |sum, word| sum.wrapping_add(*word));
        words[WORDS - 1] = SUM.wrapping_sub(sum);
        Self { model, words, control: 0, command: 0, bits: 0, given: 0, is_out: false }
    }

    /// What the driver has changed.
    pub(super) fn save(&self, to: &mut Saver<'_>) {
        [self.control, self.command, self.bits, self.given, self.is_out.into()]
            .into_iter()
            .for_each(|word| to.put(word));
    }

    pub(super) fn load(&mut self, from: &mut Loader<'_>) {
        self.control = from.next();
        (self.command, self.bits, self.given) = (from.next(), from.next(), from.next());
        self.is_out = from.next() != 0;
    }

    /// The MAC address.
    pub(super) fn mac(&self) -> [u8; 6] {
        let [a, b, c] = [0, 1, 2].map(|n| self.words[n].to_le_bytes());
        [a[0], a[1], b[0], b[1], c[0], c[1]]
    }

    /// The value of EERD after `request` is written to it.
    pub(super) fn read(&self, request: u32) -> u32 {
        const START: u32 = 1;
        // Where the address is, and the bit that says that the word is there.
        let (mask, shift, done) = match self.model {
            Model::I82540 => (0xff00, 8, 1 << 4),
            Model::I82574 => (0xfffc, 2, 1 << 1),
        };
        if request & START == 0 {
            return request;
        }
        let word = self.words.get(((request & mask) >> shift) as usize).copied().unwrap_or(0xffff);
        u32::from(word) << 16 | request & mask | done
    }

    /// EECD.
    pub(super) const fn control(&self) -> u32 {
        let read = if matches!(self.model, Model::I82574) { READ_AFTER_RESET } else { 0 };
        let grant = if self.control & REQUEST == 0 { 0 } else { GRANT };
        let out = if self.is_out { DATA_OUT } else { 0 };
        self.control & (CLOCK | SELECT | DATA_IN | REQUEST) | grant | out | PRESENT | read
    }

    /// Writes EECD: a rising edge of the clock takes a bit in, a falling edge puts one out.
    pub(super) fn set_control(&mut self, value: u32) {
        let before = std::mem::replace(&mut self.control, value);
        if value & SELECT == 0 || before & SELECT == 0 {
            (self.command, self.bits, self.given, self.is_out) = (0, 0, 0, true);
            return;
        }
        let rises = value & CLOCK != 0 && before & CLOCK == 0;
        if !rises {
            return;
        }
        if self.bits < COMMAND_BITS {
            let bit = u32::from(value & DATA_IN != 0);
            if self.bits > 0 || bit == 1 {
                (self.command, self.bits) = (self.command << 1 | bit, self.bits + 1);
            }
            // A 0 before the data.
            self.is_out = false;
        } else if self.command >> 6 == READ {
            let at = (self.command & 0x3f) + self.given / 16;
            let word = self.words[at as usize % WORDS];
            self.is_out = word >> (15 - self.given % 16) & 1 == 1;
            self.given = (self.given + 1) % (16 * WORDS as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a word as drivers do: a bit is there after the clock has risen.
    fn read(eeprom: &mut Eeprom, address: u32) -> u16 {
        let mut put = |value: u32| {
            eeprom.set_control(value);
            eeprom.control()
        };
        put(REQUEST);
        put(REQUEST | SELECT);
        let mut clock = |bit: u32| {
            put(REQUEST | SELECT | (bit * DATA_IN));
            let now = put(REQUEST | SELECT | (bit * DATA_IN) | CLOCK);
            put(REQUEST | SELECT | (bit * DATA_IN));
            u16::from(now & DATA_OUT != 0)
        };
        let command = READ << 6 | address;
        for n in (0..COMMAND_BITS).rev() {
            clock(command >> n & 1);
        }
        let word = (0..16).fold(0, |word, _| word << 1 | clock(0));
        put(0);
        word
    }

    #[test]
    fn both_ways_of_reading_agree_and_the_checksum_is_right() {
        let mut eeprom = Eeprom::new(Model::I82540, [2, 3, 4, 5, 6, 7]);
        assert_eq!(eeprom.mac(), [2, 3, 4, 5, 6, 7]);
        let mut sum = 0u16;
        for address in 0..64 {
            let word = read(&mut eeprom, address);
            let reply = eeprom.read(1 | address << 8);
            assert_eq!((reply >> 16, reply & 0x10), (word.into(), 0x10), "{address}");
            sum = sum.wrapping_add(word);
        }
        assert_eq!(sum, SUM);
        assert_eq!(read(&mut eeprom, 0), 0x0302);
        assert_eq!(eeprom.read(1 | 64 << 8) >> 16, 0xffff);
    }
}
