// SPDX-License-Identifier: Apache-2.0
//! Numbers of registers in BAR 0, in bytes, and their bits (SDM chapter 13).
#![allow(clippy::unreadable_literal, reason = "as in the manual")]

/// Bytes of BAR 0.
pub(crate) const BAR_BYTES: u64 = 128 << 10;
/// Bytes of the I/O window, address and data: BAR 1, or BAR 2 of an 82574.
pub(crate) const IO_BYTES: u64 = 64;
/// Bytes of BAR 3 of an 82574, which holds the MSI-X table and, behind [`MSIX_PENDING`], what is pending. The client
/// has both.
pub(crate) const MSIX_BYTES: u64 = 16 << 10;
pub(crate) const MSIX_PENDING: u32 = 8 << 10;
/// Registers lie below; flash and packet memory above read as 0.
pub(super) const END: u32 = 0x6000;

pub(crate) const CTRL: u32 = 0x0000;
pub(super) const STATUS: u32 = 0x0008;
pub(super) const EECD: u32 = 0x0010;
pub(super) const EERD: u32 = 0x0014;
pub(super) const CTRL_EXT: u32 = 0x0018;
pub(super) const MDIC: u32 = 0x0020;
pub(super) const VET: u32 = 0x0038;
pub(super) const ICR: u32 = 0x00c0;
pub(super) const ITR: u32 = 0x00c4;
pub(super) const ICS: u32 = 0x00c8;
pub(super) const IMS: u32 = 0x00d0;
pub(super) const IMC: u32 = 0x00d8;
/// Of an 82574, as the other registers of MSI-X.
pub(super) const EIAC: u32 = 0x00dc;
pub(super) const IAM: u32 = 0x00e0;
pub(super) const IVAR: u32 = 0x00e4;
/// EITR of the first vector, and behind the last.
pub(super) const EITR: u32 = 0x00e8;
pub(super) const EITR_END: u32 = 0x00fc;
pub(crate) const RCTL: u32 = 0x0100;
pub(crate) const TCTL: u32 = 0x0400;
pub(super) const LEDCTL: u32 = 0x0e00;
pub(super) const PBA: u32 = 0x1000;
/// Of an 82574: its firmware has finished with the PHY (bit 18).
pub(super) const EEMNGCTL: u32 = 0x1010;
/// Of an 82574: receive descriptors are extended (bit 15).
pub(crate) const RFCTL: u32 = 0x5008;
pub(crate) const RFCTL_EXTEN: u32 = 1 << 15;
/// Receive ring: see [`ring`].
pub(crate) const RECEIVE_RING: u32 = 0x2800;
/// Transmit ring: see [`ring`].
pub(crate) const TRANSMIT_RING: u32 = 0x3800;
/// Address of the communication status block: low and high half. Not Intel's.
pub(crate) const CSBAL: u32 = 0x2830;
pub(crate) const CSBAH: u32 = 0x2834;
pub(super) const MTA: u32 = 0x5200;
pub(super) const RAL: u32 = 0x5400;
pub(super) const RAH: u32 = 0x5404;
pub(super) const VFTA: u32 = 0x5600;

/// Registers of a ring, from its first on.
pub(crate) mod ring {
    /// Base address: low and high half.
    pub(crate) const BASE: u32 = 0x00;
    pub(crate) const BASE_HIGH: u32 = 0x04;
    pub(crate) const LENGTH: u32 = 0x08;
    pub(crate) const HEAD: u32 = 0x10;
    pub(crate) const TAIL: u32 = 0x18;
    /// Interrupt delay: RDTR, TIDV.
    pub(crate) const DELAY: u32 = 0x20;
    /// Absolute interrupt delay: RADV, TADV.
    pub(crate) const ABSOLUTE_DELAY: u32 = 0x2c;
}

pub(super) const CTRL_FD: u32 = 1;
pub(super) const CTRL_SLU: u32 = 1 << 6;
pub(super) const CTRL_SPEED_1000: u32 = 1 << 9;
pub(super) const CTRL_RST: u32 = 1 << 26;
pub(crate) const CTRL_VME: u32 = 1 << 30;
pub(super) const CTRL_PHY_RST: u32 = 1 << 31;
pub(super) const CTRL_EXT_EE_RST: u32 = 1 << 13;
/// IAM disables the causes of a vector that is signalled, and those that a read of ICR clears.
pub(super) const CTRL_EXT_EIAME: u32 = 1 << 24;
pub(super) const CTRL_EXT_IAME: u32 = 1 << 27;

pub(super) const STATUS_FD: u32 = 1;
pub(super) const STATUS_LU: u32 = 1 << 1;
pub(super) const STATUS_SPEED_1000: u32 = 2 << 6;

pub(crate) const RCTL_EN: u32 = 1 << 1;
pub(crate) const RCTL_UPE: u32 = 1 << 3;
pub(crate) const RCTL_MPE: u32 = 1 << 4;
pub(crate) const RCTL_LPE: u32 = 1 << 5;
/// Of an 82574: the type of receive descriptors; 0: one buffer each.
pub(crate) const RCTL_DTYP: u32 = 3 << 10;
pub(crate) const RCTL_BAM: u32 = 1 << 15;
pub(crate) const RCTL_VFE: u32 = 1 << 18;
pub(crate) const RCTL_BSEX: u32 = 1 << 25;
pub(crate) const RCTL_SECRC: u32 = 1 << 26;
pub(crate) const TCTL_EN: u32 = 1 << 1;

/// Causes of interrupts (SDM 13.4.17).
pub(crate) mod cause {
    /// Transmit descriptors were written back.
    pub(crate) const TXDW: u32 = 1;
    /// The transmit ring is empty.
    pub(crate) const TXQE: u32 = 1 << 1;
    /// The link changed.
    pub(crate) const LSC: u32 = 1 << 2;
    /// Few receive descriptors are left.
    pub(crate) const RXDMT0: u32 = 1 << 4;
    /// A packet was lost because no descriptor was free.
    pub(crate) const RXO: u32 = 1 << 6;
    /// Packets were received.
    pub(crate) const RXT0: u32 = 1 << 7;
    /// The PHY was accessed.
    pub(crate) const MDAC: u32 = 1 << 9;
    /// Those of an 82574's vectors: the receive queue, the transmit queue, all others.
    pub(crate) const RXQ0: u32 = 1 << 20;
    pub(crate) const TXQ0: u32 = 1 << 22;
    pub(crate) const OTHER: u32 = 1 << 24;
    /// The card holds its interrupt line.
    pub(crate) const ASSERTED: u32 = 1 << 31;
}

/// Statistics (SDM 13.7). A read clears them.
pub(crate) mod statistic {
    pub(crate) const BEGIN: u32 = 0x4000;
    pub(crate) const END: u32 = 0x4100;
    pub(crate) const MPC: u32 = 0x4010;
    /// Received packets of up to 64, 127, 255, 511, 1023 bytes, and longer.
    pub(crate) const PRC64: u32 = 0x405c;
    pub(crate) const GPRC: u32 = 0x4074;
    pub(crate) const BPRC: u32 = 0x4078;
    pub(crate) const MPRC: u32 = 0x407c;
    pub(crate) const GPTC: u32 = 0x4080;
    pub(crate) const GORC: u32 = 0x4088;
    pub(crate) const GOTC: u32 = 0x4090;
    pub(crate) const RNBC: u32 = 0x40a0;
    pub(crate) const ROC: u32 = 0x40ac;
    pub(crate) const TOR: u32 = 0x40c0;
    pub(crate) const TOT: u32 = 0x40c8;
    pub(crate) const TPR: u32 = 0x40d0;
    pub(crate) const TPT: u32 = 0x40d4;
    /// As `PRC64`, for sent packets.
    pub(crate) const PTC64: u32 = 0x40d8;
    pub(crate) const MPTC: u32 = 0x40f0;
    pub(crate) const BPTC: u32 = 0x40f4;
    /// Segments that the card was to cut.
    pub(crate) const TSCTC: u32 = 0x40f8;
    /// Counters of 64 bits: their low halves.
    pub(crate) const WIDE: [u32; 4] = [GORC, GOTC, TOR, TOT];
}
