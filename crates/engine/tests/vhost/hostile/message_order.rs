// SPDX-License-Identifier: Apache-2.0
//! Guests that send valid messages in an unsafe order: netvm disconnects them.
//!
//! The rules are in `crates/dpdk/src/vhost/front_end/protocol.rs`. DPDK's vhost library (22.11 to 25.11) has none of
//! them; the comment of each test says what it would do.

use std::thread::sleep;
use std::time::Duration;

use crate::support::hostile_guest::{HostileGuest, MEMORY};
use crate::support::hostile_rig::{
    EVENT_INDEX, HOSTILE, MERGEABLE, MULTIQUEUE, PACKED, PROTOCOL, TIMEOUT, VERSION_1, fault, fault_notices,
    goes_on, is_up, with_rig,
};
use netvm_engine::Engine;
use netvm_model::VhostDma;
use netvm_vhost_user::request::{
    GET_STATUS, SEND_RARP, SET_BACKEND_REQ_FD, SET_INFLIGHT_FD, SET_LOG_BASE, SET_LOG_FD, SET_STATUS,
    SET_VRING_NUM,
};

const END: u64 = MEMORY as u64;
const SPLIT: u64 = VERSION_1;

/// Rings at their usual place, except for one part.
const DESCRIPTORS: u64 = 0x10_0000;
const AVAILABLE: u64 = 0x20_0000;
const USED: u64 = 0x30_0000;

/// netvm disconnects a guest that sends this, and other guests notice nothing.
fn refused(name: &str, says: impl Fn(&mut HostileGuest)) {
    with_rig(name, VhostDma::Off, |rig, path| {
        for visit in 0..5 {
            let mut hostile = HostileGuest::reach(path);
            says(&mut hostile);
            assert!(hostile.is_disconnected(), "visit {visit}: {}", rig.describe());
        }
        assert!(goes_on(rig), "{}", rig.describe());
    });
}

/// The fault of a port whose guest netvm disconnected.
#[test]
fn the_port_says_so_once_until_another_guest_comes() {
    with_rig("says", VhostDma::Off, |rig, path| {
        for round in 1..3 {
            for _ in 0..5 {
                let mut hostile = HostileGuest::reach(path);
                hostile.begin(SPLIT);
                hostile.run(0);
                assert!(hostile.is_disconnected(), "{}", rig.describe());
                let says =
                    |engine: &Engine| fault(engine).is_some_and(|fault| fault.contains("disconnected"));
                assert!(rig.until(TIMEOUT, says), "{}", rig.describe());
            }
            let guest = HostileGuest::connect(path, SPLIT);
            let is_well = |engine: &Engine| is_up(engine, HOSTILE) && fault(engine).is_none();
            assert!(rig.until(TIMEOUT, is_well), "{}", rig.describe());
            assert_eq!(fault_notices(rig), round);
            drop(guest);
            assert!(rig.until(TIMEOUT, |engine| !is_up(engine, HOSTILE)));
            assert_eq!(fault(&rig.engine), None);
        }
    });
}

/// Lets a worker begin with the ring that was started.
fn pause() {
    sleep(Duration::from_millis(50));
}

/// Runs both rings; the descriptors of the second are the last bytes of the memory.
fn run_at_the_end_of_memory(hostile: &HostileGuest) {
    hostile.begin(SPLIT);
    hostile.start(0);
    hostile.size(1, 256);
    hostile.base(1, 0);
    hostile.start_at(1, END - 4096, AVAILABLE, USED);
    pause();
}

/// Writes a head into all entries of an available ring, and makes so many available.
fn offer(hostile: &HostileGuest, head: u16, count: u16) {
    (0..256).for_each(|entry| hostile.write(AVAILABLE + 4 + 2 * entry, head.to_ne_bytes()));
    hostile.write(AVAILABLE + 2, count.to_ne_bytes());
}

/// The library would read descriptors behind the end of the memory.
#[test]
fn a_ring_does_not_grow_while_it_runs() {
    refused("grows", |hostile| {
        run_at_the_end_of_memory(hostile);
        hostile.size(1, 1 << 15);
        offer(hostile, 30_000, 100);
    });
}

/// The same: the library would keep the size although the message fails, and also the connection, because the guest
/// asks for an answer.
#[test]
fn a_size_that_is_refused_does_not_count() {
    refused("odd", |hostile| {
        run_at_the_end_of_memory(hostile);
        hostile.ask(SET_VRING_NUM, &[1 | 32_767 << 32], None);
        offer(hostile, 30_000, 100);
    });
}

/// The library would have freed the list of used buffers.
#[test]
fn a_ring_that_was_stopped_needs_its_size_again() {
    refused("unsized", |hostile| {
        hostile.begin(SPLIT);
        hostile.start(0);
        hostile.start(1);
        pause();
        hostile.stop(1);
        hostile.base(1, 0);
        hostile.start_at(1, DESCRIPTORS, AVAILABLE, USED);
        offer(hostile, 0, 100);
    });
}

/// The library would never have made that list.
#[test]
fn so_does_one_that_is_new() {
    refused("new", |hostile| {
        hostile.begin(SPLIT);
        hostile.start(0);
        hostile.start_at(1, DESCRIPTORS, AVAILABLE, USED);
        offer(hostile, 0, 100);
    });
}

/// The library would take the parts of a packed ring for those of a split one, which are longer.
#[test]
fn a_ring_is_placed_again_when_its_kind_changes() {
    refused("kind", |hostile| {
        hostile.begin(PROTOCOL | VERSION_1 | PACKED);
        hostile.size(1, 256);
        hostile.enable(1);
        hostile.place(1, DESCRIPTORS, END - 4, END - 4);
        hostile.features(PROTOCOL | VERSION_1);
        hostile.call(1);
        hostile.run(1);
        hostile.start(0);
        hostile.enable(0);
        pause();
        hostile.write(END - 2, 100u16.to_ne_bytes());
    });
}

/// The library would have made the list of used buffers for shorter entries.
#[test]
fn it_is_sized_again_then_too() {
    refused("resized", |hostile| {
        let features = VERSION_1 | MERGEABLE;
        hostile.begin(features);
        hostile.size(0, 1 << 15);
        hostile.features(features | PACKED);
        hostile.base(0, 1 << 15);
        for entry in 0..1 << 15 {
            // Available, writable and empty.
            hostile.write(DESCRIPTORS + 16 * entry + 14, 0x82u16.to_ne_bytes());
        }
        hostile.write(DESCRIPTORS + 16 * 32_767, 0u64.to_ne_bytes());
        hostile.write(DESCRIPTORS + 16 * 32_767 + 8, 2048u32.to_ne_bytes());
        hostile.start_at(0, DESCRIPTORS, AVAILABLE, USED);
        hostile.start(1);
    });
}

/// The library would read the event index, two bytes behind a split ring.
#[test]
fn or_when_event_indexes_come() {
    refused("events", |hostile| {
        hostile.begin(PROTOCOL | SPLIT);
        hostile.size(1, 256);
        hostile.enable(1);
        hostile.place(1, DESCRIPTORS, AVAILABLE, END - 4 - 8 * 256);
        hostile.features(PROTOCOL | SPLIT | EVENT_INDEX);
        hostile.call(1);
        hostile.run(1);
        hostile.start(0);
        hostile.enable(0);
    });
}

/// The library would read a descriptor behind the end of the memory.
#[test]
fn a_packed_ring_begins_within_itself() {
    refused("base", |hostile| {
        hostile.begin(SPLIT | PACKED);
        hostile.start(0);
        hostile.size(1, 256);
        hostile.base(1, 0xffff);
        hostile.start_at(1, END - 4096, AVAILABLE, USED);
    });
}

/// The same, because the library keeps the index of the last start.
#[test]
fn it_does_so_when_it_was_longer_before() {
    refused("shorter", |hostile| {
        hostile.begin(SPLIT | PACKED);
        hostile.start(0);
        hostile.size(1, 1 << 15);
        hostile.base(1, 0xfff0);
        hostile.start_at(1, DESCRIPTORS, AVAILABLE, USED);
        pause();
        hostile.stop(1);
        hostile.size(1, 256);
        hostile.start_at(1, END - 4096, AVAILABLE, USED);
    });
}

/// Half of the word that suppresses its notifications is behind the end of the memory.
#[test]
fn a_ring_that_runs_stays_where_it_is() {
    refused("moves", |hostile| {
        hostile.begin(SPLIT | PACKED);
        hostile.start(0);
        hostile.start(1);
        pause();
        hostile.place(1, DESCRIPTORS, AVAILABLE, END - 2);
        hostile.call(1);
    });
}

/// The same.
#[test]
fn rings_that_run_stay_in_the_memory() {
    refused("stays", |hostile| {
        hostile.begin(SPLIT | PACKED);
        hostile.start(0);
        hostile.size(1, 256);
        hostile.base(1, 1 << 15);
        hostile.start_at(1, DESCRIPTORS, AVAILABLE, END - 4);
        pause();
        hostile.memory(END - 2);
        hostile.call(1);
    });
}

/// The library would write to the old memory of the rings: it keeps the connection when the guest asks for an answer.
#[test]
fn memory_that_cannot_be_mapped_ends_it_even_if_an_answer_is_wanted() {
    refused("unmapped", |hostile| {
        hostile.begin(SPLIT);
        hostile.start(0);
        hostile.start(1);
        pause();
        hostile.ask_for_unmappable();
        hostile.call(1);
    });
}

/// The library would write to 200 areas of 1 MB of a file of 4 MB.
#[test]
fn there_is_no_memory_for_what_is_under_way() {
    refused("inflight", |hostile| {
        hostile.begin(SPLIT);
        hostile.share(SET_INFLIGHT_FD, &[4096, 0, 200 | 0xffff << 16]);
    });
}

/// The library would start a ring that it has freed with its queue pair.
#[test]
fn rings_of_further_pairs_go_with_the_feature() {
    refused("pairs", |hostile| {
        hostile.begin(PROTOCOL | SPLIT | MULTIQUEUE);
        hostile.size(3, 256);
        hostile.place(3, DESCRIPTORS, AVAILABLE, USED);
        hostile.features(PROTOCOL | SPLIT);
        hostile.start_at(3, DESCRIPTORS, AVAILABLE, USED);
        hostile.enable(3);
        for ring in 0..2 {
            hostile.start(ring);
            hostile.enable(ring);
        }
        offer(hostile, 0, 100);
    });
}

/// The library would receive one more packet than there is room for.
#[test]
fn nobody_announces_a_guest() {
    refused("rarp", |hostile| {
        hostile.begin(SPLIT | PACKED);
        hostile.start(0);
        hostile.start(1);
        pause();
        for _ in 0..100 {
            hostile.send(SEND_RARP, &[1], None);
            sleep(Duration::from_millis(1));
        }
    });
}

/// The library would write more entries to the list of used buffers and to the ring than they have.
#[test]
fn a_ring_is_no_shorter_than_a_burst() {
    refused("short", |hostile| {
        hostile.begin(SPLIT);
        hostile.start(0);
        hostile.size(1, 1);
        hostile.base(1, 0);
        hostile.place(1, DESCRIPTORS, AVAILABLE, END - 4 - 8);
        // A header and a packet, many times.
        hostile.write(DESCRIPTORS, 0x18_0000u64.to_ne_bytes());
        hostile.write(DESCRIPTORS + 8, 100u32.to_ne_bytes());
        offer(hostile, 0, 0);
        hostile.call(1);
        hostile.run(1);
        for count in 1..10 {
            offer(hostile, 0, 1000 * count);
            sleep(Duration::from_millis(2));
        }
    });
}

/// The library would map files, allocate memory, or wait for another message.
#[test]
fn nothing_is_heard_of_what_is_not_offered() {
    with_rig("other", VhostDma::Off, |rig, path| {
        let first = [SET_LOG_BASE, SET_LOG_FD, SEND_RARP].into_iter().chain(SET_BACKEND_REQ_FD..SET_STATUS);
        for request in first.chain(GET_STATUS + 1..60) {
            let mut hostile = HostileGuest::reach(path);
            hostile.begin(SPLIT);
            hostile.send(request, &[0; 3], None);
            assert!(hostile.is_disconnected(), "message {request}: {}", rig.describe());
        }
        assert!(goes_on(rig), "{}", rig.describe());
    });
}
