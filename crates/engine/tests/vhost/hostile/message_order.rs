//! Guests that send valid messages in an unsafe order: netvm disconnects them.
//!
//! The rules are in `crates/dpdk/src/vhost/front_end/protocol.rs`. DPDK's vhost library (22.11 to 25.11) has none of them;
//! the comment of each test says what it would do.

use std::thread::sleep;
use std::time::Duration;

use crate::support::rogue::{MEMORY, Rogue};
use crate::support::rogues::{
    EVENT_INDEX, MERGEABLE, MULTIQUEUE, PACKED, PROTOCOL, ROGUE, SOON, VERSION_1, fault, goes_on, is_up,
    told, with_rig,
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
fn refused(name: &str, says: impl Fn(&mut Rogue)) {
    with_rig(name, VhostDma::Off, |rig, path| {
        for visit in 0..5 {
            let mut rogue = Rogue::reach(path);
            says(&mut rogue);
            assert!(rogue.is_hung_up_on(), "visit {visit}: {}", rig.story());
        }
        assert!(goes_on(rig), "{}", rig.story());
    });
}

/// The fault of a port whose guest netvm disconnected.
#[test]
fn the_port_says_so_once_until_another_guest_comes() {
    with_rig("says", VhostDma::Off, |rig, path| {
        for round in 1..3 {
            for _ in 0..5 {
                let mut rogue = Rogue::reach(path);
                rogue.begin(SPLIT);
                rogue.run(0);
                assert!(rogue.is_hung_up_on(), "{}", rig.story());
                let says =
                    |engine: &Engine| fault(engine).is_some_and(|fault| fault.contains("disconnected"));
                assert!(rig.until(SOON, says), "{}", rig.story());
            }
            let guest = Rogue::connect(path, SPLIT);
            let is_well = |engine: &Engine| is_up(engine, ROGUE) && fault(engine).is_none();
            assert!(rig.until(SOON, is_well), "{}", rig.story());
            assert_eq!(told(rig), round);
            drop(guest);
            assert!(rig.until(SOON, |engine| !is_up(engine, ROGUE)));
            assert_eq!(fault(&rig.engine), None);
        }
    });
}

/// Lets a worker begin with the ring that was started.
fn pause() {
    sleep(Duration::from_millis(50));
}

/// Runs both rings; the descriptors of the second are the last bytes of the memory.
fn run_at_the_end_of_memory(rogue: &Rogue) {
    rogue.begin(SPLIT);
    rogue.start(0);
    rogue.size(1, 256);
    rogue.base(1, 0);
    rogue.start_at(1, END - 4096, AVAILABLE, USED);
    pause();
}

/// Writes a head into all entries of an available ring, and makes so many available.
fn offer(rogue: &Rogue, head: u16, count: u16) {
    (0..256).for_each(|entry| rogue.write(AVAILABLE + 4 + 2 * entry, head.to_ne_bytes()));
    rogue.write(AVAILABLE + 2, count.to_ne_bytes());
}

/// The library would read descriptors behind the end of the memory.
#[test]
fn a_ring_does_not_grow_while_it_runs() {
    refused("grows", |rogue| {
        run_at_the_end_of_memory(rogue);
        rogue.size(1, 1 << 15);
        offer(rogue, 30_000, 100);
    });
}

/// The same: the library would keep the size although the message fails, and also the connection, because the guest asks
/// for an answer.
#[test]
fn a_size_that_is_refused_does_not_count() {
    refused("odd", |rogue| {
        run_at_the_end_of_memory(rogue);
        rogue.ask(SET_VRING_NUM, &[1 | 32_767 << 32], None);
        offer(rogue, 30_000, 100);
    });
}

/// The library would have freed the list of used buffers.
#[test]
fn a_ring_that_was_stopped_needs_its_size_again() {
    refused("unsized", |rogue| {
        rogue.begin(SPLIT);
        rogue.start(0);
        rogue.start(1);
        pause();
        rogue.stop(1);
        rogue.base(1, 0);
        rogue.start_at(1, DESCRIPTORS, AVAILABLE, USED);
        offer(rogue, 0, 100);
    });
}

/// The library would never have made that list.
#[test]
fn so_does_one_that_is_new() {
    refused("new", |rogue| {
        rogue.begin(SPLIT);
        rogue.start(0);
        rogue.start_at(1, DESCRIPTORS, AVAILABLE, USED);
        offer(rogue, 0, 100);
    });
}

/// The library would take the parts of a packed ring for those of a split one, which are longer.
#[test]
fn a_ring_is_placed_again_when_its_kind_changes() {
    refused("kind", |rogue| {
        rogue.begin(PROTOCOL | VERSION_1 | PACKED);
        rogue.size(1, 256);
        rogue.enable(1);
        rogue.place(1, DESCRIPTORS, END - 4, END - 4);
        rogue.features(PROTOCOL | VERSION_1);
        rogue.call(1);
        rogue.run(1);
        rogue.start(0);
        rogue.enable(0);
        pause();
        rogue.write(END - 2, 100u16.to_ne_bytes());
    });
}

/// The library would have made the list of used buffers for shorter entries.
#[test]
fn it_is_sized_again_then_too() {
    refused("resized", |rogue| {
        let features = VERSION_1 | MERGEABLE;
        rogue.begin(features);
        rogue.size(0, 1 << 15);
        rogue.features(features | PACKED);
        rogue.base(0, 1 << 15);
        for entry in 0..1 << 15 {
            // Available, writable and empty.
            rogue.write(DESCRIPTORS + 16 * entry + 14, 0x82u16.to_ne_bytes());
        }
        rogue.write(DESCRIPTORS + 16 * 32_767, 0u64.to_ne_bytes());
        rogue.write(DESCRIPTORS + 16 * 32_767 + 8, 2048u32.to_ne_bytes());
        rogue.start_at(0, DESCRIPTORS, AVAILABLE, USED);
        rogue.start(1);
    });
}

/// The library would read the event index, two bytes behind a split ring.
#[test]
fn or_when_event_indexes_come() {
    refused("events", |rogue| {
        rogue.begin(PROTOCOL | SPLIT);
        rogue.size(1, 256);
        rogue.enable(1);
        rogue.place(1, DESCRIPTORS, AVAILABLE, END - 4 - 8 * 256);
        rogue.features(PROTOCOL | SPLIT | EVENT_INDEX);
        rogue.call(1);
        rogue.run(1);
        rogue.start(0);
        rogue.enable(0);
    });
}

/// The library would read a descriptor behind the end of the memory.
#[test]
fn a_packed_ring_begins_within_itself() {
    refused("base", |rogue| {
        rogue.begin(SPLIT | PACKED);
        rogue.start(0);
        rogue.size(1, 256);
        rogue.base(1, 0xffff);
        rogue.start_at(1, END - 4096, AVAILABLE, USED);
    });
}

/// The same, because the library keeps the index of the last start.
#[test]
fn it_does_so_when_it_was_longer_before() {
    refused("shorter", |rogue| {
        rogue.begin(SPLIT | PACKED);
        rogue.start(0);
        rogue.size(1, 1 << 15);
        rogue.base(1, 0xfff0);
        rogue.start_at(1, DESCRIPTORS, AVAILABLE, USED);
        pause();
        rogue.stop(1);
        rogue.size(1, 256);
        rogue.start_at(1, END - 4096, AVAILABLE, USED);
    });
}

/// Half of the word that suppresses its notifications is behind the end of the memory.
#[test]
fn a_ring_that_runs_stays_where_it_is() {
    refused("moves", |rogue| {
        rogue.begin(SPLIT | PACKED);
        rogue.start(0);
        rogue.start(1);
        pause();
        rogue.place(1, DESCRIPTORS, AVAILABLE, END - 2);
        rogue.call(1);
    });
}

/// The same.
#[test]
fn rings_that_run_stay_in_the_memory() {
    refused("stays", |rogue| {
        rogue.begin(SPLIT | PACKED);
        rogue.start(0);
        rogue.size(1, 256);
        rogue.base(1, 1 << 15);
        rogue.start_at(1, DESCRIPTORS, AVAILABLE, END - 4);
        pause();
        rogue.memory(END - 2);
        rogue.call(1);
    });
}

/// The library would write to the old memory of the rings: it keeps the connection when the guest asks for an answer.
#[test]
fn memory_that_cannot_be_mapped_ends_it_even_if_an_answer_is_wanted() {
    refused("unmapped", |rogue| {
        rogue.begin(SPLIT);
        rogue.start(0);
        rogue.start(1);
        pause();
        rogue.ask_for_unmappable();
        rogue.call(1);
    });
}

/// The library would write to 200 areas of 1 MB of a file of 4 MB.
#[test]
fn there_is_no_memory_for_what_is_under_way() {
    refused("inflight", |rogue| {
        rogue.begin(SPLIT);
        rogue.share(SET_INFLIGHT_FD, &[4096, 0, 200 | 0xffff << 16]);
    });
}

/// The library would start a ring that it has freed with its queue pair.
#[test]
fn rings_of_further_pairs_go_with_the_feature() {
    refused("pairs", |rogue| {
        rogue.begin(PROTOCOL | SPLIT | MULTIQUEUE);
        rogue.size(3, 256);
        rogue.place(3, DESCRIPTORS, AVAILABLE, USED);
        rogue.features(PROTOCOL | SPLIT);
        rogue.start_at(3, DESCRIPTORS, AVAILABLE, USED);
        rogue.enable(3);
        for ring in 0..2 {
            rogue.start(ring);
            rogue.enable(ring);
        }
        offer(rogue, 0, 100);
    });
}

/// The library would receive one more packet than there is room for.
#[test]
fn nobody_announces_a_guest() {
    refused("rarp", |rogue| {
        rogue.begin(SPLIT | PACKED);
        rogue.start(0);
        rogue.start(1);
        pause();
        for _ in 0..100 {
            rogue.send(SEND_RARP, &[1], None);
            sleep(Duration::from_millis(1));
        }
    });
}

/// The library would write more entries to the list of used buffers and to the ring than they have.
#[test]
fn a_ring_is_no_shorter_than_a_burst() {
    refused("short", |rogue| {
        rogue.begin(SPLIT);
        rogue.start(0);
        rogue.size(1, 1);
        rogue.base(1, 0);
        rogue.place(1, DESCRIPTORS, AVAILABLE, END - 4 - 8);
        // A header and a packet, many times.
        rogue.write(DESCRIPTORS, 0x18_0000u64.to_ne_bytes());
        rogue.write(DESCRIPTORS + 8, 100u32.to_ne_bytes());
        offer(rogue, 0, 0);
        rogue.call(1);
        rogue.run(1);
        for count in 1..10 {
            offer(rogue, 0, 1000 * count);
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
            let mut rogue = Rogue::reach(path);
            rogue.begin(SPLIT);
            rogue.send(request, &[0; 3], None);
            assert!(rogue.is_hung_up_on(), "message {request}: {}", rig.story());
        }
        assert!(goes_on(rig), "{}", rig.story());
    });
}
