// SPDX-License-Identifier: Apache-2.0
//! The communication status block (CSB): a block of guest memory through which the card and a driver that supports it
//! announce packets without register accesses (Rizzo, Lettieri and Maffione, "Speeding Up Packet I/O in Virtual
//! Machines", 2013, 3.5). The PCI subsystem id tells the driver that the card supports it. The driver writes the
//! block's address to CSBAH and then to CSBAL; 0 in CSBAL means no block.
//!
//! ```text
//!        0           4                  8                  12
//!  0x00  guest_tdt   guest_need_txkick  guest_need_rxkick  guest_csb_on      written by the driver
//!  0x10  guest_rdt   guest_txkick_at
//!  0x40  host_tdh    host_need_txkick   host_txcycles_lim  host_txcycles     written by the card, but for the limit
//!  0x50  host_rdh    host_need_rxkick   host_isr           host_rxkick_at
//! ```
//!
//! `guest_tdt` and `guest_rdt` stand for TDT and RDT. The worker polls them as it polls those, so that it needs no
//! kicks: `host_need_txkick` and `host_need_rxkick` are 0. The card interrupts a driver that sent packets if
//! `guest_need_txkick` is not 0, or when TDH passes `guest_txkick_at`; and one that received some if
//! `guest_need_rxkick` is not 0. Both first write descriptors and then read the other side's flags, so that at least
//! one of them sees the other's last step.
//!
//! `host_isr` and the cycles are not used. The block is the guest's: anything can be in it at any time.

use std::sync::atomic::{Ordering, fence};

use crate::memory::Page;

/// Bytes of the block; they lie in one page.
const BYTES: u64 = 0x60;

/// Offsets of the words in the block.
mod field {
    pub(super) const GUEST_TDT: u64 = 0x00;
    pub(super) const GUEST_NEED_TXKICK: u64 = 0x04;
    pub(super) const GUEST_NEED_RXKICK: u64 = 0x08;
    pub(super) const GUEST_CSB_ON: u64 = 0x0c;
    pub(super) const GUEST_RDT: u64 = 0x10;
    pub(super) const GUEST_TXKICK_AT: u64 = 0x14;
    pub(super) const HOST_TDH: u64 = 0x40;
    pub(super) const HOST_NEED_TXKICK: u64 = 0x44;
    pub(super) const HOST_RDH: u64 = 0x50;
    pub(super) const HOST_NEED_RXKICK: u64 = 0x54;
    pub(super) const HOST_RXKICK_AT: u64 = 0x5c;
}

/// `host_rxkick_at`: never.
const NEVER: u32 = u32::MAX;

/// A block, mapped by itself, so that the worker can look at it without the device's lock.
#[derive(Debug)]
pub(crate) struct Csb {
    page: Page,
    /// Where it is in the page.
    offset: u64,
}

impl Csb {
    /// Whether a block can be at an address: it is aligned, and in one page.
    pub(super) const fn fits(address: u64) -> bool {
        address.is_multiple_of(4) && address % Page::BYTES + BYTES <= Page::BYTES
    }

    /// The block at an address in this page of guest memory. `None` if it does not fit.
    pub(super) fn new(page: Page, address: u64) -> Option<Self> {
        Self::fits(address).then_some(Self { page, offset: address % Page::BYTES })
    }

    pub(super) const fn page(&self) -> &Page {
        &self.page
    }

    #[inline]
    fn load(&self, field: u64) -> u32 {
        self.page.word(self.offset + field).map_or(0, |word| u32::from_le(word.load(Ordering::Acquire)))
    }

    #[inline]
    fn store(&self, field: u64, value: u32) {
        if let Some(word) = self.page.word(self.offset + field) {
            word.store(value.to_le(), Ordering::Release);
        }
    }

    /// Whether the driver uses it.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.load(field::GUEST_CSB_ON) != 0
    }

    /// TDT.
    #[inline]
    pub(crate) fn transmit_tail(&self) -> u32 {
        self.load(field::GUEST_TDT)
    }

    /// RDT.
    #[inline]
    pub(crate) fn receive_tail(&self) -> u32 {
        self.load(field::GUEST_RDT)
    }

    /// Tells the driver not to kick.
    pub(crate) fn refuse_kicks(&self) {
        for (field, value) in
            [(field::HOST_NEED_TXKICK, 0), (field::HOST_NEED_RXKICK, 0), (field::HOST_RXKICK_AT, NEVER)]
        {
            if self.load(field) != value {
                self.store(field, value);
            }
        }
    }

    /// Packets were sent: the head of a ring of `count` descriptors has moved from `begin` to `head`. Returns whether
    /// the driver wants an interrupt.
    #[inline]
    pub(crate) fn note_sent(&self, begin: u32, head: u32, count: u32) -> bool {
        self.store(field::HOST_TDH, head);
        fence(Ordering::SeqCst);
        let at = self.load(field::GUEST_TXKICK_AT);
        let distance = |to: u32| if to >= begin { to - begin } else { to + count - begin };
        self.load(field::GUEST_NEED_TXKICK) != 0 || at < count && distance(at) < distance(head)
    }

    /// The guest has received packets, up to `head`. Returns whether the driver wants an interrupt.
    #[inline]
    pub(crate) fn note_received(&self, head: u32) -> bool {
        self.store(field::HOST_RDH, head);
        fence(Ordering::SeqCst);
        self.wants_received()
    }

    /// Whether the driver wants an interrupt for received packets; if not, it polls.
    #[inline]
    pub(crate) fn wants_received(&self) -> bool {
        self.load(field::GUEST_NEED_RXKICK) != 0
    }
}
