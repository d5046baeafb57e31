// SPDX-License-Identifier: Apache-2.0
//! Packets that NFs get and return, change, drop, keep and lose.

use netvm_ring::VerdictKind;
use netvm_wire::{TcpFlags, checksum, parse};

use super::super::rig::{Rig, ip, udp};
use super::{TO_CHAIN, from_nf, only, port_of, to_nf, traced};
use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::worker::trace::{Lost, NfVerdict, Step};

/// As many cycles as a packet is followed at most, and more.
const LONG: u64 = 1 << 50;
/// The byte of a UDP frame with the low bits of the destination port.
const PORT_BYTE: usize = 37;

#[test]
fn packets_are_followed_through_two_nfs_and_out() {
    let mut rig = Rig::new(&TO_CHAIN).with_chain(2, &[]);
    rig.start_trace(1, None);
    (0..3).for_each(|n| rig.receive(0, &udp(1, 2, n)));
    rig.turn();
    for hop in 0..2 {
        assert!(traced(&mut rig).is_empty(), "an NF has them");
        let burst = rig.nfs[hop].take();
        rig.nfs[hop].tx.push(&burst);
        rig.turn();
    }
    let all = traced(&mut rig);
    assert_eq!(all.iter().map(|steps| port_of(steps)).collect::<Vec<_>>(), [0, 1, 2]);
    for steps in all {
        assert_eq!(steps[0], Step::In(PortId(0)));
        let entered = steps.iter().position(|step| matches!(step, Step::Chain(_))).unwrap();
        let next = NfVerdict::Next;
        let expected =
            [to_nf(0), from_nf(0, next), to_nf(1), from_nf(1, next), Step::Left, Step::Out(PortId(1))];
        assert_eq!(steps[entered + 1..], expected);
    }
    rig.assert_nothing_leaked();
}

#[test]
fn the_verdict_of_an_nf_and_what_it_has_changed_are_noted() {
    let mut rig = Rig::new(&TO_CHAIN).with_chain(1, &[PortId(2)]);
    rig.start_trace(1, None);
    let dropped = Step::Dropped;
    let cases = [
        (VerdictKind::Drop, 0, NfVerdict::Drop, vec![dropped(DropReason::Verdict)]),
        (VerdictKind::Port, 1, NfVerdict::Port(PortId(1)), vec![dropped(DropReason::PortDenied)]),
        (VerdictKind::Port, 2, NfVerdict::Port(PortId(2)), vec![Step::Left, Step::Out(PortId(2))]),
    ];
    for (kind, argument, verdict, end) in cases {
        rig.receive(0, &udp(1, 2, 3));
        rig.turn();
        let burst = rig.nfs[0].take();
        let burst: Vec<_> = burst.into_iter().map(|taken| taken.with_verdict(kind, argument)).collect();
        rig.nfs[0].tx.push(&burst);
        rig.turn();
        let steps = only(&mut rig);
        let expected = [vec![to_nf(0), from_nf(0, verdict)], end].concat();
        assert!(steps.ends_with(&expected), "{steps:?}");
    }
    // One that is returned with another destination port.
    rig.receive(0, &udp(1, 2, 3));
    rig.turn();
    let burst = rig.nfs[0].take();
    rig.bytes_of(&burst[0])[PORT_BYTE] = 77;
    rig.nfs[0].tx.push(&burst);
    rig.turn();
    let steps = only(&mut rig);
    let [.., from, Step::Rewritten(key), Step::Left, Step::Out(_)] = &steps[..] else { panic!("{steps:?}") };
    assert_eq!((from, key.destination_port), (&from_nf(0, NfVerdict::Next), 77));
    rig.assert_nothing_leaked();
}

#[test]
fn a_packet_that_stays_or_vanishes_is_lost() {
    let mut rig = Rig::new(&TO_CHAIN).with_chain(1, &[]);
    rig.start_trace(1, None);
    let held = rig.hold_all_buffers_but(1);
    rig.receive(0, &udp(1, 2, 3));
    rig.turn();
    let burst = rig.nfs[0].take();
    // The buffer of an impossible descriptor is free, and the next packet gets it.
    rig.nfs[0].tx.push(&[burst[0].with_span(burst[0].offset(), u16::MAX)]);
    rig.turn();
    rig.receive(0, &udp(1, 2, 4));
    rig.turn();
    let steps = only(&mut rig);
    assert!(steps.ends_with(&[to_nf(0), Step::Lost(Lost::Freed)]), "{steps:?}");
    let burst = rig.nfs[0].take();
    rig.nfs[0].tx.push(&burst);
    rig.turn();
    let steps = only(&mut rig);
    assert_eq!((port_of(&steps), steps.last()), (4, Some(&Step::Out(PortId(1)))));

    rig.receive(0, &udp(1, 2, 5));
    rig.turn();
    let now = netvm_clock::cycles();
    let recorder = rig.worker.dp.recorder.as_mut().unwrap();
    assert!(recorder.take_ended(now).is_none());
    let record = recorder.take_ended(now + LONG).unwrap();
    let steps = super::steps_of(&rig, &record);
    assert!(steps.ends_with(&[to_nf(0), Step::Lost(Lost::Held)]), "{steps:?}");
    let burst = rig.nfs[0].take();
    rig.nfs[0].tx.push(&burst);
    rig.turn();
    assert!(traced(&mut rig).is_empty());
    drop(held);
    rig.assert_nothing_leaked();
}

#[test]
fn the_first_part_of_a_packet_that_is_cut_is_followed() {
    let mut rig = Rig::new(&TO_CHAIN).with_chain(1, &[]);
    rig.wires[0].lock().unwrap().segment_size = Some(300);
    rig.start_trace(1, None);
    rig.receive(0, &ip(1, 2).udp(1, 7).payload(&[7; 1000]).to_vec().unwrap());
    rig.turn();
    let burst = rig.nfs[0].take();
    assert_eq!(burst.len(), 4);
    rig.nfs[0].tx.push(&burst);
    rig.turn();
    let steps = only(&mut rig);
    let cut = steps.iter().position(|step| *step == Step::Cut(4)).unwrap();
    let expected = [to_nf(0), from_nf(0, NfVerdict::Next), Step::Left, Step::Out(PortId(1))];
    assert_eq!(steps[cut + 1..], expected);
    rig.assert_nothing_leaked();
}

#[test]
fn a_packet_that_an_nf_shortens_is_followed_into_another_buffer() {
    let mut rig = Rig::new(&TO_CHAIN).with_chain_of(1, &[], true);
    rig.wires[0].lock().unwrap().segment_size = Some(1000);
    rig.start_trace(1, None);
    rig.receive(0, &ip(1, 2).tcp(1000, 80, TcpFlags::ACK).payload(&[7; 20_000]).to_vec().unwrap());
    rig.turn();
    let [packet] = rig.nfs[0].take()[..] else { panic!("one packet") };
    let length = 254u16;
    let bytes = rig.bytes_of(&packet);
    bytes[16..18].copy_from_slice(&(length - 14).to_be_bytes());
    let short = &mut bytes[..length.into()];
    let headers = parse(short).unwrap();
    checksum::fill(short, &headers).unwrap();
    rig.nfs[0].tx.push(&[packet.with_span(packet.offset(), length)]);
    rig.turn();
    let steps = only(&mut rig);
    assert!(steps.ends_with(&[from_nf(0, NfVerdict::Next), Step::Left, Step::Out(PortId(1))]), "{steps:?}");
    rig.assert_nothing_leaked();
}
