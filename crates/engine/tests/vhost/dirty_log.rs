// SPDX-License-Identifier: Apache-2.0
//! The dirty log of migrations: every byte that netvm writes into a guest's memory is on a page that is marked.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use crate::buffers::{Buffer, HEADER, Prepared, Ring, WRITE};
use crate::support::Rig;
use crate::support::hostile_guest::random::Generator;
use crate::support::hostile_guest::{HostileGuest, MEMORY};
use crate::support::hostile_rig::{
    EVENT_INDEX, HOSTILE, INDIRECT, MERGEABLE, PACKED, TIMEOUT, VERSION_1, fault, goes_on, is_up, with_rig,
};
use netvm_model::VhostDma;
use netvm_vhost_user::request::{SET_LOG_FD, SET_PROTOCOL_FEATURES};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// `VHOST_F_LOG_ALL`, and the feature of the protocol for the log's file.
const LOG_ALL: u64 = 1 << 26;
const LOG_SHMFD: u64 = 1 << 1;
const PAGE: usize = 4096;
const LOG_BYTES: u64 = (MEMORY / PAGE / 8) as u64;
/// Where the log is in its file.
const LOG_OFFSET: u64 = 8192 + 24;

fn log_file() -> OwnedFd {
    let file = memfd_create("log", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, LOG_OFFSET + LOG_BYTES).unwrap();
    file
}

/// A guest's log: whether a page is marked.
struct Marks(Vec<u8>);

impl Marks {
    fn read(file: &OwnedFd) -> Self {
        let mut bytes = vec![0; LOG_BYTES as usize];
        assert_eq!(rustix::io::pread(file, &mut bytes[..], LOG_OFFSET).unwrap(), bytes.len());
        Self(bytes)
    }

    fn has(&self, page: usize) -> bool {
        self.0[page / 8] >> (page % 8) & 1 == 1
    }

    fn count(&self) -> u32 {
        self.0.iter().map(|byte| byte.count_ones()).sum()
    }
}

/// Buffers of any shape, in up to seven pieces each. The last holds a packet of 60 bytes, so all together do.
fn random_buffers(generator: &mut Generator, mergeable: bool) -> Vec<Buffer> {
    let count = 1 + generator.roll() % 12;
    let mut buffer = |n| {
        let mut pieces: Vec<usize> =
            (0..generator.roll() % 6).map(|_| 1 + generator.roll() as usize % 90).collect();
        let is_small = mergeable && n + 1 < count && generator.roll().is_multiple_of(3);
        pieces.push(if is_small { 24 } else { HEADER + 60 + generator.roll() as usize % 2000 });
        Buffer { pieces, indirect: generator.roll().is_multiple_of(2) }
    };
    (0..count).map(&mut buffer).collect()
}

/// When the front-end begins to log.
#[derive(Clone, Copy)]
enum Begin {
    /// Before its driver: the log comes last (QEMU, `vhost_dev_start`).
    Before,
    /// While its rings run (QEMU, `vhost_migration_log`).
    Within,
}

/// Whether the log was accepted.
fn start(hostile: &HostileGuest, features: u64, begin: Begin, log: &OwnedFd) -> bool {
    hostile.send(SET_PROTOCOL_FEATURES, &[LOG_SHMFD], None);
    match begin {
        Begin::Before => {
            hostile.begin(features | LOG_ALL);
            (0..2).for_each(|ring| hostile.start(ring));
            (0..2).for_each(|ring| hostile.log_ring(ring, true));
            if !hostile.log(log.as_fd(), LOG_BYTES, LOG_OFFSET) {
                return false;
            }
        }
        Begin::Within => {
            hostile.begin(features);
            (0..2).for_each(|ring| hostile.start(ring));
            if !hostile.log(log.as_fd(), LOG_BYTES, LOG_OFFSET) {
                return false;
            }
            hostile.features(features | LOG_ALL);
            (0..2).for_each(|ring| hostile.log_ring(ring, true));
        }
    }
    hostile.wait_until_handled();
    true
}

/// Connects with a log. The port hangs up while it still has the guest before.
fn connect(rig: &mut Rig, path: &Path, features: u64, begin: Begin) -> (HostileGuest, OwnedFd) {
    let mut connected = None;
    let is_logged = rig.until(TIMEOUT, |_| {
        let (log, hostile) = (log_file(), HostileGuest::reach(path));
        let is_logged = start(&hostile, features, begin, &log);
        connected = is_logged.then_some((hostile, log));
        is_logged
    });
    assert!(is_logged, "{}", rig.describe());
    connected.unwrap()
}

/// Offers random buffers in a ring, stops it once they are used, and compares the memory with that before.
fn check(rig: &mut Rig, path: &Path, generator: &mut Generator, features: u64) {
    let begin = if generator.roll().is_multiple_of(2) { Begin::Before } else { Begin::Within };
    let (hostile, log) = connect(rig, path, features, begin);
    assert!(rig.until(TIMEOUT, |engine| is_up(engine, HOSTILE)), "{}", rig.describe());
    let number = generator.roll() % 2;
    let (at, flags) = (number * 0x1_0000, if number == 0 { WRITE } else { 0 });
    // A packet in one buffer crosses from page to page.
    let shift = generator.roll() % PAGE as u64;
    let ring = Ring { hostile: &hostile, at, packed: features & PACKED != 0, flags, shift };
    let buffers = random_buffers(generator, number == 0 && features & MERGEABLE != 0);
    let Prepared { heads, last: (place, bytes) } = ring.prepare(&buffers);
    let mut before = hostile.snapshot();
    before[place as usize..place as usize + 2].copy_from_slice(&bytes);
    hostile.write(place, bytes);
    hostile.kick();
    // The last buffers may be too few for a packet.
    let used = |heads: &[u16]| (1..=heads.len()).rev().any(|count| ring.is_used(&heads[..count]));
    assert!(rig.until(TIMEOUT, |_| used(&heads)), "{}", rig.describe());
    hostile.stop_at(number);
    let (after, marks) = (hostile.snapshot(), Marks::read(&log));
    let changed: Vec<usize> = (0..MEMORY).filter(|at| before[*at] != after[*at]).collect();
    let unmarked = changed.iter().find(|at| !marks.has(**at / PAGE));
    assert_eq!(unmarked, None, "ring {number}, shift {shift:#x}");
    assert!(!changed.is_empty() && marks.count() < 200, "{} of {} pages", marks.count(), MEMORY / PAGE);
}

#[test]
fn every_written_byte_is_on_a_marked_page() {
    let given = std::env::var("NETVM_TEST_SEED").ok();
    let seed = given.map_or_else(|| u64::from(std::process::id()), |seed| seed.parse().unwrap());
    println!("NETVM_TEST_SEED={seed}");
    let mut generator = Generator(seed);
    for (name, kind) in [("log-split", 0), ("log-packed", PACKED)] {
        with_rig(name, VhostDma::Off, |rig, path| {
            for _ in 0..12 {
                let further = generator.roll() & (MERGEABLE | EVENT_INDEX);
                check(rig, path, &mut generator, VERSION_1 | INDIRECT | kind | further);
            }
        });
    }
}

/// A migration to which a DMA engine copied: the processor does while pages are marked.
#[test]
fn a_dma_engine_leaves_logged_copies_to_the_processor() {
    with_rig("log-dma", VhostDma::Device("dma_skeleton4".to_owned()), |rig, path| {
        let mut generator = Generator(1);
        (0..10).for_each(|_| check(rig, path, &mut generator, VERSION_1 | INDIRECT | MERGEABLE));
    });
}

#[test]
fn nothing_is_marked_before_and_after() {
    with_rig("log-off", VhostDma::Off, |rig, path| {
        let (hostile, log) = connect(rig, path, VERSION_1, Begin::Within);
        hostile.features(VERSION_1);
        (0..2).for_each(|ring| hostile.log_ring(ring, false));
        hostile.wait_until_handled();
        rustix::io::pwrite(&log, &[0; LOG_BYTES as usize], LOG_OFFSET).unwrap();
        hostile.offer(0, 1);
        assert!(rig.until(TIMEOUT, |_| hostile.used(0) == 256), "{}", rig.describe());
        assert_eq!(Marks::read(&log).count(), 0);
        // A log that is begun later has what comes then.
        assert!(hostile.log(log.as_fd(), LOG_BYTES, LOG_OFFSET));
        hostile.features(VERSION_1 | LOG_ALL);
        hostile.wait_until_handled();
        hostile.offer(0, 2);
        assert!(rig.until(TIMEOUT, |_| hostile.used(0) == 512), "{}", rig.describe());
        hostile.stop_at(0);
        assert!(Marks::read(&log).count() >= 128);
    });
}

/// A log that is not sound ends the connection, and others go on.
#[test]
fn a_log_that_is_too_short_or_not_there_is_refused() {
    with_rig("log-hostile", VhostDma::Off, |rig, path| {
        let refused: [(u64, u64, bool); 6] = [
            (LOG_BYTES - 1, LOG_OFFSET, true),
            (LOG_BYTES + 1, LOG_OFFSET, true),
            (LOG_BYTES, u64::MAX - 4, true),
            (LOG_BYTES, 1 << 62, true),
            (0, LOG_OFFSET, true),
            (LOG_BYTES, LOG_OFFSET, false),
        ];
        for (bytes, offset, is_negotiated) in refused {
            let (log, mut hostile) = (log_file(), HostileGuest::reach(path));
            hostile.send(SET_PROTOCOL_FEATURES, &[if is_negotiated { LOG_SHMFD } else { 0 }], None);
            hostile.begin(VERSION_1);
            assert!(
                !hostile.log(log.as_fd(), bytes, offset) && hostile.is_disconnected(),
                "{bytes} {offset}"
            );
        }
        // A log that its owner truncates under a worker is as memory that is truncated.
        let (hostile, log) = connect(rig, path, VERSION_1, Begin::Within);
        let event = netvm_notify::new_eventfd().unwrap();
        hostile.send(SET_LOG_FD, &[], Some(event.as_fd()));
        hostile.wait_until_handled();
        ftruncate(&log, 0).unwrap();
        hostile.offer(0, 1);
        let is_told = |engine: &_| fault(engine).is_some_and(|fault| fault.contains("truncated memory"));
        assert!(rig.until(TIMEOUT, is_told), "{}", rig.describe());
        assert!(goes_on(rig), "{}", rig.describe());
    });
}
