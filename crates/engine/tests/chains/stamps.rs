// SPDX-License-Identifier: Apache-2.0
//! Time stamps in captures that are written.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::support::{Rig, chain, group, port, rule, source};
use netvm_capture::{CaptureReader, CaptureWriter, Timestamp, WriterOptions};
use netvm_model::{EngineConfig, Host, OnFailure, PortKind};

const TIMEOUT: Duration = Duration::from_secs(20);
const FRAMES: u64 = 2000;

/// In 2001, a microsecond apart.
fn old(n: u64) -> Timestamp {
    Timestamp(1_000_000_000_000_000_000 + n * 1000)
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    Timestamp(since.as_nanos() as u64)
}

fn write_old(path: &Path) {
    let mut writer = CaptureWriter::create(path, WriterOptions::default()).unwrap();
    for n in 0..FRAMES {
        writer.write(old(n), 100, &[n as u8; 60]).unwrap();
    }
    writer.finish().unwrap();
}

fn read(path: &Path) -> Vec<(Timestamp, u32)> {
    let mut reader = CaptureReader::open(path).unwrap();
    let mut stamps = Vec::new();
    while let Some(frame) = reader.next_frame().unwrap() {
        stamps.push((frame.timestamp, frame.orig_len));
    }
    stamps
}

/// From one port to the other.
fn forwarding(from: PortKind, to: PortKind) -> Host {
    Host {
        groups: vec![group(0, 1024, 2048)],
        ports: vec![port(0, "in", from), port(1, "out", to)],
        chains: vec![chain(0, &[], OnFailure::Drop, 1)],
        rules: vec![rule(0, 0)],
        ..Host::default()
    }
}

fn capture(input: Option<&PathBuf>, output: Option<&PathBuf>) -> PortKind {
    PortKind::Pcap { input: input.cloned(), output: output.cloned(), paced: false }
}

#[test]
fn a_time_of_zero_is_a_time() {
    let folder = std::env::temp_dir().join(format!("netvm-stamps-zero-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (given, kept) = (folder.join("given.pcap"), folder.join("kept.pcap"));
    let times = [Timestamp(0), Timestamp(1), Timestamp(0)];
    let mut writer = CaptureWriter::create(&given, WriterOptions::default()).unwrap();
    times.iter().for_each(|time| writer.write(*time, 60, &[1; 60]).unwrap());
    writer.finish().unwrap();
    let mut rig = Rig::new(&EngineConfig::default());
    rig.engine.apply(&forwarding(capture(Some(&given), None), capture(None, Some(&kept)))).unwrap();
    let all = |engine: &netvm_engine::Engine| engine.ports()[1].tx_packets == times.len() as u64;
    assert!(rig.until(TIMEOUT, all), "{}", rig.describe());
    rig.engine.apply(&Host::default()).unwrap();
    assert_eq!(read(&kept), times.map(|time| (time, 60)));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_was_read_keeps_its_time_and_what_is_new_gets_the_present_one() {
    let folder = std::env::temp_dir().join(format!("netvm-stamps-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (given, kept, made) = (folder.join("given.pcap"), folder.join("kept.pcap"), folder.join("made.pcap"));
    write_old(&given);
    let mut rig = Rig::new(&EngineConfig::default());
    let sent = |engine: &netvm_engine::Engine| engine.ports().iter().map(|port| port.tx_packets).sum::<u64>();

    rig.engine.apply(&forwarding(capture(Some(&given), None), capture(None, Some(&kept)))).unwrap();
    assert!(rig.until(TIMEOUT, |engine| sent(engine) == FRAMES), "{}", rig.describe());
    // Buffers keep the stamps of packets that go nowhere. (Another kind of port: one that has been read is left alone.)
    let again = PortKind::Pcap { input: Some(given.clone()), output: None, paced: true };
    rig.engine.apply(&forwarding(again, PortKind::Sink)).unwrap();
    assert!(rig.until(TIMEOUT, |engine| sent(engine) >= 2 * FRAMES), "{}", rig.describe());
    let expected: Vec<_> = (0..FRAMES).map(|n| (old(n), 100)).collect();
    assert!(read(&kept) == expected);

    // By a number of its own, and by the one that the capture had.
    for id in [2, 0] {
        let start = now();
        let mut host = forwarding(source(60, Some(FRAMES), true), capture(None, Some(&made)));
        host.ports[0].id.0 = id;
        host.rules = vec![rule(id, 0)];
        let before = sent(&rig.engine);
        rig.engine.apply(&host).unwrap();
        assert!(rig.until(TIMEOUT, |engine| sent(engine) >= before + FRAMES), "{}", rig.describe());
        rig.engine.apply(&forwarding(capture(Some(&given), None), PortKind::Sink)).unwrap();
        let (end, stamps) = (now(), read(&made));
        assert_eq!(stamps.len() as u64, FRAMES);
        assert!(
            stamps.iter().all(|(time, length)| (start..=end).contains(time) && *length == 60),
            "port {id}"
        );
        assert!(rig.until(TIMEOUT, |engine| sent(engine) >= before + 2 * FRAMES), "{}", rig.describe());
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
