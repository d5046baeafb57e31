//! An NF that has the eventfd by which it wakes a worker block whoever reads it: the worker does not wait.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "support/rogue.rs"]
mod rogue;
mod support;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use netvm_config::model::{EngineConfig, Forward, Idle, PortKind, VhostDma, VhostMode};
use rogue::Rogue;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use support::{Rig, line, port};

const SOON: Duration = Duration::from_secs(10);

#[test]
fn nf_process() {
    support::be_an_nf();
}

fn adaptive() -> EngineConfig {
    EngineConfig { idle: Idle::Adaptive, ..EngineConfig::default() }
}

/// As any process can that shares the descriptor.
fn make_blocking(fd: BorrowedFd<'_>) {
    fcntl_setfl(fd, fcntl_getfl(fd).unwrap() - OFlags::NONBLOCK).unwrap();
}

#[test]
fn a_worker_that_slept_does_not_wait_for_its_own_bell() {
    let path = std::env::temp_dir().join(format!("netvm-bell-{}.sock", std::process::id()));
    let mut rig = Rig::new(&adaptive());
    let mut host = line(&["fw"], Some(1000), true);
    let kind = PortKind::VhostUser { path: path.clone(), mode: VhostMode::Server, dma: VhostDma::Off };
    let mut guest = port(2, "guest", kind);
    guest.policy.forward = Forward::Normal;
    guest.group = Some(netvm_engine::GroupId(0));
    host.ports.push(guest);
    rig.engine.apply(&host).unwrap();
    let id = rig.attach("fw", "spin=0", false);
    let rogue = Rogue::connect(&path, 1 << 32);
    assert!(
        rig.until(SOON, |engine| engine.ports().iter().any(|port| port.tx_packets == 1000)),
        "{}",
        rig.story()
    );
    assert!(rig.until(SOON, |engine| engine.ports().iter().any(|port| port.link == Some(true))));
    for bell in rig.engine.descriptors(id).unwrap().workers {
        make_blocking(bell);
    }
    rig.until(Duration::from_millis(300), |_| false);
    rogue.offer(1, 1);
    rogue.kick();
    assert!(rig.until(SOON, |_| rogue.used(1) > 0), "{}", rig.story());
}
