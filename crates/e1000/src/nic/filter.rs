// SPDX-License-Identifier: Apache-2.0
//! Which packets the guest receives (SDM 3.2.1): by destination address and VLAN.

use super::Device;
use super::registers::{MTA, RAH, RAL, RCTL, RCTL_BAM, RCTL_MPE, RCTL_UPE, RCTL_VFE, VET, VFTA, statistic};

/// Bytes of a packet that the filter reads: addresses and a VLAN tag.
pub(crate) const FRONT: usize = 16;
/// Exact addresses.
const ADDRESSES: u32 = 16;
/// The address is valid (RAH).
const VALID: u32 = 1 << 31;

impl Device {
    /// Whether the guest receives a packet that begins with these bytes.
    pub(crate) fn receives(&self, front: &[u8; FRONT]) -> bool {
        self.is_for_address(front) && self.is_for_vlan(front)
    }

    /// The statistic of packets to this address, besides that of all.
    pub(crate) fn kind_statistic(front: &[u8; FRONT], [multicast, broadcast]: [u32; 2]) -> Option<u32> {
        match front {
            [255, 255, 255, 255, 255, 255, ..] => Some(broadcast),
            [first, ..] if *first & 1 == 1 => Some(multicast),
            _ => None,
        }
    }

    fn is_for_address(&self, front: &[u8; FRONT]) -> bool {
        let control = self.register(RCTL);
        let kinds = [statistic::MPRC, statistic::BPRC];
        let opened = match Self::kind_statistic(front, kinds) {
            Some(statistic::BPRC) => RCTL_BAM | RCTL_MPE,
            Some(_) => RCTL_MPE,
            None => RCTL_UPE,
        };
        let [a, b, c, d, e, f, ..] = *front;
        let low = u32::from_le_bytes([a, b, c, d]);
        let high = u32::from(u16::from_le_bytes([e, f]));
        control & opened != 0
            || (0..ADDRESSES).any(|n| {
                self.register(RAL + 8 * n) == low
                    && self.register(RAH + 8 * n) & (VALID | 0xffff) == VALID | high
            })
            || a & 1 == 1 && self.is_in_table(high)
    }

    /// Whether the multicast table has the last two bytes of an address.
    fn is_in_table(&self, last: u32) -> bool {
        let shift = [4, 3, 2, 0][(self.register(RCTL) >> 12 & 3) as usize];
        let hash = last >> shift & 0xfff;
        self.register(MTA + 4 * (hash >> 5)) >> (hash & 31) & 1 == 1
    }

    fn is_for_vlan(&self, front: &[u8; FRONT]) -> bool {
        let [.., a, b, c, d] = *front;
        if self.register(RCTL) & RCTL_VFE == 0
            || u32::from(u16::from_be_bytes([a, b])) != self.register(VET) & 0xffff
        {
            return true;
        }
        let vlan = u32::from(u16::from_be_bytes([c, d]) & 0xfff);
        self.register(VFTA + 4 * (vlan >> 5)) >> (vlan & 31) & 1 == 1
    }
}
