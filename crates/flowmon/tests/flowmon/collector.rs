// SPDX-License-Identifier: Apache-2.0
//! Export to nfdump's collector, and to TCP collectors that come and go.

use std::io::Read;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::common::{Nfcapd, captures, clock, options};
use crate::frames::FlowFrame;
use netvm_capture::CaptureReader;
use netvm_flowmon::export::{Exporter, Options};
use netvm_flowmon::{Amount, AnyMeter, Settings, TableKind};
use netvm_testing::{LIMIT, until, within};
use rtrb::RingBuffer;

const SETTINGS: Settings = Settings { idle: 1 << 40, active: 1 << 50, sampling: 1, names: 4096 };

/// A meter whose records the exporter gets.
fn meter(exporter: &Exporter, kind: TableKind, flows: usize) -> AnyMeter {
    let (producer, consumer) = RingBuffer::new(1 << 16);
    exporter.add(consumer);
    AnyMeter::new(kind, flows, SETTINGS, Some(producer))
}

fn count(meter: &mut AnyMeter, frame: &[u8], now: u64) {
    meter.packet(frame, netvm_wire::parse(frame).ok().as_ref(), (1, now));
}

/// Waits for the exporter while the ring is full.
fn wait() -> impl FnMut() -> bool {
    let end = Instant::now() + Duration::from_secs(120);
    move || {
        std::thread::sleep(Duration::from_millis(1));
        Instant::now() < end
    }
}

#[test]
fn nfcapd_stores_every_packet_of_every_capture() {
    let space = tempfile::tempdir().unwrap();
    let captures = captures(space.path());
    for kind in [TableKind::Tagged, TableKind::DLeft] {
        let Some(collector) = Nfcapd::start() else { return };
        let exporter = Exporter::start(&options(Some(collector.target()))).unwrap();
        let mut meter = meter(&exporter, kind, 1024);
        let (mut frames, mut now) = (0, clock().cycles);
        for path in &captures {
            let mut reader = CaptureReader::open(path).unwrap();
            while let Ok(Some(frame)) = reader.next_frame() {
                count(&mut meter, frame.data, now);
                (frames, now) = (frames + 1, now + 1000);
            }
        }
        meter.finish(wait());
        let counts = meter.counts();
        drop(meter);
        let totals = exporter.finish();
        assert_eq!((counts.seen.packets, counts.lost_records, totals.lost), (frames, 0, 0));
        assert_eq!(totals.exported, counts.records);
        let (stored, octets) = collector.finish(frames);
        assert_eq!((stored, octets), (frames, counts.seen.octets), "{} captures, {kind:?}", captures.len());
    }
}

#[test]
fn nfcapd_stores_a_million_flows() {
    const FLOWS: u32 = 1_000_000;
    let Some(collector) = Nfcapd::start() else { return };
    let exporter = Exporter::start(&options(Some(collector.target()))).unwrap();
    // Half of the flows find the table full: those before them give way, and are exported.
    let mut meter = meter(&exporter, TableKind::Tagged, 1 << 18);
    let mut frame = FlowFrame::new();
    let mut total = Amount::default();
    for n in 0..FLOWS {
        // The ring is emptied at the pace of the exporter: what does not fit would be counted as lost.
        if n.is_multiple_of(1000) {
            let has_room = || meter.counts().records <= exporter.totals().exported + 40_000;
            until("there is room", has_room);
        }
        count(&mut meter, frame.of(n), clock().cycles + u64::from(n));
        total.add(Amount { packets: 1, bytes: 60, octets: 46 });
    }
    meter.finish(wait());
    let counts = meter.counts();
    drop(meter);
    let totals = exporter.finish();
    assert_eq!((counts.seen.packets, counts.seen.bytes), (total.packets, total.bytes));
    assert_eq!((counts.lost_records, totals.lost), (0, 0));
    assert_eq!((counts.records, totals.exported), (u64::from(FLOWS), u64::from(FLOWS)));
    let (stored, octets) = collector.finish(u64::from(FLOWS));
    assert_eq!((stored, octets), (u64::from(FLOWS), counts.seen.octets));
}

/// Reads messages of a TCP session until `records` data records have come, by sequence numbers and set lengths.
fn read_session(listener: &TcpListener) -> (u32, Vec<u8>) {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    let (mut at, mut messages) = (0, 0);
    while at < all.len() {
        let length = usize::from(u16::from_be_bytes([all[at + 2], all[at + 3]]));
        assert_eq!(&all[at..at + 2], &[0, 10], "IPFIX at {at}");
        (at, messages) = (at + length, messages + 1);
    }
    assert_eq!(at, all.len(), "whole messages only");
    (messages, all)
}

#[test]
fn a_tcp_collector_that_is_away_is_waited_for_and_costs_the_meter_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let target = format!("ipfix:tcp:{address}").parse().unwrap();
    let exporter = Exporter::start(&options(Some(target))).unwrap();
    let mut away = meter(&exporter, TableKind::Tagged, 64);
    let (mut frame, mut frames) = (FlowFrame::new(), 0u64);
    let mut send = |meter: &mut AnyMeter, flows: u32| {
        for n in 0..flows {
            count(meter, frame.of(n), clock().cycles);
            frames += 1;
        }
    };
    send(&mut away, 2000);
    // None of it waits for the collector.
    away.finish(|| false);
    until("the exporter says that the collector is away", || exporter.totals().is_away);
    let listener = TcpListener::bind(address).unwrap();
    let reader = std::thread::spawn(move || read_session(&listener));
    let is_exported = || exporter.totals().exported >= 2000;
    assert!(within(2 * LIMIT, is_exported), "{:?}", exporter.totals());
    let mut back = meter(&exporter, TableKind::Tagged, 4096);
    send(&mut back, 1000);
    back.finish(wait());
    let records = away.counts().records + back.counts().records;
    drop((away, back));
    let totals = exporter.finish();
    assert_eq!((totals.exported, totals.lost, totals.is_away), (records, 0, false));
    let (messages, bytes) = reader.join().unwrap();
    assert_eq!(u64::from(messages), totals.messages);
    crate::common::check_with_fixbuf(&bytes, records);
}

#[test]
fn a_udp_collector_that_is_away_is_reported_and_bounded() {
    let port = crate::common::free_udp_port();
    let target = format!("ipfix:udp:127.0.0.1:{port}").parse().unwrap();
    let exporter = Exporter::start(&options(Some(target))).unwrap();
    let mut away = meter(&exporter, TableKind::Tagged, 64);
    let (mut frame, mut n) = (FlowFrame::new(), 0u32);
    until("the exporter says that the collector is away", || {
        count(&mut away, frame.of(n), clock().cycles);
        n += 1;
        exporter.totals().is_away
    });
    away.finish(|| false);
    drop(away);
    let totals = exporter.finish();
    assert!(totals.lost > 0, "{totals:?}");
}

#[test]
fn eve_lines_have_every_flow_and_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("eve.json");
    let exporter = Exporter::start(&Options { eve: Some(path.clone()), ..options(None) }).unwrap();
    let mut all = meter(&exporter, TableKind::DLeft, 4096);
    let space = tempfile::tempdir().unwrap();
    let captures = captures(space.path());
    for path in captures {
        let mut reader = CaptureReader::open(&path).unwrap();
        while let Ok(Some(frame)) = reader.next_frame() {
            count(&mut all, frame.data, clock().cycles);
        }
    }
    all.finish(wait());
    let counts = all.counts();
    drop(all);
    assert_eq!(exporter.finish().eve_lost, 0);
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len() as u64, counts.records);
    let sum = |name: &str| lines.iter().map(|line| line["flow"][name].as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum("pkts_toserver") + sum("pkts_toclient"), counts.seen.packets);
    assert_eq!(sum("bytes_toserver") + sum("bytes_toclient"), counts.seen.bytes);
    let names = |kind: &str, field: &str| -> Vec<String> {
        lines.iter().filter_map(|line| line[kind][field].as_str().map(str::to_owned)).collect()
    };
    assert!(names("dns", "rrname").len() > 1, "DNS names are seen");
    assert!(!names("tls", "sni").is_empty(), "TLS names are seen");
    println!("{:?}\n{:?}", names("dns", "rrname"), names("tls", "sni"));
}
