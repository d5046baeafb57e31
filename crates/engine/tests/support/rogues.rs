//! An engine with a port for a rogue, and others' traffic beside it.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use netvm_config::model::{EngineConfig, Forward, Host, PortKind, VhostDma, VhostMode};

use super::support::{Rig, group, port, source};

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

/// Source, sink, and a port for a rogue, which gets what is flooded.
pub fn rig(path: &Path, dma: VhostDma) -> Option<Rig> {
    let mut rig = Rig::new(&EngineConfig::default());
    let mut rogue_port =
        port(2, "rogue", PortKind::VhostUser { path: path.to_owned(), mode: VhostMode::Server, dma });
    rogue_port.policy.forward = Forward::Normal;
    // Broadcasts of the source go to the rogue as well: both of its rings are used.
    let mut input = port(0, "in", source(60, None, false));
    input.policy.forward = Forward::Normal;
    let mut output = port(1, "out", PortKind::Sink);
    output.policy.forward = Forward::Normal;
    let mut ports = vec![input, output, rogue_port];
    ports.iter_mut().for_each(|port| port.group = Some(netvm_engine::GroupId(0)));
    match rig.engine.apply(&Host { groups: vec![group(0, 4096, 2048)], ports, ..Host::default() }) {
        Ok(_) => Some(rig),
        Err(error) if error.to_string().contains("no DMA device") => {
            println!("SKIP: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// More packets leave by the sink.
pub fn goes_on(rig: &mut Rig) -> bool {
    let before = rig.sent(1);
    rig.until(Duration::from_secs(30), |engine| {
        engine.ports().iter().any(|port| port.id.0 == 1 && port.tx_packets > before + 1000)
    })
}

/// Nothing comes in any more, and every cell is back.
pub fn all_come_home(rig: &mut Rig) {
    let mut host = rig.engine.host().clone();
    host.ports.retain(|port| port.id.0 == 1);
    rig.engine.apply(&host).unwrap();
    let home = rig.until(Duration::from_secs(30), |engine| {
        engine.groups().iter().flat_map(|group| &group.memories).all(|memory| memory.free == 4096)
    });
    assert!(home, "{}", rig.story());
}
