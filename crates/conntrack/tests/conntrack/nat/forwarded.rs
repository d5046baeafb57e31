// SPDX-License-Identifier: Apache-2.0
//! Packets that the kernel of a router has forwarded: with another destination, and still with their own source.

use netvm_conntrack::{ConnectionId, Packet, Translation};
use netvm_wire::parse;

use super::*;

const SERVER: &str = "10.0.0.8";

/// The connection of a packet of the kernel, and whether it is an answer.
fn forwarded(rig: &mut Rig, frame: &[u8]) -> Option<(ConnectionId, bool)> {
    let key = *parse(frame).unwrap().key();
    let packet = Packet { key: &key, zone: rig.zone, front: frame, length: frame.len() };
    let tracked = rig.table.track_forwarded(&packet, rig.now)?;
    Some((tracked.connection?, tracked.is_reply))
}

#[test]
fn packets_that_waited_belong_to_their_connection_though_its_source_is_decided() {
    let mut rig = rig();
    let pools = masquerade();
    // The end inside has mappings at two addresses.
    let elsewhere = [pool("203.0.113.2", "203.0.113.2", [1, u16::MAX])];
    let translation = Translation { sources: &elsewhere, destination: None };
    rig.through(&udp_frame(INSIDE, "192.0.2.9", [1000, 53]), translation).unwrap();

    let received = udp_frame(INSIDE, REMOTE, [1000, 8080]);
    let translation = Translation { sources: &[], destination: to(SERVER, 80) };
    rig.begin(&received, translation).unwrap();
    let id = rig.look(&received).connection.unwrap();
    let by_kernel = udp_frame(INSIDE, SERVER, [1000, 80]);
    assert_eq!(forwarded(&mut rig, &by_kernel), Some((id, false)));
    // The first of them decides what stands for the source. Others waited with it.
    rig.table.settle_source(id, &pools).unwrap();
    assert_eq!(rig.table.get(id).unwrap().reply().destination, address(OUTSIDE));
    assert_eq!(forwarded(&mut rig, &by_kernel), Some((id, false)));
    let mut frame = by_kernel.clone();
    let length = frame.len();
    for half in [Half::Destination, Half::Source] {
        let mut packet = Rewrite { front: &mut frame, length, is_partial: false };
        rig.table.get(id).unwrap().rewrite(half, false, &mut packet).unwrap();
    }
    assert_eq!(frame, udp_frame(OUTSIDE, SERVER, [1000, 80]));

    for other in [
        udp_frame(INSIDE, SERVER, [1000, 81]),
        udp_frame(INSIDE, SERVER, [1001, 80]),
        udp_frame(OTHER_INSIDE, SERVER, [1000, 80]),
    ] {
        assert_eq!(forwarded(&mut rig, &other), None);
    }
}
