// SPDX-License-Identifier: Apache-2.0
//! Guests that write random bytes into their rings and send random messages: the engine survives, and other traffic
//! goes on.
//!
//! `NETVM_HOSTILE_SECONDS` says for how long (4 by default).

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::support::Rig;
use crate::support::hostile_guest::random::Generator;
use crate::support::hostile_guest::{ENTRIES, HostileGuest, MEMORY, descriptor};
use crate::support::hostile_rig::{
    ANY, HOSTILE, MERGEABLE, MULTIQUEUE, PACKED, PROTOCOL, TIMEOUT, VERSION_1, fault, fault_notices, goes_on,
    is_up, view, with_rig,
};
use netvm_engine::{DropReason, Engine};
use netvm_model::VhostDma;
use netvm_vhost_user::request::SET_VRING_ERR;

#[test]
fn nothing_that_a_guest_writes_harms_others() {
    with_rig("noise", VhostDma::Off, noise);
}

#[test]
fn nor_does_it_if_a_dma_engine_copies() {
    with_rig("noise-dma", VhostDma::Device("dma_skeleton5".to_owned()), noise);
}

/// A guest that writes random bytes and sends random messages.
fn noise(rig: &mut Rig, path: &Path) {
    let seconds = std::env::var("NETVM_HOSTILE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(4);
    let (stop, done) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut generator = Generator(u64::from(std::process::id()));
            while !stop.load(Ordering::Relaxed) {
                let visits = done.load(Ordering::Relaxed);
                let features = match visits % 3 {
                    0 => ANY & !PACKED,
                    1 => ANY,
                    _ => (ANY | MULTIQUEUE | PROTOCOL) & generator.roll(),
                };
                let mut hostile = HostileGuest::connect(path, features);
                if visits.is_multiple_of(3) {
                    // Some valid packets, so that a worker uses its rings.
                    hostile.offer(1, 1);
                    std::thread::sleep(Duration::from_millis(5));
                }
                for _ in 0..200 {
                    hostile.write_random(&mut generator);
                    std::thread::sleep(Duration::from_micros(500));
                }
                match visits % 4 {
                    1 => (0..20).for_each(|_| hostile.send_random(&mut generator)),
                    2 | 3 => {
                        for _ in 0..60 {
                            hostile.move_rings(&mut generator, features);
                            hostile.write_random(&mut generator);
                        }
                    }
                    _ => {}
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
        let (start, mut taken) = (Instant::now(), 0);
        let has_tried = |taken| taken > 0 && done.load(Ordering::Relaxed) > 1;
        // Longer on a busy machine.
        while start.elapsed() < Duration::from_secs(seconds) || !has_tried(taken) && start.elapsed() < TIMEOUT
        {
            if !goes_on(rig) {
                stop.store(true, Ordering::Relaxed);
                panic!("{}", rig.describe());
            }
            taken = view(&rig.engine, HOSTILE).rx_packets;
        }
        stop.store(true, Ordering::Relaxed);
        println!("{} visits, {taken} packets taken from the hostile guest", done.load(Ordering::Relaxed));
        assert!(has_tried(taken), "{}", rig.describe());
    });
}

#[test]
fn a_guest_that_takes_its_memory_back_is_cut_off_and_nobody_else() {
    with_rig("shrinker", VhostDma::Off, shrink);
}

#[test]
fn so_is_one_to_which_a_dma_engine_copies() {
    with_rig("shrinker-dma", VhostDma::Device("dma_skeleton1".to_owned()), shrink);
}

/// A guest that takes back memory, again and again.
fn shrink(rig: &mut Rig, path: &Path) {
    let mut generator = Generator(u64::from(std::process::id()));
    for visit in 0..6 {
        let packed = if visit % 2 == 0 { 0 } else { PACKED };
        let hostile = HostileGuest::connect(path, VERSION_1 | MERGEABLE | packed);
        for _ in 0..50 {
            hostile.write_random(&mut generator);
            std::thread::sleep(Duration::from_micros(500));
        }
        // Pages vanish under a worker; or those of a new memory are not there when netvm first looks.
        if visit == 4 {
            hostile.move_to_nothing();
        } else {
            hostile.shrink(0);
        }
        assert!(rig.until(TIMEOUT, |engine| fault(engine).is_some()), "visit {visit}: {}", rig.describe());
        assert!(fault(&rig.engine).unwrap().contains("truncated memory"), "{}", rig.describe());
        assert!(!is_up(&rig.engine, HOSTILE));
        assert!(goes_on(rig), "{}", rig.describe());
        drop(hostile);
        assert!(rig.until(TIMEOUT, |engine| fault(engine).is_none()), "{}", rig.describe());
    }
    assert_eq!(fault_notices(rig), 6);
}

#[test]
fn a_guest_that_replaces_its_memory_while_it_is_sent_to_stays() {
    with_rig("replacing", VhostDma::Off, replace);
}

#[test]
fn so_does_one_to_which_a_dma_engine_copies() {
    with_rig("replacing-dma", VhostDma::Device("dma_skeleton3".to_owned()), replace);
}

fn replace(rig: &mut Rig, path: &Path) {
    let hostile = HostileGuest::connect(path, VERSION_1 | MERGEABLE);
    hostile.offer(0, 1);
    let turned_away = |engine: &Engine| {
        let port = view(engine, HOSTILE);
        port.drops.iter().find(|(why, _)| *why == DropReason::NoPeer).map_or(0, |(_, count)| *count)
    };
    assert!(rig.until(TIMEOUT, |_| hostile.used(0) == ENTRIES as u16));
    let before = turned_away(&rig.engine);
    for turn in 2..=250u16 {
        // A page less, or as much as before.
        hostile.memory(MEMORY as u64 - u64::from(turn % 2) * 4096);
        hostile.offer(0, turn);
        let all = rig.until(TIMEOUT, |_| hostile.used(0) == turn * ENTRIES as u16);
        assert!(all, "turn {turn}: {}", rig.describe());
    }
    assert_eq!(turned_away(&rig.engine), before);
}

#[test]
fn a_guest_whose_new_memory_cannot_be_mapped_is_disconnected() {
    with_rig("unmappable", VhostDma::Off, |rig, path| {
        let mut generator = Generator(u64::from(std::process::id()));
        for visit in 0..400 {
            let hostile = HostileGuest::connect(path, if visit % 2 == 0 { ANY & !PACKED } else { ANY });
            hostile.write_random(&mut generator);
            std::thread::sleep(Duration::from_millis(2));
            hostile.replace_by_unmappable();
        }
        assert!(goes_on(rig), "{}", rig.describe());
    });
}

#[test]
fn a_guest_that_says_it_has_more_buffers_than_its_ring_harms_nobody() {
    with_rig("more", VhostDma::Off, |rig, path| {
        let mut generator = Generator(u64::from(std::process::id()));
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(4) {
            let hostile = HostileGuest::connect(path, ANY & !PACKED);
            hostile.write_random(&mut generator);
            std::thread::sleep(Duration::from_millis(2));
            for _ in 0..8 {
                // Messages come between the worker's bursts, which then find many new descriptors.
                hostile.send(SET_VRING_ERR, &[generator.roll() & 1, generator.roll() & 3], None);
                hostile.write_random(&mut generator);
            }
        }
        assert!(goes_on(rig), "{}", rig.describe());
    });
}

#[test]
fn chains_of_small_buffers_harm_nobody() {
    with_rig("chains", VhostDma::Off, chains);
}

#[test]
fn nor_do_they_if_a_dma_engine_copies() {
    with_rig("chains-dma", VhostDma::Device("dma_skeleton2".to_owned()), chains);
}

/// A packed ring at the end of a guest's memory, of two chains with a byte each and nothing behind.
fn chains(rig: &mut Rig, path: &Path) {
    for _ in 0..5 {
        let at = MEMORY as u64 - 4096;
        let hostile = HostileGuest::reach(path);
        hostile.begin(VERSION_1 | PACKED | MERGEABLE);
        for n in 0..u64::from(ENTRIES) {
            let flags = 0x82 | u16::from(n % 128 != 127);
            hostile.write(at + 16 * n, descriptor(0x1000, u32::from(n % 128 == 0), 0, flags));
        }
        hostile.size(0, ENTRIES);
        hostile.base(0, 1 << 15);
        hostile.place(0, at, 0x10_0000, 0x20_0000);
        hostile.call(0);
        hostile.run(0);
        hostile.start(1);
        assert!(rig.until(TIMEOUT, |engine| is_up(engine, HOSTILE)), "{}", rig.describe());
        // Many turns of the worker.
        std::thread::sleep(Duration::from_millis(100));
        assert!(goes_on(rig), "{}", rig.describe());
    }
}
