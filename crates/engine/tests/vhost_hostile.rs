//! Guests that write nonsense into their rings, and say nonsense: the engine stands, and others' traffic goes on.
//!
//! `NETVM_HOSTILE_SECONDS` says for how long (4 by default).

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "support/rogue.rs"]
mod rogue;
mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netvm_config::model::{EngineConfig, Forward, Host, PortKind, VhostMode};
use rogue::{Dice, Rogue};
use support::{Rig, group, port, source};

/// Bits of virtio features (virtio 1.2 sections 5.1.3 and 6).
const CSUM: u64 = 1 << 0 | 1 << 1;
const TSO: u64 = 1 << 7 | 1 << 8 | 1 << 11 | 1 << 12;
const MERGEABLE: u64 = 1 << 15;
const INDIRECT: u64 = 1 << 28;
const EVENT_INDEX: u64 = 1 << 29;
const VERSION_1: u64 = 1 << 32;
const PACKED: u64 = 1 << 34;
const ANY: u64 = CSUM | TSO | MERGEABLE | INDIRECT | EVENT_INDEX | VERSION_1 | PACKED;

#[test]
fn nothing_that_a_guest_writes_harms_others() {
    let seconds = std::env::var("NETVM_HOSTILE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(4);
    let path = std::env::temp_dir().join(format!("netvm-rogue-{}.sock", std::process::id()));
    let mut rig = Rig::new(&EngineConfig::default());
    let mut rogue_port =
        port(2, "rogue", PortKind::VhostUser { path: path.clone(), mode: VhostMode::Server });
    rogue_port.policy.forward = Forward::Normal;
    // Broadcasts of the source go to the rogue as well: both of its rings are used.
    let mut input = port(0, "in", source(60, None, false));
    input.policy.forward = Forward::Normal;
    let mut output = port(1, "out", PortKind::Sink);
    output.policy.forward = Forward::Normal;
    let mut ports = vec![input, output, rogue_port];
    ports.iter_mut().for_each(|port| port.group = Some(netvm_engine::GroupId(0)));
    rig.engine.apply(&Host { groups: vec![group(0, 4096, 2048)], ports, ..Host::default() }).unwrap();

    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let rogue = scope.spawn(|| {
            let mut dice = Dice(u64::from(std::process::id()));
            let mut visits = 0u32;
            while !stop.load(Ordering::Relaxed) {
                let features = match visits % 4 {
                    0 => ANY & !PACKED,
                    1 => ANY,
                    _ => ANY & dice.roll(),
                };
                let mut rogue = Rogue::connect(&path, features);
                for _ in 0..200 {
                    rogue.scribble(&mut dice);
                    std::thread::sleep(Duration::from_micros(500));
                }
                if visits % 2 == 1 {
                    (0..20).for_each(|_| rogue.babble(&mut dice));
                }
                visits += 1;
            }
            visits
        });
        let (start, mut taken) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_secs(seconds) {
            let before = rig.sent(1);
            let goes_on = rig.until(Duration::from_secs(30), |engine| {
                engine.ports().iter().any(|port| port.id.0 == 1 && port.tx_packets > before + 1000)
            });
            if !goes_on {
                stop.store(true, Ordering::Relaxed);
                panic!("{}", rig.story());
            }
            taken = rig.engine.ports().iter().find(|port| port.id.0 == 2).unwrap().rx_packets;
        }
        stop.store(true, Ordering::Relaxed);
        let visits = rogue.join().unwrap();
        println!("{visits} visits, {taken} packets taken from the rogue");
        assert!(visits > 1 && taken > 0, "{}", rig.story());
    });
    // Nothing comes in any more, and every cell is back.
    let mut host = rig.engine.host().clone();
    host.ports.retain(|port| port.id.0 == 1);
    rig.engine.apply(&host).unwrap();
    let home = rig.until(Duration::from_secs(30), |engine| {
        engine.groups().iter().flat_map(|group| &group.memories).all(|memory| memory.free == 4096)
    });
    assert!(home, "{}", rig.story());
}
