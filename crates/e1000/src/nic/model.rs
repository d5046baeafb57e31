// SPDX-License-Identifier: Apache-2.0
//! The supported cards.

/// The model of a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Model {
    /// Intel 82540EM, which drivers call e1000: INTx.
    #[default]
    I82540,
    /// Intel 82574L, which drivers call e1000e: MSI-X, a vector for each direction. Its registers are in the "Intel
    /// 82574 GbE Controller Family Datasheet", revision 3.4.
    I82574,
}

/// How a driver's writes of TDT and RDT arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbells {
    /// Through pages that the guest maps. A client that handles INTx itself, as QEMU does without KVM, takes them away
    /// from the guest at the first interrupt, and waits for an answer to each write from then on.
    Mapped,
    /// As messages that the client does not wait for (posted writes).
    Posted,
}

impl Model {
    /// PCI device and subsystem.
    pub(crate) const fn identity(self) -> (u16, u16) {
        match self {
            // The subsystem by which drivers know that the card has a communication status block.
            Self::I82540 => (0x100e, 0x1101),
            Self::I82574 => (0x10d3, 0xa01f),
        }
    }

    /// MSI-X vectors.
    pub(crate) const fn vectors(self) -> u32 {
        match self {
            Self::I82540 => 0,
            Self::I82574 => super::interrupts::VECTORS as u32,
        }
    }
}
