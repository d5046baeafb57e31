// SPDX-License-Identifier: Apache-2.0
//! NAT events, and flows that rules have decided and NAT has translated, as Wireshark's dissector and nfdump's
//! collector read them.

use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use netvm_capture::{CaptureWriter, Timestamp, WriterOptions};
use netvm_flowmon::export::{
    Exporter, Interface, Interfaces, NatBlock, NatEnd, NatEvent, NatEventKind, NatSession, Options, RuleNames,
};
use netvm_flowmon::{Decided, Endpoints, Meter, Settings, Tagged, Verdict};
use netvm_wire::{Address, FrameBuilder, IpProto, MacAddr, PortRange};
use rtrb::RingBuffer;

use crate::common::{Nfcapd, clock, options};

fn address(text: &str) -> Address {
    text.parse::<std::net::IpAddr>().unwrap().into()
}

fn end(text: &str, port: u16) -> NatEnd {
    NatEnd { address: address(text), port }
}

fn session(source: [NatEnd; 2], destination: [NatEnd; 2]) -> NatSession {
    NatSession { protocol: IpProto::UDP, source, destination }
}

/// One event of each kind and family.
fn events() -> Vec<NatEvent> {
    let remote = end("198.51.100.7", 53);
    let nat44 = session([end("10.0.0.1", 1000), end("203.0.113.1", 40_000)], [remote, remote]);
    let nat64 = session(
        [end("2001:db8::1", 1001), end("203.0.113.1", 40_001)],
        [end("64:ff9b::c633:6407", 53), remote],
    );
    let nat66 = session(
        [end("fd00::1", 1002), end("2001:db8::9", 40_002)],
        [end("2001:db8::7", 53), end("2001:db8::7", 53)],
    );
    let block = |inside: &str| NatBlock {
        inside: address(inside),
        outside: address("203.0.113.1"),
        ports: PortRange::new(2048, 2559).unwrap(),
    };
    let exhausted =
        |inside: &str| NatEventKind::PortsExhausted { inside: address(inside), protocol: IpProto::TCP };
    let kinds = [
        NatEventKind::SessionBegan(nat44),
        NatEventKind::SessionEnded(nat44),
        NatEventKind::SessionBegan(nat64),
        NatEventKind::SessionEnded(nat64),
        NatEventKind::SessionBegan(nat66),
        NatEventKind::SessionEnded(nat66),
        NatEventKind::BlockAssigned(block("10.0.0.1")),
        NatEventKind::BlockReleased(block("10.0.0.1")),
        NatEventKind::BlockAssigned(block("2001:db8::1")),
        exhausted("10.0.0.1"),
        exhausted("2001:db8::1"),
    ];
    let event = |(n, what)| NatEvent { at: clock().cycles + n * 1_000_000, zone: 7, what };
    (0u64..).zip(kinds).map(event).collect()
}

/// Exports events to a target.
fn export(target: &str, events: &[NatEvent]) {
    let exporter = Exporter::start(&options(Some(target.parse().unwrap()))).unwrap();
    let (mut producer, consumer) = RingBuffer::new(events.len());
    exporter.add_nat(consumer);
    events.iter().for_each(|event| producer.push(*event).unwrap());
    drop(producer);
    let totals = exporter.finish();
    assert_eq!((totals.exported, totals.lost), (events.len() as u64, 0));
}

/// Writes the datagrams of a socket as a capture of packets to IPFIX's port.
fn capture(socket: &UdpSocket, path: &Path) {
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut writer = CaptureWriter::create(path, WriterOptions::default()).unwrap();
    let mut message = [0; 2000];
    while let Ok(length) = socket.recv(&mut message) {
        let builder = FrameBuilder::new(MacAddr([2; 6]), MacAddr([4; 6]));
        let builder = builder.ip([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let frame = builder.udp(9999, 4739).payload(&message[..length]).to_vec().unwrap();
        writer.write(Timestamp::default(), frame.len() as u32, &frame).unwrap();
    }
    writer.finish().unwrap();
}

/// The values of a field in the order of the records, as tshark reads them.
fn field(path: &Path, name: &str) -> Option<Vec<String>> {
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(path).args(["-d", "udp.port==4739,cflow", "-T", "fields", "-e", name]);
    let Ok(output) = tshark.output() else {
        println!("SKIP: tshark is not installed: apt-get install tshark");
        return None;
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    Some(text.split([',', '\n']).filter(|it| !it.is_empty()).map(str::to_owned).collect())
}

#[test]
fn tshark_reads_every_event_of_nat() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let events = events();
    export(&format!("ipfix:udp:{}", socket.local_addr().unwrap()), &events);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nat.pcap");
    capture(&socket, &path);
    let Some(numbers) = field(&path, "cflow.nat_event") else { return };
    assert_eq!(numbers, ["4", "5", "6", "7", "1", "2", "16", "17", "16", "12", "12"]);
    let expected: [(&str, &[&str]); 18] = [
        ("cflow.srcaddr", &["10.0.0.1"; 5]),
        ("cflow.post_natsource_ipv4_address", &["203.0.113.1"; 7]),
        (
            "cflow.srcaddrv6",
            &["2001:db8::1", "2001:db8::1", "fd00::1", "fd00::1", "2001:db8::1", "2001:db8::1"],
        ),
        ("cflow.dstaddr", &["198.51.100.7"; 2]),
        ("cflow.dstaddrv6", &["64:ff9b::c633:6407", "64:ff9b::c633:6407", "2001:db8::7", "2001:db8::7"]),
        ("cflow.post_natdestination_ipv4_address", &["198.51.100.7"; 4]),
        ("cflow.srcport", &["1000", "1000", "1001", "1001", "1002", "1002"]),
        ("cflow.post_naptsource_transport_port", &["40000", "40000", "40001", "40001", "40002", "40002"]),
        ("cflow.dstport", &["53"; 6]),
        ("cflow.post_naptdestination_transport_port", &["53"; 6]),
        ("cflow.protocol", &["17", "17", "17", "17", "17", "17", "6", "6"]),
        ("cflow.ingress_vrfid", &["7"; 11]),
        ("cflow.post_nat_source_ipv6_address", &["2001:db8::9"; 2]),
        ("cflow.post_nat_destination_ipv6_address", &["2001:db8::7"; 2]),
        ("cflow.port_range_start", &["2048"; 3]),
        ("cflow.port_range_end", &["2559"; 3]),
        ("cflow.port_range_step_size", &["1"; 3]),
        ("cflow.port_range_num_ports", &["512"; 3]),
    ];
    for (name, values) in expected {
        assert_eq!(field(&path, name).unwrap(), values, "{name}");
    }
}

#[test]
fn nfcapd_takes_events_of_nat() {
    let Some(collector) = Nfcapd::start() else { return };
    export(&collector.target().to_string(), &events());
    // They are no flows: they have no packets. It asserts that no message was bad.
    let (packets, _) = collector.finish(0);
    assert_eq!(packets, 0);
}

#[test]
fn records_name_the_rule_its_verdict_the_port_and_the_translation() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (pcap, eve) = (folder.path().join("flows.pcap"), folder.path().join("eve.json"));
    let rules = RuleNames::default();
    rules.set([(7, "web".into())].into());
    let labels = [("app".to_owned(), "web".to_owned()), ("pod".to_owned(), "front".to_owned())].into();
    let interfaces = Interfaces::default();
    interfaces.set([(0, Interface { name: "front-1f0c52aa".to_owned(), labels })].into());
    // It ends; its last records are still to come.
    interfaces.set([(1, Interface { name: "uplink".to_owned(), ..Interface::default() })].into());
    let target = format!("ipfix:udp:{}", socket.local_addr().unwrap()).parse().unwrap();
    let options = Options { rules, interfaces, eve: Some(eve.clone()), ..options(Some(target)) };
    let exporter = Exporter::start(&options).unwrap();
    let (producer, consumer) = RingBuffer::new(8);
    exporter.add(consumer);
    let settings = Settings { idle: 1, active: 1 << 50, sampling: 1, names: 0 };
    let mut meter = Meter::new(Tagged::new(64), settings, Some(producer));
    meter.begin_burst();
    for port in [1, 2, 3, 4] {
        let builder = FrameBuilder::new(MacAddr([2; 6]), MacAddr([4; 6]));
        let builder = builder.ip("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let frame = builder.udp(port, 53).payload(b"x").to_vec().unwrap();
        meter.packet(&frame, netvm_wire::parse(&frame).ok().as_ref(), (0, clock().cycles));
    }
    meter.commit();
    meter.decide(0, Decided { rule: 7, verdict: Verdict::Forwarded });
    meter.decide(1, Decided { rule: 0, verdict: Verdict::Dropped });
    meter.decide(2, Decided { rule: 7, verdict: Verdict::Rejected });
    // A place that no packet has.
    meter.decide(9, Decided { rule: 7, verdict: Verdict::Rejected });
    meter.expire_with(usize::MAX, clock().cycles + 9, |record| {
        let Endpoints::Ip(ends) = record.endpoints() else { panic!("{record:?}") };
        if ends.source_port == 1 {
            let source = address("203.0.113.1");
            record.translated = Some(netvm_wire::FiveTuple { source, source_port: 999, ..ends });
        }
    });
    drop(meter);
    assert_eq!(exporter.finish().exported, 4);

    let text = std::fs::read_to_string(&eve).unwrap();
    let line = |port: u16| -> serde_json::Value {
        let mut lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        lines.find(|line| line["src_port"] == port).unwrap()
    };
    let decided = |port: u16| {
        let line = line(port);
        (line["flow"]["verdict"].clone(), line["flow"]["rule"].clone(), line["nat"].clone())
    };
    let nat = serde_json::json!({
        "src_ip": "203.0.113.1", "src_port": 999, "dest_ip": "10.0.0.2", "dest_port": 53,
    });
    let null = serde_json::Value::Null;
    assert_eq!(decided(1), ("forwarded".into(), "web".into(), nat));
    assert_eq!(decided(2), ("dropped".into(), null.clone(), null.clone()));
    assert_eq!(decided(3), ("rejected".into(), "web".into(), null.clone()));
    assert_eq!(decided(4), (null.clone(), null.clone(), null));

    assert_eq!(line(1)["in_iface"], "front-1f0c52aa");
    assert_eq!(line(1)["in_labels"], serde_json::json!({ "app": "web", "pod": "front" }));

    capture(&socket, &pcap);
    let Some(mut names) = field(&pcap, "cflow.selector_name") else { return };
    names.sort();
    assert_eq!(names, ["web", "web"]);
    assert_eq!(field(&pcap, "cflow.if_name").unwrap(), ["front-1f0c52aa", "uplink"]);
    assert_eq!(field(&pcap, "cflow.if_descr").unwrap(), ["app=web pod=front"]);
    assert_eq!(field(&pcap, "cflow.post_natsource_ipv4_address").unwrap(), ["203.0.113.1"]);
    assert_eq!(field(&pcap, "cflow.post_naptsource_transport_port").unwrap(), ["999"]);
    let mut statuses = field(&pcap, "cflow.forwarding_status").unwrap();
    statuses.sort();
    // Forwarded, and dropped twice.
    assert_eq!(statuses, ["1", "2", "2"]);
}
