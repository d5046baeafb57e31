// SPDX-License-Identifier: Apache-2.0
//! Guests whose back-end or memory changes: after a crash of netvm, after a migration, and region by region.

use std::os::fd::AsFd;

use crate::buffers::{WRITE, place};
use crate::sent::before_a_capture;
use crate::support::guests::{connected, no_buffer_is_lost, view};
use crate::support::hostile_guest::{ENTRIES, HostileGuest, MEMORY, USER, descriptor};
use crate::support::hostile_rig::{HOSTILE, PACKED, TIMEOUT, VERSION_1, goes_on, is_up, with_rig};
use crate::support::pcap::Scratch;
use netvm_model::{Host, VhostDma};
use netvm_vhost_user::request::{
    ADD_MEM_REG, GET_INFLIGHT_FD, GET_MAX_MEM_SLOTS, REM_MEM_REG, SEND_RARP, SET_INFLIGHT_FD,
    SET_PROTOCOL_FEATURES,
};

/// Features of the protocol.
const RARP: u64 = 1 << 2;
const INFLIGHT: u64 = 1 << 12;
const MEM_SLOTS: u64 = 1 << 15;

/// Offers `count` buffers of a packed ring from a slot on, the first one last.
fn offer_packed(hostile: &HostileGuest, from: u64, count: u64) {
    for slot in (from..from + count).rev() {
        let at = place(slot as usize, 0);
        hostile.write(slot * 16, descriptor(at, 2048, slot as u16, WRITE | 1 << 15));
    }
}

fn is_used(hostile: &HostileGuest, slot: u64) -> bool {
    u16::from_ne_bytes(hostile.read(slot * 16 + 14)) & 0x8080 == 0
}

/// netvm is killed, and the front-end does not know how far it was: the memory for inflight I/O does.
#[test]
fn a_packed_ring_goes_on_where_a_killed_back_end_was() {
    with_rig("inflight", VhostDma::Off, |rig, path| {
        let mut hostile = HostileGuest::reach(path);
        let queues = 2 | u64::from(ENTRIES) << 16;
        hostile.send(SET_PROTOCOL_FEATURES, &[INFLIGHT], None);
        let (description, file) = hostile.answer(GET_INFLIGHT_FD, &[0, 0, queues]);
        let (bytes, file) = (u64::from_ne_bytes(description[..8].try_into().unwrap()), file.unwrap());
        assert_eq!((bytes, &description[16..20]), (256, &[2, 0, 0, 1][..]));
        let begin = |hostile: &HostileGuest| {
            hostile.send(SET_PROTOCOL_FEATURES, &[INFLIGHT], None);
            hostile.send(SET_INFLIGHT_FD, &[bytes, 0, queues], Some(file.as_fd()));
            hostile.begin(VERSION_1 | PACKED);
            (0..2).for_each(|ring| hostile.start(ring));
        };
        for visit in 0..8 {
            begin(&hostile);
            let from = visit * 5;
            offer_packed(&hostile, from, 5);
            assert!(rig.until(TIMEOUT, |_| is_used(&hostile, from + 4)), "{visit}: {}", rig.describe());
            hostile.reach_again(path);
        }
        // A front-end that writes nonsense there harms nobody.
        for place in 0..32 {
            rustix::io::pwrite(&file, &[0xff; 4], place * 8).unwrap();
        }
        begin(&hostile);
        assert!(rig.until(TIMEOUT, |engine| is_up(engine, HOSTILE)) && goes_on(rig), "{}", rig.describe());
    });
}

#[test]
fn a_guest_that_cannot_announce_itself_is_announced() {
    let scratch = Scratch::new();
    let path = scratch.path().join("moved");
    let mut rig = before_a_capture(&scratch, &path);
    let hostile = HostileGuest::reach(&path);
    hostile.send(SET_PROTOCOL_FEATURES, &[RARP], None);
    hostile.begin(VERSION_1);
    // Before its driver has begun, and while it runs.
    let [one, other] = [1u8, 2].map(|last| u64::from_ne_bytes([2, 0, 0, 0, 0, last, 0, 0]));
    hostile.send(SEND_RARP, &[one], None);
    (0..2).for_each(|ring| hostile.start(ring));
    connected(&mut rig, 0);
    assert!(rig.until(TIMEOUT, |engine| view(engine, 1).tx_packets == 1), "{}", rig.describe());
    hostile.send(SEND_RARP, &[other], None);
    assert!(rig.until(TIMEOUT, |engine| view(engine, 1).tx_packets == 2), "{}", rig.describe());
    assert_eq!(view(&rig.engine, 0).rx_packets, 2);
    no_buffer_is_lost(&mut rig);
    rig.engine.apply(&Host::default()).unwrap();
    for (last, frame) in (1..).zip(scratch.sent(1)) {
        assert_eq!(frame[..14], [255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, last, 0x80, 0x35]);
        assert_eq!(frame[22..28], [2, 0, 0, 0, 0, last]);
    }
}

/// Front-ends replace a region by two messages, while rings in it run.
#[test]
fn rings_wait_for_memory_that_is_replaced() {
    with_rig("slots", VhostDma::Off, |rig, path| {
        let hostile = HostileGuest::reach(path);
        let region = [0, 0, MEMORY as u64, USER, 0];
        hostile.send(SET_PROTOCOL_FEATURES, &[MEM_SLOTS], None);
        let (slots, _) = hostile.answer(GET_MAX_MEM_SLOTS, &[]);
        assert_eq!(slots, 32u64.to_ne_bytes());
        hostile.features(VERSION_1);
        hostile.share(ADD_MEM_REG, &region);
        (0..2).for_each(|ring| hostile.start(ring));
        for turn in 1..=5 {
            hostile.offer(0, turn);
            let all = rig.until(TIMEOUT, |_| hostile.used(0) == turn * ENTRIES as u16);
            assert!(all, "turn {turn}: {}", rig.describe());
            hostile.send(REM_MEM_REG, &region, None);
            assert!(rig.until(TIMEOUT, |engine| !is_up(engine, HOSTILE)), "{}", rig.describe());
            // Another region has other rings, perhaps.
            hostile.share(ADD_MEM_REG, &[0, 1 << 40, 4096, 1 << 50, 0]);
            hostile.send(REM_MEM_REG, &[0, 1 << 40, 4096, 1 << 50, 0], None);
            hostile.share(ADD_MEM_REG, &region);
        }
        assert_eq!(hostile.stop_at(0), 5 * ENTRIES);
        hostile.send(REM_MEM_REG, &region, None);
        assert_eq!(hostile.stop_at(1), 0);
    });
}
