// SPDX-License-Identifier: Apache-2.0
//! A role that grows to three replicas and shrinks to one again, as its load says: no packet of a live flow goes to
//! another replica than the ones before.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use netlib::{NetworkFunction, Options, Packet, Verdict};
use netvm_api::{Event, EventKind, NfInfo, path};
use netvm_capture::{CaptureReader, CaptureWriter, Timestamp, WriterOptions};
use netvm_wire::{FrameBuilder, MacAddr};
use rustix::process::Signal;

use crate::common::page::blocks;
use crate::common::{Daemon, ENGINE, Folder, program};

const PAGE: &str = include_str!("../../../../../docs/how-to/scale-replicas.md");
/// Where the payload of UDP in IPv4 begins: the NF writes its process id there.
const PAYLOAD: usize = 42;
/// Milliseconds of many flows, and of all.
const BUSY: u64 = 14_000;
const ALL: u64 = 45_000;
/// Milliseconds that a flow lives.
const LIFE: u64 = 4_000;

/// An NF that takes a millisecond for a packet, and says in it which replica it is.
struct Stamp;

impl NetworkFunction for Stamp {
    fn packet(&mut self, packet: &mut Packet<'_>) -> Verdict {
        std::thread::sleep(Duration::from_millis(1));
        if let Some(place) = packet.data_mut().get_mut(PAYLOAD..PAYLOAD + 4) {
            place.copy_from_slice(&std::process::id().to_be_bytes());
        }
        Verdict::Next
    }
}

pub fn stamp() {
    netlib::run(&Options::new("stamp"), |_| Stamp).unwrap();
}

/// The packets of a flow: from when to when, in milliseconds, and the time between two.
fn flow(number: u16, times: std::ops::Range<u64>, every: usize) -> impl Iterator<Item = (u64, Vec<u8>)> {
    let [high, low] = number.to_be_bytes();
    let builder = FrameBuilder::new(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
    let builder = builder.ip([10, 0, high, low].into(), [10, 9, 9, 9].into()).udp(1000, 2000);
    let frame = builder.payload(&[0; 18]).to_vec().unwrap();
    times.step_by(every).map(move |time| (time, frame.clone()))
}

/// Many flows that begin and end, then few; one that lives on, and one that begins with the most replicas.
fn write(file: &Path) {
    let mut packets: Vec<(u64, Vec<u8>)> = flow(0, 0..ALL - 1_000, 100).collect();
    packets.extend(flow(1, BUSY - 1_000..BUSY + 8_000, 100));
    for n in 0..BUSY / 100 {
        packets.extend(flow(2 + n as u16, n * 100..(n * 100 + LIFE).min(BUSY), 20));
    }
    for n in 0..(ALL - BUSY) / LIFE {
        let begin = BUSY + n * LIFE;
        packets.extend(flow(1000 + n as u16, begin..begin + LIFE, 50));
    }
    packets.sort_by_key(|(time, _)| *time);
    let mut writer = CaptureWriter::create(file, WriterOptions::default()).unwrap();
    for (time, frame) in &packets {
        let time = Timestamp::new((time / 1000) as u32, (time % 1000) as u32 * 1_000_000);
        writer.write(time, frame.len() as u32, frame).unwrap();
    }
    writer.finish().unwrap();
}

/// By flow: the replicas that have had its packets, in their order, each once for packets in a row.
fn replicas(file: &Path) -> BTreeMap<u16, Vec<u32>> {
    let mut by_flow: BTreeMap<u16, Vec<u32>> = BTreeMap::new();
    let mut reader = CaptureReader::open(file).unwrap();
    while let Some(frame) = reader.next_frame().unwrap() {
        let flow = u16::from_be_bytes([frame.data[28], frame.data[29]]);
        let stamp = u32::from_be_bytes(frame.data[PAYLOAD..PAYLOAD + 4].try_into().unwrap());
        let replicas = by_flow.entry(flow).or_default();
        if replicas.last() != Some(&stamp) {
            replicas.push(stamp);
        }
    }
    by_flow
}

fn running(daemon: &Daemon) -> usize {
    let nfs: Vec<NfInfo> = daemon.get(path::NFS);
    nfs.iter().filter(|nf| nf.role == "inspect" && nf.state.gets_packets()).count()
}

#[test]
fn a_role_grows_and_shrinks_and_live_flows_keep_their_replica() {
    let folder = std::sync::Arc::new(Folder::new());
    let [input, output] = ["in.pcap", "out.pcap"].map(|name| folder.0.join(name));
    write(&input);
    let config = blocks(PAGE, "toml")[0]
        .replace("command = [\"/usr/lib/netvm/inspect\"]\n", &program("stamp"))
        .replace("/tmp/in.pcap", &input.display().to_string())
        .replace("/tmp/out.pcap", &output.display().to_string());
    let started = Instant::now();
    let mut daemon = Daemon::start_in(folder, &format!("{ENGINE}{config}"));
    let (mut most, mut last) = (0, 0);
    // All packets, which take their time, and as long as it takes to shrink.
    daemon.until_slowly("all packets have passed, and one replica is left", |daemon| {
        last = running(daemon);
        most = most.max(last);
        last == 1 && started.elapsed() > Duration::from_millis(ALL)
    });
    let events: Vec<Event> = daemon.get(path::EVENTS);
    let told = events.iter().filter(|event| event.kind == EventKind::NfScaled);
    let told: Vec<&str> = told.map(|event| event.message.as_str()).collect();
    assert_eq!((most, last), (3, 1), "{told:#?}\n{}", daemon.log());
    assert!(told.iter().all(|message| !message.contains("live flows get another one")), "{told:#?}");
    assert!(told.contains(&"nf inspect: 3 replicas now: the load is high"), "{told:#?}");

    daemon.signal(Signal::TERM);
    assert!(daemon.wait().success());
    let by_flow = replicas(&output);
    let moved: Vec<_> = by_flow.iter().filter(|(_, replicas)| replicas.len() > 1).collect();
    assert!(moved.is_empty(), "{moved:?}");
    let all: BTreeSet<u32> = by_flow.values().flatten().copied().collect();
    assert_eq!(all.len(), 3, "each of the replicas had packets");
    assert!(by_flow.len() > 100, "{} flows", by_flow.len());
}
