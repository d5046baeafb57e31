// SPDX-License-Identifier: Apache-2.0
//! Frames that tell switches outside by which link addresses are reached now: a reverse ARP request (RFC 903) from each
//! address, as hypervisors send them after a migration. Hosts ignore it, switches learn its source.

use std::sync::Arc;

use netvm_model::{PortConfig, VlanMode};
use netvm_wire::{EtherType, MacAddr, VlanId};

use crate::manager::publish::policy::now;
use crate::policy::Switching;
use crate::router::RouterPath;
use crate::snapshot::ControlFrame;

/// Most addresses that are announced: others are learned from their packets.
const MAX_ADDRESSES: usize = 1024;
/// Bytes of the shortest Ethernet frame, without its check sequence.
const MIN_FRAME: usize = 60;
const REVERSE_ARP: u16 = 0x8035;

/// The frames of a bond: for addresses that L2 switching has learned at other ports, and for routers' interfaces.
pub(super) fn frames(
    bond: &PortConfig,
    switching: Option<&Switching>,
    routers: &[Option<Arc<RouterPath>>],
) -> Vec<ControlFrame> {
    let mut frames = Vec::new();
    let interfaces = routers.iter().flatten().flat_map(|router| &router.interfaces);
    for interface in interfaces.filter(|interface| interface.port == bond.id) {
        frames.push(frame(interface.mac, interface.vlan));
    }
    let learned = switching.into_iter().flat_map(|switching| switching.fdb.entries(now()));
    for entry in learned.filter(|entry| entry.port != bond.id.0) {
        if let Some(tag) = tag_of(&bond.policy.vlan, entry.vlan) {
            frames.push(frame(entry.mac, tag));
        }
    }
    frames.truncate(MAX_ADDRESSES);
    frames
}

/// The tag with which the bond sends packets of a VLAN; `None`: it sends none of them.
fn tag_of(mode: &VlanMode, vlan: u16) -> Option<Option<VlanId>> {
    match mode {
        VlanMode::Unaware => (vlan == 0).then_some(None),
        VlanMode::Access(own) => (own.get() == vlan).then_some(None),
        VlanMode::Trunk { vlans, native } => {
            if native.is_some_and(|native| native.get() == vlan) {
                return Some(None);
            }
            let is_member = vlans.iter().any(|span| span.contains(vlan));
            VlanId::new(vlan).ok().filter(|_| is_member).map(Some)
        }
    }
}

fn frame(source: MacAddr, tag: Option<VlanId>) -> ControlFrame {
    let mut frame = ControlFrame::new();
    let mut add = |bytes: &[u8]| {
        // It is shorter than a frame of LACP.
        let _ = frame.try_extend_from_slice(bytes);
    };
    add(&MacAddr::BROADCAST.0);
    add(&source.0);
    if let Some(tag) = tag {
        add(&EtherType::VLAN.0.to_be_bytes());
        add(&tag.get().to_be_bytes());
    }
    add(&REVERSE_ARP.to_be_bytes());
    // Ethernet, IPv4, six and four bytes, a request.
    add(&[0, 1, 8, 0, 6, 4, 0, 3]);
    for _ in 0..2 {
        add(&source.0);
        add(&[0; 4]);
    }
    while frame.len() < MIN_FRAME {
        frame.push(0);
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_a_request_from_its_address() {
        let mac = MacAddr([2, 0, 0, 0, 0, 9]);
        let frame = frame(mac, None);
        assert_eq!((frame.len(), &frame[..6], &frame[6..12]), (60, &[0xff; 6][..], &mac.0[..]));
        assert_eq!(frame[12..22], [0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
        assert_eq!((&frame[22..28], &frame[32..38]), (&mac.0[..], &mac.0[..]));
    }

    #[test]
    fn addresses_are_announced_in_their_vlan() {
        let vlan = |number| VlanId::new(number).unwrap();
        let trunk =
            VlanMode::Trunk { vlans: vec![netvm_model::Span { first: 10, last: 20 }], native: Some(vlan(5)) };
        let expected = [
            (VlanMode::Unaware, 0, Some(None)),
            (VlanMode::Access(vlan(7)), 7, Some(None)),
            (VlanMode::Access(vlan(7)), 8, None),
            (trunk.clone(), 5, Some(None)),
            (trunk.clone(), 12, Some(Some(vlan(12)))),
            (trunk, 30, None),
        ];
        for (mode, number, tag) in expected {
            assert_eq!(tag_of(&mode, number), tag, "{mode:?} {number}");
        }
        let tagged = frame(MacAddr([2; 6]), Some(vlan(12)));
        assert_eq!(tagged[12..18], [0x81, 0, 0, 12, 0x80, 0x35]);
    }
}
