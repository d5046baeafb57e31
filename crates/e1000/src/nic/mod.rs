// SPDX-License-Identifier: Apache-2.0
//! The card: registers with their side effects, EEPROM, PHY, receive filter and interrupts.

pub(crate) mod csb;
mod eeprom;
mod filter;
mod interrupts;
mod model;
pub(crate) mod pages;
mod phy;
pub(crate) mod registers;
pub(crate) mod state;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use netvm_clock as clock;
use rustix::io::Errno;

use crate::memory::GuestMemory;
use csb::Csb;
use eeprom::Eeprom;
pub(crate) use filter::FRONT;
pub(crate) use interrupts::{Delays, Direction, Interrupts, VECTORS};
pub use model::{Doorbells, Model};
use pages::Pages;
use phy::Phy;
use registers::{
    BAR_BYTES, CTRL, CTRL_EXT, CTRL_EXT_EE_RST, CTRL_FD, CTRL_PHY_RST, CTRL_RST, CTRL_SLU, CTRL_SPEED_1000,
    EECD, EEMNGCTL, EERD, EIAC, EITR, EITR_END, IAM, ICR, ICS, IMC, IMS, ITR, IVAR, LEDCTL, MDIC, PBA, RAH,
    RAL, RECEIVE_RING, STATUS, STATUS_FD, STATUS_LU, STATUS_SPEED_1000, TRANSMIT_RING, VET, cause, ring,
    statistic,
};
use state::{Loader, Saver, State};

/// A checksum to be computed: over the bytes from `from` to `end` (`None`: all), stored at `at`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// First byte that is summed.
    pub from: u16,
    /// Where the checksum is.
    pub at: u16,
    /// Last byte that is summed.
    pub end: Option<u16>,
}

/// Offloads that a driver requests with its last context descriptor (SDM 3.3.6).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TxContext {
    pub(crate) ip: Sum,
    pub(crate) transport: Sum,
    pub(crate) segment: u16,
    pub(crate) tcp: bool,
}

impl TxContext {
    fn words(&self) -> [u32; state::CONTEXT_WORDS] {
        let halves = |sum: &Sum| u32::from(sum.from) | u32::from(sum.at) << 16;
        let end = |sum: &Sum| sum.end.map_or(0, |end| u32::from(end) + 1);
        let (ip, transport) = (&self.ip, &self.transport);
        let segment = u32::from(self.segment) | u32::from(self.tcp) << 16;
        [halves(ip), end(ip), halves(transport), end(transport), segment]
    }

    const fn from_words(
        [ip, ip_end, transport, transport_end, segment]: [u32; state::CONTEXT_WORDS],
    ) -> Self {
        const fn sum(halves: u32, end: u32) -> Sum {
            let end = if end == 0 { None } else { Some((end - 1) as u16) };
            Sum { from: halves as u16, at: (halves >> 16) as u16, end }
        }
        let (ip, transport) = (sum(ip, ip_end), sum(transport, transport_end));
        Self { ip, transport, segment: segment as u16, tcp: segment >> 16 != 0 }
    }
}

/// Shortest time between two mappings of communication status blocks.
const CSB_MICROS: u64 = 1000;

/// The state of the card that the port's thread and the worker share under one lock.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) model: Model,
    /// Registers, and what another process needs to go on.
    pub(crate) state: Arc<State>,
    /// Ring registers.
    pub(crate) pages: Arc<Pages>,
    eeprom: Eeprom,
    phy: Phy,
    pub(crate) interrupts: Interrupts,
    pub(crate) memory: GuestMemory,
    /// The guest lets the card access its memory (PCI command, "bus master").
    pub(crate) is_bus_master: bool,
    context: TxContext,
    /// The driver's communication status block, and its address.
    csb: Option<(u64, Arc<Csb>)>,
    /// When one was last mapped.
    csb_mapped: Option<u64>,
    /// Writes to TDT and RDT that came as requests.
    pub(crate) doorbells: u64,
    /// Register that the I/O window accesses.
    io_address: u32,
    /// A ring lies outside guest memory: reported once.
    pub(crate) has_bad_ring: bool,
}

impl Device {
    /// A card after its reset.
    pub(crate) fn new(model: Model, mac: [u8; 6]) -> Result<Self, Errno> {
        let (state, pages) = (Arc::new(State::new(model, mac)?), Arc::new(Pages::new()?));
        let mut device = Self::with(model, mac, state, pages);
        device.reset();
        Ok(device)
    }

    /// A card of which other state must follow.
    fn with(model: Model, mac: [u8; 6], state: Arc<State>, pages: Arc<Pages>) -> Self {
        Self {
            model,
            state,
            pages,
            eeprom: Eeprom::new(model, mac),
            phy: Phy::new(model),
            interrupts: Interrupts::new(model),
            memory: GuestMemory::default(),
            is_bus_master: false,
            context: TxContext::default(),
            csb: None,
            csb_mapped: None,
            doorbells: 0,
            io_address: 0,
            has_bad_ring: false,
        }
    }

    /// The card of another process, from its files. Guest memory and lines are not connected.
    pub(crate) fn reopen(model: Model, mac: [u8; 6], [state, pages]: [OwnedFd; 2]) -> Option<Self> {
        let state = Arc::new(State::reopen(state, model, mac)?);
        let pages = Arc::new(Pages::reopen(pages).ok()?);
        let mut device = Self::with(model, mac, state, pages);
        device.context = TxContext::from_words(device.state.context());
        Some(device)
    }

    /// Saves what the state's registers do not have.
    pub(crate) fn save(&self, to: &mut Saver<'_>) {
        to.put(self.is_bus_master.into());
        to.put(self.io_address);
        self.eeprom.save(to);
        self.phy.save(to);
        self.interrupts.save(to);
    }

    /// Loads what was saved. `first` loads what others have saved before.
    pub(crate) fn load<T>(&mut self, first: impl FnOnce(&mut Loader<'_>) -> T) -> T {
        let from = &mut self.state.saved();
        let value = first(from);
        self.is_bus_master = from.next() != 0;
        self.io_address = from.next();
        self.eeprom.load(from);
        self.phy.load(from);
        self.interrupts.load(from);
        value
    }

    #[inline]
    pub(crate) const fn context(&self) -> &TxContext {
        &self.context
    }

    /// Offloads that the driver requests from now on.
    #[inline]
    pub(crate) fn set_context(&mut self, context: TxContext) {
        self.context = context;
        self.state.set_context(context.words());
    }

    /// A reset by the driver (CTRL.RST) or by the guest's machine.
    pub(crate) fn reset(&mut self) {
        self.state.clear_registers();
        self.pages.clear();
        self.phy = Phy::new(self.model);
        self.interrupts.reset();
        self.set_context(TxContext::default());
        self.state.set_sending(None);
        self.csb = None;
        self.has_bad_ring = false;
        for (register, value) in [
            (CTRL, CTRL_FD | CTRL_SLU | CTRL_SPEED_1000),
            (STATUS, STATUS_FD | STATUS_LU | STATUS_SPEED_1000),
            (VET, 0x8100),
            (LEDCTL, 0x0706_0302),
            // KiB of the packet buffer for receiving.
            (PBA, 48),
        ] {
            self.set(register, value);
        }
        if self.model == Model::I82574 {
            self.set(EEMNGCTL, 1 << 18);
        }
        let [a, b, c, d, e, f] = self.eeprom.mac();
        self.set(RAL, u32::from_le_bytes([a, b, c, d]));
        self.set(RAH, u32::from_le_bytes([e, f, 0, 0x80]));
    }

    /// Removes all state of a guest whose client has gone.
    pub(crate) fn disconnect(&mut self) {
        self.interrupts.set_line(None);
        self.interrupts.clear_vectors();
        self.is_bus_master = false;
        self.io_address = 0;
        self.reset();
        self.memory = GuestMemory::default();
    }

    /// Stops, and leaves the state in its files to another process.
    pub(crate) fn leave(&mut self) {
        self.is_bus_master = false;
    }

    /// A register without side effects.
    #[inline]
    pub(crate) fn register(&self, offset: u32) -> u32 {
        self.state.register(offset)
    }

    fn set(&self, offset: u32, value: u32) {
        self.state.set_register(offset, value);
    }

    /// The communication status block that the driver uses. `None`: it announces packets by registers.
    #[inline]
    pub(crate) fn csb(&self) -> Option<&Arc<Csb>> {
        self.csb.as_ref().map(|(_, csb)| csb).filter(|csb| csb.is_on())
    }

    /// Maps the block at the address that the driver has set. Returns that address; `None`: try again later, because
    /// mapping costs system calls, and a guest that changes the address all the time must not make the worker do them.
    pub(crate) fn find_csb(&mut self) -> Option<u64> {
        let address = if self.model == Model::I82540 { self.pages.csb_address() } else { 0 };
        let is_the_same =
            |(at, csb): &(u64, Arc<Csb>)| *at == address && self.memory.holds(address, csb.page());
        if self.csb.as_ref().is_some_and(is_the_same) {
            return Some(address);
        }
        self.csb = None;
        if address == 0 {
            return Some(0);
        }
        if !Csb::fits(address) || !self.memory.is_writable(address) {
            self.has_bad_ring = true;
            return Some(address);
        }
        let now = clock::cycles();
        if self.csb_mapped.is_some_and(|last| now.wrapping_sub(last) < clock::cycles_in_micros(CSB_MICROS)) {
            return None;
        }
        self.csb_mapped = Some(now);
        let csb = self.memory.page(address).and_then(|page| Csb::new(page, address));
        self.csb = csb.map(|csb| (address, Arc::new(csb)));
        self.has_bad_ring |= self.csb.is_none();
        Some(address)
    }

    /// Adds to a statistic of 32 or 64 bits.
    #[inline]
    pub(crate) fn count(&mut self, statistic: u32, more: u64) {
        let low = u64::from(self.register(statistic));
        if statistic::WIDE.contains(&statistic) {
            let sum = (low | u64::from(self.register(statistic + 4)) << 32).saturating_add(more);
            self.set(statistic, sum as u32);
            self.set(statistic + 4, (sum >> 32) as u32);
        } else {
            self.set(statistic, u32::try_from(low.saturating_add(more)).unwrap_or(u32::MAX));
        }
    }

    /// Reads BAR 0 at a multiple of 4.
    pub(crate) fn read(&mut self, offset: u32) -> u32 {
        match offset {
            ICR => self.interrupts.take_causes(),
            ITR => self.interrupts.interval,
            IMS => self.interrupts.mask(),
            ICS | IMC => 0,
            EIAC..EITR_END if self.model == Model::I82574 => self.read_vectors(offset),
            EECD => self.eeprom.control(),
            statistic::BEGIN..statistic::END => {
                let value = self.register(offset);
                // A low half stays until the high half is read.
                if !statistic::WIDE.contains(&offset) {
                    self.set(offset, 0);
                    if statistic::WIDE.contains(&offset.wrapping_sub(4)) {
                        self.set(offset - 4, 0);
                    }
                }
                value
            }
            _ if Pages::holds(offset) => self.pages.load(offset),
            _ => self.register(offset),
        }
    }

    /// Writes BAR 0 at a multiple of 4.
    pub(crate) fn write(&mut self, offset: u32, value: u32) {
        self.doorbells +=
            u64::from(offset == RECEIVE_RING + ring::TAIL || offset == TRANSMIT_RING + ring::TAIL);
        match offset {
            CTRL if value & CTRL_RST != 0 => self.reset(),
            CTRL => {
                self.set(CTRL, value & !CTRL_PHY_RST);
                if value & CTRL_PHY_RST != 0 {
                    self.phy = Phy::new(self.model);
                    self.interrupts.raise(cause::LSC);
                }
            }
            CTRL_EXT => {
                self.set(CTRL_EXT, value & !CTRL_EXT_EE_RST);
                self.interrupts.vectors.control = value;
            }
            EIAC..EITR_END if self.model == Model::I82574 => self.write_vectors(offset, value),
            STATUS => {}
            EECD => self.eeprom.set_control(value),
            EERD => self.set(EERD, self.eeprom.read(value)),
            MDIC => {
                let (result, causes) = self.phy.execute(value);
                self.set(MDIC, result);
                self.interrupts.raise(causes);
            }
            ICR => self.interrupts.clear(value),
            ITR => self.interrupts.interval = value & 0xffff,
            ICS => self.interrupts.raise(value & !cause::ASSERTED),
            IMS => self.interrupts.enable(value),
            IMC => self.interrupts.disable(value),
            statistic::BEGIN..statistic::END => {}
            _ if Pages::holds(offset) => self.pages.store(offset, value),
            _ => self.set(offset, value),
        }
    }

    /// A register of MSI-X.
    fn vector_register(&mut self, offset: u32) -> Option<&mut u32> {
        let vectors = &mut self.interrupts.vectors;
        match offset {
            EIAC => Some(&mut vectors.cleared),
            IAM => Some(&mut vectors.disabled),
            IVAR => Some(&mut vectors.routes),
            _ => vectors.intervals.get_mut((offset.checked_sub(EITR)? / 4) as usize),
        }
    }

    fn read_vectors(&mut self, offset: u32) -> u32 {
        self.vector_register(offset).map_or(0, |register| *register)
    }

    fn write_vectors(&mut self, offset: u32, value: u32) {
        if let Some(register) = self.vector_register(offset) {
            *register = value;
        }
    }

    /// Reads the I/O window to BAR 0 (SDM 13.2.2).
    pub(crate) fn read_io(&mut self, offset: u32) -> u32 {
        match offset {
            0 => self.io_address,
            4 if u64::from(self.io_address) < BAR_BYTES => self.read(self.io_address & !3),
            _ => 0,
        }
    }

    /// Writes the I/O window.
    pub(crate) fn write_io(&mut self, offset: u32, value: u32) {
        match offset {
            0 => self.io_address = value,
            4 if u64::from(self.io_address) < BAR_BYTES => self.write(self.io_address & !3, value),
            _ => {}
        }
    }
}
