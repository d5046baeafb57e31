// SPDX-License-Identifier: Apache-2.0
//! The PHY behind MDIC (SDM 13.4.8), with a link of 1 Gbit/s: a Marvell 88E1000, or that of an 82574, whose registers
//! have pages (register 22); only page 0 has any here.

use super::Model;
use super::registers::cause;
use super::state::{Loader, Saver};

const WRITE: u32 = 1 << 26;
const READ: u32 = 2 << 26;
const READY: u32 = 1 << 28;
const ERROR: u32 = 1 << 30;
/// The PHY's address.
const ADDRESS: u32 = 1;

const CONTROL: usize = 0;
const STATUS: usize = 1;
const SPECIFIC_STATUS: usize = 17;
const PAGE: usize = 22;

const CONTROL_RESTART: u16 = 1 << 9;
const CONTROL_RESET: u16 = 1 << 15;
const STATUS_LINK: u16 = 1 << 2;
const STATUS_NEGOTIATED: u16 = 1 << 5;

/// Registers that drivers cannot write: status, identity, the partner's abilities.
const READ_ONLY: [usize; 8] = [STATUS, 2, 3, 5, 6, 10, 15, SPECIFIC_STATUS];

/// The PHY's registers.
#[derive(Debug)]
pub(super) struct Phy {
    model: Model,
    registers: [u16; 32],
}

impl Phy {
    /// As after a reset, its link negotiated.
    pub(super) fn new(model: Model) -> Self {
        let mut registers = [0; 32];
        for (number, value) in [
            (CONTROL, 0x1140),
            (STATUS, 0x7949 | STATUS_NEGOTIATED | STATUS_LINK),
            // Identity.
            (2, 0x0141),
            (3, if model == Model::I82540 { 0x0c20 } else { 0x0cb1 }),
            // What both sides advertise: all speeds up to 1 Gbit/s, full duplex.
            (4, 0x0de1),
            (5, 0x41e1),
            (9, 0x0e00),
            (10, 0x3c00),
            (15, 0x3000),
            (16, 0x0360),
            // 1000 Mbit/s, full duplex, resolved, link up.
            (SPECIFIC_STATUS, 0xac00),
            (20, 0x0d60),
        ] {
            registers[number] = value;
        }
        Self { model, registers }
    }

    pub(super) fn save(&self, to: &mut Saver<'_>) {
        self.registers.iter().for_each(|register| to.put((*register).into()));
    }

    pub(super) fn load(&mut self, from: &mut Loader<'_>) {
        self.registers.iter_mut().for_each(|register| *register = from.next() as u16);
    }

    /// Executes a command: the value that MDIC has then, and the causes of interrupts.
    pub(super) fn execute(&mut self, command: u32) -> (u32, u32) {
        const INTERRUPT: u32 = 1 << 29;
        let number = (command >> 16 & 31) as usize;
        let mut causes = if command & INTERRUPT == 0 { 0 } else { cause::MDAC };
        if command >> 21 & 31 != ADDRESS {
            return (command | READY | ERROR, causes);
        }
        let exists = self.model == Model::I82540 || number == PAGE || self.registers[PAGE] == 0;
        if command & READ != 0 {
            let value = if exists { self.registers[number] } else { 0 };
            return (command & 0xffff_0000 | READY | u32::from(value), causes);
        }
        if command & WRITE != 0 && exists && !READ_ONLY.contains(&number) {
            self.registers[number] = command as u16;
            if number == CONTROL && command as u16 & (CONTROL_RESTART | CONTROL_RESET) != 0 {
                // Negotiation ends at once.
                self.registers[CONTROL] &= !(CONTROL_RESTART | CONTROL_RESET);
                causes |= cause::LSC;
            }
        }
        (command | READY, causes)
    }
}
