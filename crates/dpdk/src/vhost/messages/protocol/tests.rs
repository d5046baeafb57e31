use super::*;
use crate::vhost_user::{SEND_RARP, SET_BACKEND_REQ_FD, SET_LOG_BASE, SET_LOG_FD};

const START: u64 = 0x7f00_0000_0000;
const BYTES: u64 = 1 << 20;
const SPLIT: u64 = 1 << 32 | 1 << 30 | MULTIQUEUE;

/// A front-end; each message tells whether the connection goes on.
struct Talk(Protocol);

impl Talk {
    fn new(features: u64) -> Self {
        let mut talk = Self(Protocol::new());
        assert!(talk.features(features) && talk.memory(&[(START, BYTES)]));
        talk
    }

    fn say(&mut self, request: u32, words: &[u64]) -> bool {
        let payload: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.0.allows(request, &payload).is_some()
    }

    fn features(&mut self, features: u64) -> bool {
        self.say(SET_FEATURES, &[features])
    }

    fn memory(&mut self, regions: &[(u64, u64)]) -> bool {
        let mut words = vec![regions.len() as u64];
        words.extend(regions.iter().flat_map(|(start, bytes)| [0, *bytes, *start, 0]));
        self.say(SET_MEM_TABLE, &words)
    }

    fn size(&mut self, ring: u32, size: u32) -> bool {
        self.say(SET_VRING_NUM, &[u64::from(size) << 32 | u64::from(ring)])
    }

    fn place(&mut self, ring: u32, [descriptors, driver, device]: [u64; 3]) -> bool {
        let at = |place| START.wrapping_add(place);
        self.say(SET_VRING_ADDR, &[ring.into(), at(descriptors), at(device), at(driver), 0])
    }

    fn base(&mut self, ring: u32, base: u32) -> bool {
        self.say(SET_VRING_BASE, &[u64::from(base) << 32 | u64::from(ring)])
    }

    fn stop(&mut self, ring: u32) -> bool {
        self.say(GET_VRING_BASE, &[ring.into()])
    }

    fn kick(&mut self, ring: u32) -> bool {
        self.say(SET_VRING_KICK, &[ring.into()])
    }

    fn call(&mut self, ring: u32) -> bool {
        self.say(SET_VRING_CALL, &[ring.into()])
    }

    fn enable(&mut self, ring: u32) -> bool {
        self.say(SET_VRING_ENABLE, &[1 << 32 | u64::from(ring)])
    }

    /// A ring of 256 entries where there is room for it.
    fn start(&mut self, ring: u32) -> bool {
        self.size(ring, 256) && self.base(ring, 0) && self.place(ring, [0, 0x4000, 0x8000]) && self.kick(ring)
    }
}

/// As QEMU does: queue pair after queue pair; then another driver, and memory that is added.
#[test]
fn qemu_is_heard_out() {
    let mut talk = Talk::new(SPLIT);
    for (round, features) in [SPLIT, SPLIT | PACKED, SPLIT | EVENT_INDEX].into_iter().enumerate() {
        for pair in 0..2 {
            assert!(talk.features(features), "{round}");
            assert!(talk.memory(&[(START, BYTES), (0, 4096 << round)]));
            for ring in 2 * pair..2 * pair + 2 {
                let base = if features & PACKED == 0 { 65_535 } else { 1 << 31 | 1 << 15 };
                assert!(talk.size(ring, 1024) && talk.base(ring, base));
                assert!(talk.place(ring, [0, 0x4000, 0x8000]) && talk.kick(ring) && talk.call(ring));
            }
        }
        assert!((0..4).all(|ring| talk.enable(ring)) && talk.call(0));
        assert!(talk.memory(&[(START, 2 * BYTES)]));
        assert!((0..4).all(|ring| talk.stop(ring)));
    }
}

/// As DPDK's `virtio_user` does, and as front-ends on rust-vmm do.
#[test]
fn so_are_others() {
    let mut talk = Talk(Protocol::new());
    assert!([SET_OWNER, GET_FEATURES, GET_PROTOCOL_FEATURES].iter().all(|request| talk.say(*request, &[])));
    assert!(talk.say(SET_PROTOCOL_FEATURES, &[1]) && talk.say(GET_QUEUE_NUM, &[]));
    assert!(talk.say(SET_STATUS, &[1]) && talk.say(GET_STATUS, &[]) && talk.say(NET_SET_MTU, &[1500]));
    assert!((0..4).all(|ring| talk.call(ring)) && talk.features(SPLIT | PACKED));
    assert!(talk.memory(&[(START, BYTES)]));
    for ring in [0, 2, 1, 3] {
        assert!(talk.size(ring, 48) && talk.base(ring, 1 << 15));
        assert!(talk.place(ring, [0, 0x4000, 0x8000]) && talk.kick(ring));
    }
    assert!((0..4).all(|ring| talk.stop(ring)) && talk.features(SPLIT));
    assert!((0..2).all(|ring| talk.size(ring, 128)));
    for ring in 0..2 {
        assert!(talk.place(ring, [0, 0x4000, 0x8000]) && talk.base(ring, 7) && talk.call(ring));
        assert!(talk.kick(ring) && talk.enable(ring));
    }
    assert_eq!(talk.0.allows(RESET_OWNER, &[]), Some(()));
    assert!(talk.0.rings[0].started);
}

#[test]
fn a_ring_that_is_started_stays_as_it_is() {
    let changes: [fn(&mut Talk) -> bool; 7] = [
        |talk| talk.size(1, 256),
        |talk| talk.base(1, 0),
        |talk| talk.place(1, [0, 0x4000, 0x8000]),
        |talk| talk.features(SPLIT | PACKED),
        |talk| talk.features(SPLIT | EVENT_INDEX),
        |talk| talk.memory(&[(START, 0x8000)]),
        |talk| talk.memory(&[(START, 0x4000), (START + 0x4000, BYTES)]) && talk.memory(&[]),
    ];
    for says in changes {
        let mut talk = Talk::new(SPLIT);
        assert!(talk.start(1) && talk.features(SPLIT) && talk.kick(1));
        assert!(!says(&mut talk));
        assert!(talk.stop(1) && says(&mut talk) || talk.size(1, 256) && says(&mut talk));
    }
}

#[test]
fn sizes_are_those_of_virtio() {
    let mut talk = Talk::new(SPLIT);
    assert!([0, 1, 16, 31, 33, 255, 32_767, 65_536].iter().all(|size| !talk.size(0, *size)));
    assert!([32, 256, 32_768].iter().all(|size| talk.size(0, *size)));
    let mut talk = Talk::new(SPLIT | PACKED);
    assert!([0, 31, 32_769, u32::MAX].iter().all(|size| !talk.size(0, *size)));
    assert!([32, 33, 32_767, 32_768].iter().all(|size| talk.size(0, *size)));
    assert!(!talk.size(256, 256));
}

#[test]
fn rings_are_known_before_they_start() {
    let mut talk = Talk::new(SPLIT);
    assert!(!talk.kick(0) && !talk.place(0, [0, 0x4000, 0x8000]));
    assert!(talk.size(0, 256) && !talk.kick(0));
    assert!(talk.place(0, [0, 0x4000, 0x8000]) && talk.size(0, 512) && !talk.kick(0));
    assert!(talk.start(0) && talk.stop(0) && !talk.kick(0) && !talk.place(0, [0, 0x4000, 0x8000]));
    // What the parts are depends on the features.
    assert!(talk.size(0, 256) && talk.place(0, [0, 0x4000, 0x8000]));
    assert!(talk.features(SPLIT | EVENT_INDEX) && !talk.kick(0));
    assert!(talk.place(0, [0, 0x4000, 0x8000]) && talk.features(SPLIT | EVENT_INDEX | PACKED));
    assert!(!talk.place(0, [0, 0x4000, 0x8000]));
    // Rings of further pairs come and go with the feature.
    let mut talk = Talk::new(SPLIT);
    assert!(talk.size(2, 256) && talk.place(2, [0, 0x4000, 0x8000]));
    assert!(talk.features(SPLIT & !MULTIQUEUE) && !talk.kick(2) && !talk.start(2) && talk.start(1));
}

#[test]
fn packed_rings_go_on_within_themselves() {
    let mut talk = Talk::new(SPLIT | PACKED);
    let mut start = |size, base| {
        let placed = |talk: &mut Talk| talk.size(1, size) && talk.place(1, [0, 0x4000, 0x8000]);
        assert!(talk.base(1, base) && placed(&mut talk));
        let started = talk.kick(1);
        // It does not tell where it has stopped.
        assert!(talk.stop(1) && placed(&mut talk) && !talk.kick(1));
        started
    };
    assert!(start(256, 255) && start(256, !0x7f00_7f00) && start(100, 99 << 16));
    assert!(!start(256, 256) && !start(256, 256 << 16) && !start(100, 100 | 1 << 15));
    // Nor where it begins; and an index of a split ring is none of a packed one.
    let mut talk = Talk::new(SPLIT | PACKED);
    assert!(talk.size(1, 256) && talk.place(1, [0, 0x4000, 0x8000]) && !talk.kick(1));
    let mut talk = Talk::new(SPLIT);
    assert!(talk.base(1, 0) && talk.features(SPLIT | PACKED) && talk.size(1, 256));
    assert!(talk.place(1, [0, 0x4000, 0x8000]) && !talk.kick(1));
}

#[test]
fn all_parts_of_a_ring_are_in_the_memory() {
    let starts = |features, place| {
        let mut talk = Talk::new(features);
        assert!(talk.size(0, 256) && talk.base(0, 0) && talk.place(0, place));
        talk.kick(0)
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
    let mut talk = Talk::new(SPLIT);
    assert!(talk.memory(&[(START, 2048), (START + 2048, BYTES)]));
    assert!(talk.size(0, 256) && talk.place(0, [0, 0x4000, 0x8000]) && !talk.kick(0));
    assert!(talk.place(0, [2048, 0x4000, 0x8000]) && talk.kick(0));
    assert!(!talk.memory(&[(START, u64::MAX)]));
}

#[test]
fn other_messages_end_the_connection_and_so_do_short_ones() {
    let mut talk = Talk::new(SPLIT);
    let unserved = [0, SET_LOG_BASE, SET_LOG_FD, SEND_RARP].into_iter().chain(SET_BACKEND_REQ_FD..SET_STATUS);
    for request in unserved.chain(GET_STATUS + 1..100) {
        assert!(!talk.say(request, &[0; 40]), "{request}");
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
        assert_eq!(talk.0.allows(request, &[0; 7]), None, "{request}");
    }
    assert!(talk.size(0, 256) && !talk.say(SET_VRING_ADDR, &[0; 4]) && talk.say(SET_VRING_ADDR, &[0; 5]));
    for memory in [&[1, 0, 0, 0][..], &[9; 40], &[u64::MAX; 40]] {
        assert!(!talk.say(SET_MEM_TABLE, memory));
    }
}
