//! A hostile NF: attaches like any other, then writes random bytes over everything that it can map.
//!
//! `NETVM_HOSTILE_SECONDS` says for how long (3 by default).

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "support/raw.rs"]
mod raw;
mod support;

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use netvm_config::model::{EngineConfig, Host, OnFailure, PortKind};
use netvm_engine::Notice;
use netvm_region::Mapping;
use netvm_ring::Descriptor;
use raw::{Attached, attach};
use support::{Rig, chain, group, line, nf, port, rule, source};

#[test]
fn nf_process() {
    if std::env::var("NETVM_TEST_NF").is_ok_and(|kind| kind == "hostile") {
        be_hostile();
    }
    if std::env::var("NETVM_TEST_NF").is_ok_and(|kind| kind == "liar") {
        be_a_liar();
    }
    support::be_an_nf();
}

/// xorshift64*: fast, and the same on every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

fn scribble(random: &mut Random, mapping: &Mapping, from: usize, to: usize, words: usize) {
    for _ in 0..words {
        let at = from + random.below((to - from) / 8) * 8;
        // SAFETY: within the mapping; what it does to others is the point.
        unsafe { mapping.base().add(at).cast::<u64>().as_ptr().write_volatile(random.next()) };
    }
}

fn be_hostile() -> ! {
    let Attached { fds, control, region, socket: _socket } = attach("hostile");
    let geometry = *region.geometry();
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ u64::from(std::process::id()));
    let (to, from) = (control.ring_to_nf(0, 0), control.ring_from_nf(0, 0));
    // SAFETY: this process's ends; it has no others.
    let (mut consumer, mut producer) = unsafe { (to.consumer(), from.producer()) };
    loop {
        match random.below(8) {
            // Plays along for a while, so that there is something out to lie about.
            0..3 => {
                let mut burst = [Descriptor::default(); 32];
                let count = consumer.pop(&mut burst);
                for descriptor in &mut burst[..count] {
                    let [low, high] = descriptor.to_words();
                    let flip = 1 << random.below(64);
                    *descriptor = match random.below(6) {
                        0 => Descriptor::from_words([low ^ flip, high]),
                        1 => Descriptor::from_words([low, high ^ flip]),
                        2 => Descriptor::from_words([random.next(), random.next()]),
                        _ => *descriptor,
                    };
                }
                producer.push(&burst[..count]);
                // And returns some a second time.
                if random.below(4) == 0 {
                    producer.push(&burst[..count]);
                }
            }
            3 => {
                let made_up: Vec<Descriptor> = (0..32)
                    .map(|_| {
                        let place = Descriptor::new(
                            random.next() as u32 % (geometry.buffers * 2),
                            random.next() as u16,
                            random.next() as u16,
                        );
                        place
                            .on_path(
                                random.below(3) as u16,
                                random.below(3) as u8,
                                random.below(4) as u16,
                                random.below(2) as u8,
                            )
                            .with_raw_action(random.below(6) as u8)
                    })
                    .collect();
                producer.push(&made_up);
            }
            // Rings, indexes and counters; the owner table and the direct rings; the packets.
            4 => scribble(&mut random, control.mapping(), 0, control.mapping().len(), 256),
            5 => scribble(&mut random, region.mapping(), 0, geometry.buffers_at as usize, 256),
            6 => scribble(
                &mut random,
                region.mapping(),
                geometry.buffers_at as usize,
                geometry.bytes as usize,
                256,
            ),
            _ => {
                // Claims to sleep, wakes everybody, and starts over with its own idea of the indexes.
                let _ = consumer.prepare_wait();
                for fd in fds.workers.iter().chain(&fds.nf_threads) {
                    let _ = rustix::io::write(fd.as_fd(), &u64::MAX.wrapping_sub(1).to_ne_bytes());
                }
                // SAFETY: as above; the old ends are not used again.
                (consumer, producer) = unsafe { (to.consumer(), from.producer()) };
            }
        }
    }
}

#[test]
fn a_hostile_nf_harms_nobody_else() {
    let seconds = std::env::var("NETVM_HOSTILE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    let mut host: Host = line(&["hostile"], None, false);
    host.groups.push(group(1, 4096, 2048));
    host.ports.push(port(2, "in2", source(60, None, true)));
    host.ports.push(port(3, "out2", PortKind::Sink));
    host.nfs.push(nf(1, "honest", 1));
    host.nfs.push(nf(2, "honest2", 1));
    host.chains.push(chain(1, &[1, 2], OnFailure::Drop, 3));
    host.rules.push(rule(2, 1));
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&host).unwrap();
    rig.attach("honest", "forward", false);
    rig.attach("honest2", "forward", false);
    let mut hostile = rig.attach("hostile", "hostile", false);
    let start = Instant::now();
    let mut last = 0;
    let mut kills = 0;
    while start.elapsed() < Duration::from_secs(seconds) {
        assert!(!rig.until(Duration::from_millis(500), |_| false));
        let left = rig.engine.chains()[1].left;
        assert!(left > last, "the honest chain stands still: {}", rig.story());
        last = left;
        // The hostile one dies now and then, in the middle of whatever it does, and another comes.
        if start.elapsed() > Duration::from_secs(kills + 1) {
            kills += 1;
            rig.kill(hostile);
            assert!(rig.until(Duration::from_secs(10), |engine| !engine.is_settling()), "{}", rig.story());
            hostile = rig.attach("hostile", "hostile", false);
        }
    }
    rig.kill(hostile);
    // No packet of its chain left more often than packets were handed to it.
    let chain = &rig.engine.chains()[0];
    assert!(chain.left <= chain.entered, "{} packets left, {} were handed out", chain.left, chain.entered);
    // The honest chain lost nothing, and nothing came out of its port but its own.
    rig.engine.apply(&Host { rules: Vec::new(), ..host }).unwrap();
    let settled = |engine: &netvm_engine::Engine| {
        engine.groups().iter().flat_map(|group| &group.memories).all(|memory| memory.out == 0)
    };
    assert!(rig.until(Duration::from_secs(10), settled), "{}", rig.story());
    let honest = &rig.engine.chains()[1];
    assert!(honest.drops.is_empty() && honest.left == honest.entered, "{}", rig.story());
    assert_eq!(rig.sent(3), honest.left);
    // And the pools are whole again.
    let whole = |engine: &netvm_engine::Engine| {
        engine.groups().iter().flat_map(|group| &group.memories).all(|memory| memory.free == memory.buffers)
    };
    assert!(rig.until(Duration::from_secs(5), whole), "{}", rig.story());
}

/// Writes into the owner table that another NF thread has what it has itself.
fn be_a_liar() -> ! {
    let Attached { control, region, socket: _socket, .. } = attach("liar");
    // SAFETY: this process's end.
    let mut consumer = unsafe { control.ring_to_nf(0, 0).consumer() };
    loop {
        let mut burst = [Descriptor::default(); 32];
        let count = consumer.pop(&mut burst);
        for descriptor in &burst[..count] {
            // The first that attached has NF thread 1.
            region.set_owner(descriptor.buffer(), 1);
        }
    }
}

#[test]
fn buffers_of_a_liar_are_found_while_those_it_accuses_live_on() {
    let mut host = line(&["honest"], None, false);
    host.nfs.push(nf(1, "liar", 0));
    host.ports.push(port(2, "in2", source(60, Some(300), true)));
    host.chains.push(chain(1, &[1], OnFailure::Drop, 1));
    host.rules.push(rule(2, 1));
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&host).unwrap();
    rig.attach("honest", "forward", false);
    let liar = rig.attach("liar", "liar", false);
    let all_lost = |engine: &netvm_engine::Engine| {
        let views = engine.instances();
        views[1].threads[0].delivered == 300 && views[1].threads[0].buffers == 0
    };
    assert!(rig.until(Duration::from_secs(10), all_lost), "{}", rig.story());
    rig.kill(liar);
    assert!(rig.until(Duration::from_secs(10), |engine| !engine.is_settling()), "{}", rig.story());
    let audited = |notice: &Notice| if let Notice::Audited { buffers, .. } = notice { *buffers } else { 0 };
    assert_eq!(rig.notices.iter().map(audited).sum::<u64>(), 300, "{:?}", rig.notices);
    // Nothing was taken from the honest NF, which works on.
    let honest = &rig.engine.instances()[0].threads[0];
    assert!(honest.violations.is_empty(), "{}", rig.story());
    let left = rig.engine.chains()[0].left;
    assert!(
        rig.until(Duration::from_secs(10), |engine| engine.chains()[0].left > left + 1000),
        "{}",
        rig.story()
    );
}
