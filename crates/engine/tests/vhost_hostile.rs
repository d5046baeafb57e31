//! Guests that write nonsense into their rings, and say nonsense: the engine stands, and others' traffic goes on.
//!
//! `NETVM_HOSTILE_SECONDS` says for how long (4 by default).

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "support/rogue.rs"]
mod rogue;
#[path = "support/rogues.rs"]
mod rogues;
mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dpdk::vhost_user::SET_VRING_ERR;
use netvm_config::model::VhostDma;
use netvm_engine::{DropReason, Engine};
use rogue::{Dice, ENTRIES, MEMORY, Rogue};
use rogues::{
    ANY, MERGEABLE, MULTIQUEUE, PACKED, PROTOCOL, ROGUE, SOON, VERSION_1, all_come_home, fault, goes_on,
    is_up, rig, socket, told, view,
};

#[test]
fn nothing_that_a_guest_writes_harms_others() {
    noise("noise", VhostDma::Off);
}

#[test]
fn nor_does_it_if_a_dma_engine_copies() {
    noise("noise-dma", VhostDma::Device("dma_skeleton0".to_owned()));
}

/// A guest that writes and says nonsense.
fn noise(name: &str, dma: VhostDma) {
    let seconds = std::env::var("NETVM_HOSTILE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(4);
    let path = socket(name);
    let Some(mut rig) = rig(&path, dma) else { return };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let rogue = scope.spawn(|| {
            let mut dice = Dice(u64::from(std::process::id()));
            let mut visits = 0u32;
            while !stop.load(Ordering::Relaxed) {
                let features = match visits % 3 {
                    0 => ANY & !PACKED,
                    1 => ANY,
                    _ => (ANY | MULTIQUEUE | PROTOCOL) & dice.roll(),
                };
                let mut rogue = Rogue::connect(&path, features);
                if visits.is_multiple_of(3) {
                    // Some packets that are right, so that a worker is at its rings.
                    rogue.offer(1, 1);
                    std::thread::sleep(Duration::from_millis(5));
                }
                for _ in 0..200 {
                    rogue.scribble(&mut dice);
                    std::thread::sleep(Duration::from_micros(500));
                }
                match visits % 4 {
                    1 => (0..20).for_each(|_| rogue.babble(&mut dice)),
                    2 | 3 => {
                        for _ in 0..60 {
                            rogue.rearrange(&mut dice, features);
                            rogue.scribble(&mut dice);
                        }
                    }
                    _ => {}
                }
                visits += 1;
            }
            visits
        });
        let (start, mut taken) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_secs(seconds) {
            if !goes_on(&mut rig) {
                stop.store(true, Ordering::Relaxed);
                panic!("{}", rig.story());
            }
            taken = view(&rig.engine, ROGUE).rx_packets;
        }
        stop.store(true, Ordering::Relaxed);
        let visits = rogue.join().unwrap();
        println!("{visits} visits, {taken} packets taken from the rogue");
        assert!(visits > 1 && taken > 0, "{}", rig.story());
    });
    all_come_home(&mut rig);
}

#[test]
fn a_guest_that_takes_its_memory_back_is_cut_off_and_nobody_else() {
    shrink("shrinker", VhostDma::Off);
}

#[test]
fn so_is_one_to_which_a_dma_engine_copies() {
    shrink("shrinker-dma", VhostDma::Device("dma_skeleton1".to_owned()));
}

/// A guest that takes back memory, again and again.
fn shrink(name: &str, dma: VhostDma) {
    let path = socket(name);
    let Some(mut rig) = rig(&path, dma) else { return };
    let mut dice = Dice(u64::from(std::process::id()));
    for visit in 0..6 {
        let packed = if visit % 2 == 0 { 0 } else { PACKED };
        let rogue = Rogue::connect(&path, VERSION_1 | MERGEABLE | packed);
        for _ in 0..50 {
            rogue.scribble(&mut dice);
            std::thread::sleep(Duration::from_micros(500));
        }
        // Pages vanish under a worker; or those of a new memory are not there when the library first looks.
        if visit == 4 {
            rogue.move_to_nothing();
        } else {
            rogue.shrink(0);
        }
        assert!(rig.until(SOON, |engine| fault(engine).is_some()), "visit {visit}: {}", rig.story());
        assert!(fault(&rig.engine).unwrap().contains("took back memory"), "{}", rig.story());
        assert!(!is_up(&rig.engine, ROGUE));
        assert!(goes_on(&mut rig), "{}", rig.story());
        drop(rogue);
        assert!(rig.until(SOON, |engine| fault(engine).is_none()), "{}", rig.story());
    }
    assert_eq!(told(&rig), 6);
    all_come_home(&mut rig);
}

#[test]
fn a_guest_that_replaces_its_memory_while_it_is_sent_to_stays() {
    let path = socket("replacing");
    let Some(mut rig) = rig(&path, VhostDma::Off) else { return };
    let rogue = Rogue::connect(&path, VERSION_1 | MERGEABLE);
    rogue.offer(0, 1);
    let turned_away = |engine: &Engine| {
        let port = view(engine, ROGUE);
        port.drops.iter().find(|(why, _)| *why == DropReason::NoPeer).map_or(0, |(_, count)| *count)
    };
    assert!(rig.until(SOON, |_| rogue.used(0) == ENTRIES as u16));
    let before = turned_away(&rig.engine);
    for turn in 2..=250u16 {
        // A page less, or as much as before.
        rogue.memory(MEMORY as u64 - u64::from(turn % 2) * 4096);
        rogue.offer(0, turn);
        let all = rig.until(SOON, |_| rogue.used(0) == turn * ENTRIES as u16);
        assert!(all, "turn {turn}: {}", rig.story());
    }
    assert_eq!(turned_away(&rig.engine), before);
    drop(rogue);
    all_come_home(&mut rig);
}

#[test]
fn a_guest_whose_new_memory_cannot_be_mapped_is_hung_up_on() {
    let path = socket("unmappable");
    let Some(mut rig) = rig(&path, VhostDma::Off) else { return };
    let mut dice = Dice(u64::from(std::process::id()));
    for visit in 0..400 {
        let rogue = Rogue::connect(&path, if visit % 2 == 0 { ANY & !PACKED } else { ANY });
        rogue.scribble(&mut dice);
        std::thread::sleep(Duration::from_millis(2));
        rogue.replace_by_unmappable();
    }
    assert!(goes_on(&mut rig), "{}", rig.story());
    all_come_home(&mut rig);
}

#[test]
fn a_guest_that_says_it_has_more_buffers_than_its_ring_harms_nobody() {
    let path = socket("more");
    let Some(mut rig) = rig(&path, VhostDma::Off) else { return };
    let mut dice = Dice(u64::from(std::process::id()));
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(4) {
        let rogue = Rogue::connect(&path, ANY & !PACKED);
        rogue.scribble(&mut dice);
        std::thread::sleep(Duration::from_millis(2));
        for _ in 0..8 {
            // The worker waits while it is handled, and finds much that is new.
            rogue.send(SET_VRING_ERR, &[dice.roll() & 1, dice.roll() & 3], None);
            rogue.scribble(&mut dice);
        }
    }
    assert!(goes_on(&mut rig), "{}", rig.story());
    all_come_home(&mut rig);
}

#[test]
fn chains_of_small_buffers_harm_nobody() {
    chains("chains", VhostDma::Off);
}

#[test]
fn nor_do_they_if_a_dma_engine_copies() {
    chains("chains-dma", VhostDma::Device("dma_skeleton2".to_owned()));
}

/// A packed ring at the end of a guest's memory, of two chains with a byte each and nothing behind.
fn chains(name: &str, dma: VhostDma) {
    let path = socket(name);
    let Some(mut rig) = rig(&path, dma) else { return };
    for _ in 0..5 {
        let at = MEMORY as u64 - 4096;
        let rogue = Rogue::reach(&path);
        rogue.begin(VERSION_1 | PACKED | MERGEABLE);
        for n in 0..u64::from(ENTRIES) {
            let flags = 0x82 | u16::from(n % 128 != 127);
            rogue.write(at + 16 * n, 0x1000u64.to_ne_bytes());
            rogue.write(at + 16 * n + 8, u32::from(n % 128 == 0).to_ne_bytes());
            rogue.write(at + 16 * n + 14, flags.to_ne_bytes());
        }
        rogue.size(0, ENTRIES);
        rogue.base(0, 1 << 15);
        rogue.place(0, at, 0x10_0000, 0x20_0000);
        rogue.call(0);
        rogue.run(0);
        rogue.start(1);
        assert!(rig.until(SOON, |engine| is_up(engine, ROGUE)), "{}", rig.story());
        std::thread::sleep(Duration::from_millis(100));
        assert!(goes_on(&mut rig), "{}", rig.story());
    }
    all_come_home(&mut rig);
}
