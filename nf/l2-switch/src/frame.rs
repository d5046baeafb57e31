// SPDX-License-Identifier: Apache-2.0
//! Parses the addresses and VLAN of a frame, and nothing else.

use netvm_wire::{EtherType, MacAddr, VlanId};

/// Addresses and VLAN of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) destination: MacAddr,
    pub(crate) source: MacAddr,
    /// The id of the outer tag; 0 if untagged or priority-tagged (IEEE 802.1Q, 9.6).
    pub(crate) vlan: u16,
}

impl Frame {
    /// `None` for a frame truncated before its EtherType or in its tag, and for VLAN 4095, which is reserved.
    #[inline]
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let (destination, rest) = bytes.split_first_chunk::<6>()?;
        let (source, rest) = rest.split_first_chunk::<6>()?;
        let (ether_type, rest) = rest.split_first_chunk::<2>()?;
        let mut vlan = 0;
        if EtherType(u16::from_be_bytes(*ether_type)).is_vlan() {
            let (control, rest) = rest.split_first_chunk::<2>()?;
            vlan = u16::from_be_bytes(*control) & 0x0fff;
            if vlan > VlanId::MAX || rest.len() < 2 {
                return None;
            }
        }
        Some(Self { destination: MacAddr(*destination), source: MacAddr(*source), vlan })
    }

    /// Whether bridges must not forward the destination: 01-80-C2-00-00-00 to -0F (IEEE 802.1Q, 8.6.3).
    #[inline]
    pub(crate) const fn is_reserved(self) -> bool {
        matches!(self.destination.0, [0x01, 0x80, 0xc2, 0, 0, 0..=0x0f])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netvm_nf_common::testing;
    use netvm_wire::FrameBuilder;

    #[test]
    fn it_reads_what_the_parser_reads() {
        for bytes in testing::every_kind() {
            let frame = Frame::read(&bytes).unwrap();
            let headers = netvm_wire::parse(&bytes).unwrap();
            assert_eq!(
                (frame.source, frame.destination),
                (headers.key().source_mac, headers.key().destination_mac)
            );
            assert_eq!(frame.vlan, headers.vlan().map_or(0, VlanId::get));
        }
    }

    #[test]
    fn cut_frames_and_the_forbidden_vlan_are_malformed() {
        let frame =
            testing::built(&testing::base("10.0.0.1:1", "10.0.0.2:2").udp(1, 2).vlan(testing::vlan(7)));
        for length in 0..18 {
            assert_eq!(Frame::read(&frame[..length]), None, "{length}");
        }
        assert!(Frame::read(&frame[..18]).is_some());
        let mut forbidden = frame.clone();
        forbidden[14..16].copy_from_slice(&[0x0f, 0xff]);
        assert_eq!(Frame::read(&forbidden), None);
        let mut priority = frame;
        priority[14..16].copy_from_slice(&[0xe0, 0]);
        assert_eq!(Frame::read(&priority).map(|frame| frame.vlan), Some(0));
    }

    #[test]
    fn reserved_addresses() {
        let to = |last| {
            let destination = MacAddr([0x01, 0x80, 0xc2, 0, 0, last]);
            let builder = FrameBuilder::new(testing::ALICE, destination).ether_type(EtherType(0x88cc));
            Frame::read(&testing::built(&builder)).unwrap().is_reserved()
        };
        assert!(to(0) && to(0x0e) && to(0x0f) && !to(0x10));
    }
}
