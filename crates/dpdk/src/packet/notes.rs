// SPDX-License-Identifier: Apache-2.0
//! What the owner of a packet notes in its header, in fields that no driver reads in the modes that netvm uses.

use dpdk_sys as sys;

use super::Mbuf;

const HASH: usize = sys::NETVM_MBUF_OFF_HASH as usize;
const VLAN_TCI_OUTER: usize = sys::NETVM_MBUF_OFF_VLAN_TCI_OUTER as usize;
const VLAN_TCI: usize = sys::NETVM_MBUF_OFF_VLAN_TCI as usize;
const PACKET_TYPE: usize = sys::NETVM_MBUF_OFF_PACKET_TYPE as usize;

// In the first cache line, and aligned: an mbuf is aligned to 64 bytes.
const _: () = {
    assert!(HASH.is_multiple_of(4) && HASH + 8 <= 64);
    assert!((VLAN_TCI_OUTER | VLAN_TCI).is_multiple_of(2) && VLAN_TCI_OUTER < 64 && VLAN_TCI < 64);
    assert!(PACKET_TYPE.is_multiple_of(4) && PACKET_TYPE < 64);
};

impl Mbuf {
    /// Two words for the owner, in the field of the NIC's hash. They keep their value while the packet is out of its
    /// pool.
    #[inline(always)]
    #[must_use]
    pub fn user_data(&self) -> [u32; 2] {
        // SAFETY: rte_mbuf.hash is a union of eight bytes; any bytes are valid.
        unsafe { self.get::<[u32; 2], HASH>() }
    }

    /// Writes [`Mbuf::user_data`].
    #[inline(always)]
    pub fn set_user_data(&mut self, words: [u32; 2]) {
        // SAFETY: as in `user_data`. In the modes that netvm uses, drivers do not read the hash of packets to send.
        unsafe { self.set::<[u32; 2], HASH>(words) };
    }

    /// A number for the owner, in the field of the outer VLAN tag. It keeps its value while the packet is out of its
    /// pool. It is 0 in a buffer from [`Pool::alloc_into`](crate::Pool::alloc_into), undefined in a packet that a
    /// driver has received, and that of the original in one from [`Pool::copy_of`](crate::Pool::copy_of).
    #[inline(always)]
    #[must_use]
    pub fn mark(&self) -> u16 {
        // SAFETY: the field is a u16.
        unsafe { self.get::<u16, VLAN_TCI_OUTER>() }
    }

    /// Writes [`Mbuf::mark`].
    #[inline(always)]
    pub fn set_mark(&mut self, number: u16) {
        // SAFETY: the field is a u16. Drivers read it only of packets with `RTE_MBUF_F_TX_QINQ`, which netvm never
        // sets.
        unsafe { self.set::<u16, VLAN_TCI_OUTER>(number) };
    }

    /// Two further numbers for the owner, in the fields of the packet type and of the VLAN tag. They keep their values
    /// while the packet is out of its pool, and are undefined in a packet that nobody has set them in.
    #[inline(always)]
    #[must_use]
    pub fn note(&self) -> (u32, u16) {
        // SAFETY: the fields are a u32 and a u16.
        unsafe { (self.get::<u32, PACKET_TYPE>(), self.get::<u16, VLAN_TCI>()) }
    }

    /// Writes [`Mbuf::note`].
    #[inline(always)]
    pub fn set_note(&mut self, (long, short): (u32, u16)) {
        // SAFETY: the fields are a u32 and a u16. Drivers do not read the packet type of packets to send, and the tag
        // only of those with `RTE_MBUF_F_TX_VLAN`, which netvm never sets.
        unsafe {
            self.set::<u32, PACKET_TYPE>(long);
            self.set::<u16, VLAN_TCI>(short);
        }
    }
}
