// SPDX-License-Identifier: Apache-2.0
//! Captures that go in and come out, in a folder of the test's own.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use netvm_capture::{CaptureReader, CaptureWriter, Timestamp, WriterOptions};
use netvm_engine::{DropCounts, RuleCount};
use netvm_model::{EngineConfig, Host, PortConfig, PortKind};
use netvm_policy::RuleId;

use super::{Rig, nothing_is_out};

/// A folder, removed at the end.
pub struct Scratch(PathBuf);

static COUNTER: AtomicU32 = AtomicU32::new(0);

impl Scratch {
    pub fn new() -> Self {
        let name =
            format!("netvm-engine-test-{}-{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The capture that port `id` writes.
    fn output(&self, id: u16) -> PathBuf {
        self.0.join(format!("out{id}.pcap"))
    }

    /// A capture port: it receives `frames`, stamped 1 ms apart, as fast as it can, and records what it sends.
    pub fn port(&self, id: u16, frames: &[Vec<u8>]) -> PortConfig {
        let input = (!frames.is_empty()).then(|| self.0.join(format!("in{id}.pcap")));
        if let Some(path) = &input {
            write(path, frames);
        }
        let kind = PortKind::Pcap { input, output: Some(self.output(id)), paced: false };
        super::port(id, &format!("p{id}"), kind)
    }

    /// What port `id` sent. Call it when the port is closed.
    pub fn sent(&self, id: u16) -> Vec<Vec<u8>> {
        read(&self.output(id))
    }
}

/// The frames of a capture.
pub fn read(path: &Path) -> Vec<Vec<u8>> {
    let mut reader = CaptureReader::open(path).unwrap();
    let mut frames = Vec::new();
    while let Some(frame) = reader.next_frame().unwrap() {
        frames.push(frame.data.to_vec());
    }
    frames
}

/// The outcome of captures.
pub struct Seen {
    /// Drops by port.
    pub drops: BTreeMap<u16, DropCounts>,
    /// Packets and bytes by rule.
    pub counts: BTreeMap<RuleId, RuleCount>,
}

/// Plays all captures of a host whose NFs, named with their role, all forward.
pub fn play(host: &Host, nfs: &[&str]) -> Seen {
    let mut rig = Rig::new(&EngineConfig::default());
    start(&mut rig, host, nfs);
    finish(&mut rig);
    Seen {
        drops: rig.engine.ports().into_iter().map(|view| (view.id.0, view.drops)).collect(),
        counts: rig.engine.rule_counts(),
    }
}

/// Applies a host: NFs and the ports that packets leave by first, so that no packet is dropped for lack of them.
pub fn start(rig: &mut Rig, host: &Host, nfs: &[&str]) {
    let mut quiet = host.clone();
    for port in &mut quiet.ports {
        if let PortKind::Pcap { input, .. } = &mut port.kind {
            *input = None;
        }
    }
    rig.engine.apply(&quiet).unwrap();
    for role in nfs {
        rig.attach(role, "forward", false);
    }
    rig.engine.apply(host).unwrap();
}

/// Waits until every capture has been read to its end, and all its packets have been handled.
pub fn finish(rig: &mut Rig) {
    let limit = Duration::from_secs(60);
    let all = rig.until(limit, |engine| engine.ports().iter().all(|port| port.done != Some(false)));
    assert!(all, "{}", rig.describe());
    // What was read last is on its way when a capture says that it is done: some turns more, in which workers also hand
    // packets to each other, before and after what is with NFs.
    let turns =
        |engine: &netvm_engine::Engine| engine.workers().map(|worker| worker.counters.turns.get()).min();
    let settle = |rig: &mut Rig| {
        let last = turns(&rig.engine).map(|turns| turns + 4);
        assert!(rig.until(limit, |engine| turns(engine) >= last), "{}", rig.describe());
    };
    settle(rig);
    assert!(rig.until(limit, nothing_is_out), "{}", rig.describe());
    settle(rig);
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Writes a capture.
pub fn write(path: &Path, frames: &[Vec<u8>]) {
    let mut writer = CaptureWriter::create(path, WriterOptions::default()).unwrap();
    for (n, frame) in (0u32..).zip(frames) {
        let time = Timestamp::new(n / 1000, n % 1000 * 1_000_000);
        writer.write(time, frame.len() as u32, frame).unwrap();
    }
    writer.finish().unwrap();
}
