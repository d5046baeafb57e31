// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::peer::payload;
use crate::request::SET_BACKEND_REQ_FD;

const START: u64 = 0x7f00_0000_0000;
const BYTES: u64 = 1 << 20;
const SPLIT: u64 = 1 << 32 | 1 << 30 | MULTIQUEUE;

/// A front-end; each message returns whether the connection stays.
struct FrontEnd(Protocol);

impl FrontEnd {
    fn new(features: u64) -> Self {
        let mut front_end = Self(Protocol::default());
        assert!(front_end.features(features) && front_end.memory(&[(START, BYTES)]));
        front_end
    }

    fn send(&mut self, request: u32, words: &[u64]) -> bool {
        self.0.allows(request, &payload(words)).is_some()
    }

    fn features(&mut self, features: u64) -> bool {
        self.send(SET_FEATURES, &[features])
    }

    fn memory(&mut self, regions: &[(u64, u64)]) -> bool {
        let mut words = vec![regions.len() as u64];
        words.extend(regions.iter().flat_map(|(start, bytes)| [0, *bytes, *start, 0]));
        self.send(SET_MEM_TABLE, &words)
    }

    fn size(&mut self, ring: u32, size: u32) -> bool {
        self.send(SET_VRING_NUM, &[u64::from(size) << 32 | u64::from(ring)])
    }

    fn place(&mut self, ring: u32, [descriptors, driver, device]: [u64; 3]) -> bool {
        let at = |place| START.wrapping_add(place);
        self.send(SET_VRING_ADDR, &[ring.into(), at(descriptors), at(device), at(driver), 0])
    }

    fn base(&mut self, ring: u32, base: u32) -> bool {
        self.send(SET_VRING_BASE, &[u64::from(base) << 32 | u64::from(ring)])
    }

    fn stop(&mut self, ring: u32) -> bool {
        self.send(GET_VRING_BASE, &[ring.into()])
    }

    fn kick(&mut self, ring: u32) -> bool {
        self.send(SET_VRING_KICK, &[ring.into()])
    }

    fn call(&mut self, ring: u32) -> bool {
        self.send(SET_VRING_CALL, &[ring.into()])
    }

    fn enable(&mut self, ring: u32) -> bool {
        self.send(SET_VRING_ENABLE, &[1 << 32 | u64::from(ring)])
    }

    /// A ring of 256 entries where there is room for it.
    fn start(&mut self, ring: u32) -> bool {
        self.size(ring, 256) && self.base(ring, 0) && self.place(ring, [0, 0x4000, 0x8000]) && self.kick(ring)
    }
}

/// As QEMU does: queue pair after queue pair; then another driver, and memory that is added.
#[test]
fn the_messages_of_qemu_are_accepted() {
    let mut front_end = FrontEnd::new(SPLIT);
    for (round, features) in [SPLIT, SPLIT | PACKED, SPLIT | EVENT_INDEX].into_iter().enumerate() {
        for pair in 0..2 {
            assert!(front_end.features(features), "{round}");
            assert!(front_end.memory(&[(START, BYTES), (0, 4096 << round)]));
            for ring in 2 * pair..2 * pair + 2 {
                let base = if features & PACKED == 0 { 65_535 } else { 1 << 31 | 1 << 15 };
                assert!(front_end.size(ring, 1024) && front_end.base(ring, base));
                assert!(
                    front_end.place(ring, [0, 0x4000, 0x8000])
                        && front_end.kick(ring)
                        && front_end.call(ring)
                );
            }
        }
        assert!((0..4).all(|ring| front_end.enable(ring)) && front_end.call(0));
        assert!(front_end.memory(&[(START, 2 * BYTES)]));
        assert!((0..4).all(|ring| front_end.stop(ring)));
    }
}

/// As DPDK's `virtio_user` does, and as front-ends on rust-vmm do.
#[test]
fn so_are_others() {
    let mut front_end = FrontEnd(Protocol::default());
    assert!(
        [SET_OWNER, GET_FEATURES, GET_PROTOCOL_FEATURES].iter().all(|request| front_end.send(*request, &[]))
    );
    assert!(front_end.send(SET_PROTOCOL_FEATURES, &[1]) && front_end.send(GET_QUEUE_NUM, &[]));
    assert!(
        front_end.send(SET_STATUS, &[1])
            && front_end.send(GET_STATUS, &[])
            && front_end.send(NET_SET_MTU, &[1500])
    );
    assert!((0..4).all(|ring| front_end.call(ring)) && front_end.features(SPLIT | PACKED));
    assert!(front_end.memory(&[(START, BYTES)]));
    for ring in [0, 2, 1, 3] {
        assert!(front_end.size(ring, 48) && front_end.base(ring, 1 << 15));
        assert!(front_end.place(ring, [0, 0x4000, 0x8000]) && front_end.kick(ring));
    }
    assert!((0..4).all(|ring| front_end.stop(ring)) && front_end.features(SPLIT));
    assert!((0..2).all(|ring| front_end.size(ring, 128)));
    for ring in 0..2 {
        assert!(
            front_end.place(ring, [0, 0x4000, 0x8000]) && front_end.base(ring, 7) && front_end.call(ring)
        );
        assert!(front_end.kick(ring) && front_end.enable(ring));
    }
    assert_eq!(front_end.0.allows(RESET_OWNER, &[]), Some(()));
    assert!(front_end.0.rings[0].started);
}

#[test]
fn a_ring_that_is_started_stays_as_it_is() {
    let changes: [fn(&mut FrontEnd) -> bool; 7] = [
        |front_end| front_end.size(1, 256),
        |front_end| front_end.base(1, 0),
        |front_end| front_end.place(1, [0x1_0000, 0x4000, 0x8000]),
        |front_end| front_end.features(SPLIT | PACKED),
        |front_end| front_end.features(SPLIT | EVENT_INDEX),
        |front_end| front_end.memory(&[(START, 0x8000)]),
        |front_end| front_end.memory(&[(START, 0x4000), (START + 0x4000, BYTES)]) && front_end.memory(&[]),
    ];
    for change in changes {
        let mut front_end = FrontEnd::new(SPLIT);
        assert!(front_end.start(1) && front_end.features(SPLIT) && front_end.kick(1));
        assert!(!change(&mut front_end));
        assert!(
            front_end.stop(1) && change(&mut front_end) || front_end.size(1, 256) && change(&mut front_end)
        );
    }
}

#[test]
fn sizes_are_those_of_virtio() {
    let mut front_end = FrontEnd::new(SPLIT);
    assert!([0, 1, 16, 31, 33, 255, 32_767, 65_536].iter().all(|size| !front_end.size(0, *size)));
    assert!([32, 256, 32_768].iter().all(|size| front_end.size(0, *size)));
    let mut front_end = FrontEnd::new(SPLIT | PACKED);
    assert!([0, 31, 32_769, u32::MAX].iter().all(|size| !front_end.size(0, *size)));
    assert!([32, 33, 32_767, 32_768].iter().all(|size| front_end.size(0, *size)));
    assert!(!front_end.size(256, 256));
}

#[test]
fn rings_are_known_before_they_start() {
    let mut front_end = FrontEnd::new(SPLIT);
    assert!(!front_end.kick(0) && !front_end.place(0, [0, 0x4000, 0x8000]));
    assert!(front_end.size(0, 256) && !front_end.kick(0));
    assert!(front_end.place(0, [0, 0x4000, 0x8000]) && front_end.size(0, 512) && !front_end.kick(0));
    assert!(
        front_end.start(0)
            && front_end.stop(0)
            && !front_end.kick(0)
            && !front_end.place(0, [0, 0x4000, 0x8000])
    );
    // The sizes of a ring's parts depend on the features.
    assert!(front_end.size(0, 256) && front_end.place(0, [0, 0x4000, 0x8000]));
    assert!(front_end.features(SPLIT | EVENT_INDEX) && !front_end.kick(0));
    assert!(front_end.place(0, [0, 0x4000, 0x8000]) && front_end.features(SPLIT | EVENT_INDEX | PACKED));
    assert!(!front_end.place(0, [0, 0x4000, 0x8000]));
    // Rings of further pairs come and go with the feature.
    let mut front_end = FrontEnd::new(SPLIT);
    assert!(front_end.size(2, 256) && front_end.place(2, [0, 0x4000, 0x8000]));
    assert!(
        front_end.features(SPLIT & !MULTIQUEUE)
            && !front_end.kick(2)
            && !front_end.start(2)
            && front_end.start(1)
    );
}

#[test]
fn packed_rings_go_on_within_themselves() {
    let mut front_end = FrontEnd::new(SPLIT | PACKED);
    let mut start = |size, base| {
        let placed =
            |front_end: &mut FrontEnd| front_end.size(1, size) && front_end.place(1, [0, 0x4000, 0x8000]);
        assert!(front_end.base(1, base) && placed(&mut front_end));
        let started = front_end.kick(1);
        // The payload of GET_VRING_BASE is missing.
        assert!(front_end.stop(1) && placed(&mut front_end) && !front_end.kick(1));
        started
    };
    assert!(start(256, 255) && start(256, !0x7f00_7f00) && start(100, 99 << 16));
    assert!(!start(256, 256) && !start(256, 256 << 16) && !start(100, 100 | 1 << 15));
    // Nor where it begins; and an index of a split ring is none of a packed one.
    let mut front_end = FrontEnd::new(SPLIT | PACKED);
    assert!(front_end.size(1, 256) && front_end.place(1, [0, 0x4000, 0x8000]) && !front_end.kick(1));
    let mut front_end = FrontEnd::new(SPLIT);
    assert!(front_end.base(1, 0) && front_end.features(SPLIT | PACKED) && front_end.size(1, 256));
    assert!(front_end.place(1, [0, 0x4000, 0x8000]) && !front_end.kick(1));
}

#[test]
fn all_parts_of_a_ring_are_in_the_memory() {
    let starts = |features, place| {
        let mut front_end = FrontEnd::new(features);
        assert!(front_end.size(0, 256) && front_end.base(0, 0) && front_end.place(0, place));
        front_end.kick(0)
    };
    for (features, lengths) in [
        (SPLIT, [4096, 516, 2052]),
        (SPLIT | EVENT_INDEX, [4096, 518, 2054]),
        (SPLIT | PACKED | EVENT_INDEX, [4096, 4, 4]),
    ] {
        for (part, length) in lengths.into_iter().enumerate() {
            let alignment = if part == 0 { 16 } else { 4 };
            let last = (BYTES - length) & !(alignment - 1);
            let at = |start| {
                let mut place = [0, 0x4000, 0x8000];
                place[part] = start;
                place
            };
            assert!(starts(features, at(last)));
            assert!(!starts(features, at(last + alignment)), "{features:x} {part}");
            assert!(!starts(features, at(BYTES)) && !starts(features, at(alignment.wrapping_neg())));
            assert!(!starts(features, at(1)));
        }
    }
    // In one region; and in none whose end is before its start.
    let mut front_end = FrontEnd::new(SPLIT);
    assert!(front_end.memory(&[(START, 2048), (START + 2048, BYTES)]));
    assert!(front_end.size(0, 256) && front_end.place(0, [0, 0x4000, 0x8000]) && !front_end.kick(0));
    assert!(front_end.place(0, [2048, 0x4000, 0x8000]) && front_end.kick(0));
    assert!(!front_end.memory(&[(START, u64::MAX)]));
}

#[test]
fn other_messages_end_the_connection_and_so_do_short_ones() {
    let mut front_end = FrontEnd::new(SPLIT);
    // Also what needs a feature that was not accepted.
    let unserved = [0, SET_LOG_BASE, SET_LOG_FD, SEND_RARP].into_iter().chain(SET_BACKEND_REQ_FD..SET_STATUS);
    for request in unserved.chain(GET_STATUS + 1..100) {
        assert!(!front_end.send(request, &[0; 40]), "{request}");
    }
    for request in [
        SET_FEATURES,
        SET_MEM_TABLE,
        SET_VRING_NUM,
        SET_VRING_ADDR,
        SET_VRING_BASE,
        GET_VRING_BASE,
        SET_VRING_KICK,
        SET_VRING_CALL,
        SET_VRING_ERR,
        SET_PROTOCOL_FEATURES,
        SET_VRING_ENABLE,
        NET_SET_MTU,
        SET_STATUS,
    ] {
        assert_eq!(front_end.0.allows(request, &[0; 7]), None, "{request}");
    }
    assert!(
        front_end.size(0, 256)
            && !front_end.send(SET_VRING_ADDR, &[0; 4])
            && front_end.send(SET_VRING_ADDR, &[0; 5])
    );
    for memory in [&[1, 0, 0, 0][..], &[9; 40], &[u64::MAX; 40]] {
        assert!(!front_end.send(SET_MEM_TABLE, memory));
    }
}

/// Features of the protocol (vhost-user, "Protocol features").
const LOG_SHMFD: u64 = 1 << 1;
const RARP: u64 = 1 << 2;
const INFLIGHT: u64 = 1 << 12;
const MEM_SLOTS: u64 = 1 << 15;

impl FrontEnd {
    /// A front-end with all of these, and memory from an address of the guest on.
    fn modern(physical: u64) -> Self {
        let mut front_end = Self(Protocol::default());
        assert!(front_end.send(SET_PROTOCOL_FEATURES, &[LOG_SHMFD | RARP | INFLIGHT | MEM_SLOTS]));
        assert!(front_end.features(SPLIT) && front_end.slot(ADD_MEM_REG, physical, START));
        front_end
    }

    fn slot(&mut self, request: u32, physical: u64, start: u64) -> bool {
        self.send(request, &[0, physical, BYTES, start, 0])
    }

    fn log(&mut self, bytes: u64, offset: u64) -> bool {
        self.send(SET_LOG_BASE, &[bytes, offset])
    }

    /// Gives the address of ring 1 anew, with that for the log.
    fn logs(&mut self, is_logged: bool, at: u64) -> bool {
        let place = [1 | u64::from(is_logged) << 32, START, START + 0x8000, START + 0x4000, at];
        self.send(SET_VRING_ADDR, &place)
    }
}

/// The messages of QEMU when a migration begins and ends.
#[test]
fn logging_begins_and_ends_while_rings_run() {
    let mut front_end = FrontEnd::modern(0);
    assert!(front_end.start(1) && front_end.log(64, 0));
    assert!(front_end.0.is_log_sufficient() && !front_end.0.is_logging());
    assert!(front_end.features(SPLIT | LOG_ALL) && front_end.logs(true, 0x8000));
    assert!(front_end.0.is_logging() && front_end.0.is_log_sufficient());
    assert_eq!(front_end.0.known(1).log, Some(0x8000));
    assert!(!front_end.features(SPLIT | LOG_ALL | EVENT_INDEX), "other features stay");
    assert!(front_end.features(SPLIT) && front_end.logs(false, 0) && front_end.0.log.is_none());
    assert_eq!(front_end.0.known(1).log, None);
    // A driver begins during a migration: the log comes last.
    assert!(front_end.stop(1) && front_end.features(SPLIT | LOG_ALL) && front_end.start(1));
    assert!(!front_end.0.is_log_sufficient() && front_end.log(64, 0) && front_end.0.is_log_sufficient());
    // Without the feature of the protocol, there is no log, and nothing waits for one.
    let mut front_end = FrontEnd::new(SPLIT | LOG_ALL);
    assert!(!front_end.log(64, 0) && front_end.0.is_log_sufficient());
}

#[test]
fn a_log_has_a_bit_for_every_page() {
    // The last page is number 0x1ff: 64 bytes.
    let mut front_end = FrontEnd::modern(BYTES);
    for (bytes, offset) in [(0, 0), (63, 0), ((1 << 32) + 1, 0), (u64::MAX, 1), (64, u64::MAX - 63)] {
        assert!(!front_end.log(bytes, offset), "{bytes} {offset}");
    }
    assert!(front_end.log(64, u64::MAX - 64) && front_end.log(64, 4096));
    assert!(front_end.start(1) && front_end.features(SPLIT | LOG_ALL));
    // Its last byte is on the last page, or on the next one: 2052 bytes.
    assert!(front_end.logs(true, 2 * BYTES - 2052) && front_end.0.is_log_sufficient());
    assert!(front_end.logs(true, 2 * BYTES - 2051) && !front_end.0.is_log_sufficient());
    assert!(front_end.logs(true, u64::MAX) && !front_end.0.is_log_sufficient());
    assert!(front_end.logs(true, 0) && front_end.0.is_log_sufficient());
    // Memory that is plugged in waits for a longer log.
    assert!(front_end.slot(ADD_MEM_REG, 2 * BYTES, 2 * START) && !front_end.0.is_log_sufficient());
    assert!(!front_end.log(95, 0) && front_end.log(96, 0) && front_end.0.is_log_sufficient());
}

#[test]
fn regions_are_added_and_removed_under_a_ring() {
    let mut front_end = FrontEnd::modern(0);
    assert!(front_end.start(1) && front_end.0.is_in_memory(1));
    // Named by addresses and length; QEMU replaces a region so.
    assert!(!front_end.slot(REM_MEM_REG, 4096, START) && !front_end.slot(REM_MEM_REG, 0, 2 * START));
    assert!(front_end.slot(REM_MEM_REG, 0, START) && !front_end.0.is_in_memory(1));
    assert!(!front_end.slot(REM_MEM_REG, 0, START) && front_end.0.known(1).started);
    assert!(front_end.slot(ADD_MEM_REG, 0, START) && front_end.0.is_in_memory(1));
    for n in 1..SLOTS as u64 {
        assert!(front_end.slot(ADD_MEM_REG, n * BYTES, START + n * BYTES));
    }
    assert!(!front_end.slot(ADD_MEM_REG, 0, 1 << 50), "too many");
    assert!(front_end.send(GET_MAX_MEM_SLOTS, &[]) && !front_end.send(ADD_MEM_REG, &[0; 4]));
    // A table replaces them all.
    assert!(front_end.memory(&[(START, BYTES)]) && front_end.0.memory.len() == 1);
    let mut front_end = FrontEnd::new(SPLIT);
    assert!(!front_end.slot(ADD_MEM_REG, 0, 2 * START) && !front_end.slot(REM_MEM_REG, 0, START));
}

#[test]
fn inflight_memory_comes_before_the_rings() {
    let mut front_end = FrontEnd::modern(0);
    let queues = |count: u64| count | 256 << 16;
    assert!(front_end.send(GET_INFLIGHT_FD, &[0, 0, queues(2)]));
    assert!(!front_end.send(GET_INFLIGHT_FD, &[0, 0, queues(0)]));
    assert!(!front_end.send(GET_INFLIGHT_FD, &[0, 0, queues(129)]));
    for (bytes, offset) in [(0, 0), (256, 4), (256, u64::MAX - 7), (1 << 40, 0)] {
        assert!(!front_end.send(SET_INFLIGHT_FD, &[bytes, offset, queues(2)]), "{bytes} {offset}");
    }
    assert!(front_end.send(SET_INFLIGHT_FD, &[256, 8, queues(2)]) && front_end.start(1));
    assert!(!front_end.send(SET_INFLIGHT_FD, &[256, 8, queues(2)]));
    assert!(front_end.0.inflight == Some((Part { bytes: 256, offset: 8 }, 2)));
    let mut front_end = FrontEnd::new(SPLIT);
    assert!(!front_end.send(GET_INFLIGHT_FD, &[0, 0, queues(2)]));
}

#[test]
fn a_guest_is_announced_by_a_station_s_address() {
    let mut front_end = FrontEnd::modern(0);
    let mut announce = |mac: [u8; 6]| {
        let mut bytes = [0; 8];
        bytes[..6].copy_from_slice(&mac);
        front_end.send(SEND_RARP, &[u64::from_ne_bytes(bytes)])
    };
    assert!(announce([2, 0, 0, 0, 0, 1]) && !announce([0; 6]) && !announce([0xff; 6]) && !announce([1; 6]));
    assert!(!FrontEnd::new(SPLIT).send(SEND_RARP, &[2]));
}
