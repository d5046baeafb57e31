// SPDX-License-Identifier: Apache-2.0
//! An engine with a port for a hostile guest, and honest traffic beside it.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use netvm_engine::{Engine, Notice, PortView};
use netvm_model::{EngineConfig, Forward, Host, PortKind, VhostDma, VhostMode};

use super::{Rig, all_is_free, group, port, source};

pub const TIMEOUT: Duration = Duration::from_secs(30);
/// The port of a hostile guest, and of another guest if there is one.
pub const HOSTILE: u16 = 2;
pub const OTHER: u16 = 3;

/// Bits of virtio features (virtio 1.2 sections 5.1.3 and 6).
pub const CSUM: u64 = 1 << 0 | 1 << 1;
pub const TSO: u64 = 1 << 7 | 1 << 8 | 1 << 11 | 1 << 12;
pub const MERGEABLE: u64 = 1 << 15;
pub const MULTIQUEUE: u64 = 1 << 22;
pub const INDIRECT: u64 = 1 << 28;
pub const EVENT_INDEX: u64 = 1 << 29;
/// Rings are off until they are enabled (vhost-user, "Ring states").
pub const PROTOCOL: u64 = 1 << 30;
pub const VERSION_1: u64 = 1 << 32;
pub const PACKED: u64 = 1 << 34;
pub const ANY: u64 = CSUM | TSO | MERGEABLE | INDIRECT | EVENT_INDEX | VERSION_1 | PACKED;

pub fn socket(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("netvm-{name}-{}.sock", std::process::id()))
}

/// Source, sink, and a port for a hostile guest, which gets flooded packets.
pub fn rig(path: &Path, dma: VhostDma) -> Option<Rig> {
    rig_of(vec![(path, dma)])
}

/// The same with ports for several guests.
pub fn rig_of(guests: Vec<(&Path, VhostDma)>) -> Option<Rig> {
    let mut rig = Rig::new(&EngineConfig::default());
    let mut ports = vec![port(0, "in", source(60, None, false)), port(1, "out", PortKind::Sink)];
    for (id, (path, dma)) in (HOSTILE..).zip(guests) {
        let kind = PortKind::VhostUser { path: path.to_owned(), mode: VhostMode::Server, dma };
        ports.push(port(id, &format!("guest{id}"), kind));
    }
    for port in &mut ports {
        // Broadcasts of the source go to guests as well: both of their rings are used.
        port.policy.forward = Forward::Normal;
        port.group = Some(netvm_engine::GroupId(0));
    }
    match rig.engine.apply(&Host { groups: vec![group(0, 4096, 2048)], ports, ..Host::default() }) {
        Ok(_) => Some(rig),
        Err(error) if error.to_string().contains("no DMA device") => {
            println!("SKIP: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Runs a test on an engine with a port for a hostile guest on this socket. Afterwards every buffer must be back in its
/// pool.
pub fn with_rig(name: &str, dma: VhostDma, body: impl FnOnce(&mut Rig, &Path)) {
    let path = socket(name);
    let Some(mut rig) = rig(&path, dma) else { return };
    body(&mut rig, &path);
    assert_all_free(&mut rig);
}

pub fn view(engine: &Engine, id: u16) -> PortView {
    engine.ports().into_iter().find(|port| port.id.0 == id).unwrap()
}

pub fn is_up(engine: &Engine, id: u16) -> bool {
    view(engine, id).link == Some(true)
}

/// The fault of the hostile guest's port.
pub fn fault(engine: &Engine) -> Option<String> {
    view(engine, HOSTILE).fault
}

/// How many port faults the engine has reported.
pub fn fault_notices(rig: &Rig) -> usize {
    rig.notices.iter().filter(|notice| matches!(notice, Notice::PortFault { .. })).count()
}

/// More packets leave by the sink.
pub fn goes_on(rig: &mut Rig) -> bool {
    let before = rig.sent(1);
    rig.until(TIMEOUT, |engine| view(engine, 1).tx_packets > before + 1000)
}

/// Stops the source, and checks that every buffer is back.
pub fn assert_all_free(rig: &mut Rig) {
    let mut host = rig.engine.host().clone();
    host.ports.retain(|port| port.id.0 == 1);
    rig.engine.apply(&host).unwrap();
    assert!(rig.until(TIMEOUT, all_is_free), "{}", rig.describe());
}
