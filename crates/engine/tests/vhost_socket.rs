//! Guests that keep netvm waiting on the socket: neither packets nor other guests wait for them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "support/rogue.rs"]
mod rogue;
mod support;

use std::path::{Path, PathBuf};
use std::time::Duration;

use netvm_config::model::{EngineConfig, Forward, Host, PortKind, VhostDma, VhostMode};
use netvm_engine::Engine;
use rogue::{Rogue, SET_VRING_ERR};
use support::{Rig, group, port, source};

const VERSION_1: u64 = 1 << 32;
const SOON: Duration = Duration::from_secs(10);

fn socket(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("netvm-{name}-{}.sock", std::process::id()))
}

/// Source, sink, and two ports for guests, which get what is flooded.
fn rig(paths: [&Path; 2]) -> Rig {
    let mut rig = Rig::new(&EngineConfig::default());
    let guest = |path: &Path| PortKind::VhostUser {
        path: path.to_owned(),
        mode: VhostMode::Server,
        dma: VhostDma::Off,
    };
    let mut ports = vec![
        port(0, "in", source(60, None, false)),
        port(1, "out", PortKind::Sink),
        port(2, "rogue", guest(paths[0])),
        port(3, "other", guest(paths[1])),
    ];
    for port in &mut ports {
        port.policy.forward = Forward::Normal;
        port.group = Some(netvm_engine::GroupId(0));
    }
    rig.engine.apply(&Host { groups: vec![group(0, 4096, 2048)], ports, ..Host::default() }).unwrap();
    rig
}

fn is_up(engine: &Engine, id: u16) -> bool {
    engine.ports().iter().any(|port| port.id.0 == id && port.link == Some(true))
}

/// Packets go on, others come in, and the rogue is hung up on.
fn others_go_on(mut rig: Rig, mut rogue: Rogue, other: &Path) {
    let before = rig.sent(1);
    let goes_on = rig.until(SOON, |engine| {
        engine.ports().iter().any(|port| port.id.0 == 1 && port.tx_packets > before + 100_000)
    });
    assert!(goes_on, "{}", rig.story());
    let _guest = Rogue::connect(other, VERSION_1);
    assert!(rig.until(SOON, |engine| is_up(engine, 3)), "{}", rig.story());
    assert!(rig.until(SOON, |engine| !is_up(engine, 2)), "{}", rig.story());
    assert!(rogue.is_alone());
}

#[test]
fn nobody_waits_for_a_guest_to_read_what_it_is_answered() {
    let paths = [socket("answered"), socket("answered-other")];
    let mut rig = rig([&paths[0], &paths[1]]);
    let mut rogue = Rogue::connect(&paths[0], VERSION_1);
    assert!(rig.until(SOON, |engine| is_up(engine, 2)), "{}", rig.story());
    rogue.offer(0, 1);
    // It is answered while the library has the locks of all rings.
    rogue.ask_and_read_nothing(SET_VRING_ERR, 1 << 8);
    others_go_on(rig, rogue, &paths[1]);
}

#[test]
fn nobody_waits_for_the_rest_of_a_message() {
    let paths = [socket("rest"), socket("rest-other")];
    let mut rig = rig([&paths[0], &paths[1]]);
    let mut rogue = Rogue::connect(&paths[0], VERSION_1);
    assert!(rig.until(SOON, |engine| is_up(engine, 2)), "{}", rig.story());
    rogue.begin_to_speak();
    others_go_on(rig, rogue, &paths[1]);
}
