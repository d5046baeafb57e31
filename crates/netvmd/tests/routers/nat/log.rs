// SPDX-License-Identifier: Apache-2.0
//! The log of NAT: an IPFIX collector and a file, with one line for each block of ports.

use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use netvm_api::{ConnectionEvent, Event, EventKind, FlushedConnections, path};
use netvm_capture::{CaptureWriter, Timestamp, WriterOptions};
use netvm_wire::{FrameBuilder, MacAddr};
use rustix::process::Signal;

use super::super::common::Daemon;
use super::super::common::hosts::{Host, are_possible};
use super::super::common::page::blocks;
use super::{INTERNET, Net, has};

const APP: &str = "10.0.0.12";
const WEB: &str = "10.0.0.11";

/// The page's CGNAT for one container; the other masquerades. With the page's log.
fn config(net: &Net, collector: &str, file: &Path) -> String {
    let page = blocks(super::PAGE, "toml");
    let log = page.iter().find(|block| block.contains("collector = ")).unwrap();
    let log = log.replace("192.0.2.1:4739", collector);
    let log = log.replace("/var/log/netvm/nat.jsonl", file.to_str().unwrap());
    net.config(false, &(page[3].replace("10.0.0.0/24", APP) + "\n" + &log))
}

/// Sends a datagram from each of `count` sockets.
fn open(host: &Host, count: usize) {
    let send = move || {
        for _ in 0..count {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
            socket.send_to(b"x", (INTERNET, 9)).unwrap();
        }
    };
    host.inside(send).join().unwrap();
}

/// Writes the datagrams of a socket as a capture of packets to IPFIX's port.
fn capture(socket: &UdpSocket, path: &Path) {
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut writer = CaptureWriter::create(path, WriterOptions::default()).unwrap();
    let mut message = [0; 2000];
    while let Ok(length) = socket.recv(&mut message) {
        let builder = FrameBuilder::new(MacAddr([2; 6]), MacAddr([4; 6]));
        let builder = builder.ip([192, 0, 2, 2].into(), [192, 0, 2, 1].into());
        let frame = builder.udp(9999, 4739).payload(&message[..length]).to_vec().unwrap();
        writer.write(Timestamp::default(), frame.len() as u32, &frame).unwrap();
    }
    writer.finish().unwrap();
}

/// The values of a field in the order of the records, as tshark reads them.
fn field(path: &Path, name: &str) -> Vec<String> {
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(path).args(["-d", "udp.port==4739,cflow", "-T", "fields", "-e", name]);
    let output = tshark.output().unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.split([',', '\n']).filter(|it| !it.is_empty()).map(str::to_owned).collect()
}

fn lines(file: &Path) -> Vec<ConnectionEvent> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    // The last line may not be whole yet.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_collector_gets_blocks_of_ports_and_the_sessions_of_others() {
    if !are_possible() {
        return;
    }
    let net = Net::new('y');
    let folder = tempfile::tempdir().unwrap();
    let (file, pcap) = (folder.path().join("nat.jsonl"), folder.path().join("nat.pcap"));
    let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = collector.local_addr().unwrap().to_string();
    let mut daemon = net.start_with_pool(&config(&net, &address, &file));
    // Connections that begin before somebody reads what happens have no line.
    daemon.until("the log is written", |_| {
        open(&net.web, 1);
        !lines(&file).is_empty()
    });
    open(&net.app, 20);
    open(&net.web, 20);
    let released = |lines: &[ConnectionEvent]| {
        let is_released =
            |line: &&ConnectionEvent| matches!(line, ConnectionEvent::BlockReleased(it) if it.inside == APP);
        lines.iter().filter(is_released).count()
    };
    daemon.until("all connections have begun", |daemon| daemon.stats().connections.unwrap().begun >= 42);
    daemon.until("the block is released, and its line written", |daemon| {
        let (status, body) = daemon.request("DELETE", path::CONNECTIONS, "");
        assert!(status == 200 && serde_json::from_str::<FlushedConnections>(&body).is_ok(), "{body}");
        released(&lines(&file)) > 0
    });
    // The exporter sends what is left.
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().success());
    let lines = lines(&file);
    for line in &lines {
        match line {
            ConnectionEvent::BlockAssigned(it) | ConnectionEvent::BlockReleased(it) => {
                assert_eq!((&*it.inside, it.last_port - it.first_port), (APP, 511), "{it:?}");
                assert!(it.outside.starts_with("198.51.100.") && it.first_port % 512 == 0, "{it:?}");
            }
            // The rest of the container's connections has no line.
            ConnectionEvent::Opened(it) | ConnectionEvent::Translated(it) => {
                assert!(it.source.starts_with(WEB), "{it:?}");
            }
            ConnectionEvent::Closed(it) => assert!(it.connection.source.starts_with(WEB), "{it:?}"),
            other => panic!("{other:?}"),
        }
    }
    let of_block = |it: &&ConnectionEvent| {
        matches!(it, ConnectionEvent::BlockAssigned(_) | ConnectionEvent::BlockReleased(_))
    };
    let of_blocks = lines.iter().filter(of_block).count();
    assert!((2..10).contains(&of_blocks), "{lines:?}");
    if !has("tshark") {
        return;
    }

    capture(&collector, &pcap);
    let (kinds, inside) = (field(&pcap, "cflow.nat_event"), field(&pcap, "cflow.srcaddr"));
    let outside = field(&pcap, "cflow.post_natsource_ipv4_address");
    assert_eq!((kinds.len(), kinds.len()), (inside.len(), outside.len()), "{kinds:?} {inside:?} {outside:?}");
    assert_eq!(kinds.len(), lines.len(), "as in the file: {kinds:?} {lines:?}");
    for (kind, (inside, outside)) in kinds.iter().zip(inside.iter().zip(&outside)) {
        let is_of_pool = outside.starts_with("198.51.100.");
        match &kind[..] {
            // RFC 8158 table 2: NAT44 session create and delete; port block allocation and de-allocation.
            "4" | "5" => assert!(inside == WEB && outside == super::ROUTER, "{inside} {outside}"),
            "16" | "17" => assert!(inside == APP && is_of_pool, "{inside} {outside}"),
            other => panic!("event {other}"),
        }
    }
    let count = |kind: &str| kinds.iter().filter(|it| *it == kind).count();
    assert!(count("4") >= 20 && count("4") == count("5"), "{kinds:?}");
    assert_eq!(count("16") + count("17"), of_blocks, "{kinds:?}");
    assert!(field(&pcap, "cflow.port_range_num_ports").iter().all(|ports| ports == "512"));
}

#[test]
fn a_collector_that_is_away_loses_events_that_are_counted_and_nothing_else() {
    if !are_possible() {
        return;
    }
    let net = Net::new('z');
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("nat.jsonl");
    // A port that nobody has any longer.
    let address = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut daemon = net.start_with_pool(&config(&net, &address, &file));
    let lost = |daemon: &Daemon| daemon.stats().connections.unwrap().nat_events_lost;
    daemon.until("events are lost", |daemon| {
        open(&net.web, 1);
        lost(daemon) > 0
    });
    daemon.until("an event says so", |daemon| {
        let events: Vec<Event> = daemon.get(path::EVENTS);
        let mut lost = events.iter().filter(|event| event.kind == EventKind::ConnectionLogLost);
        lost.any(|event| event.message.contains("events of NAT") && event.message.contains("collector"))
    });
    let (_, metrics) = daemon.request("GET", path::METRICS, "");
    assert!(metrics.contains("netvm_nat_lost_events_total"), "{metrics}");
    let before = lines(&file).len();
    assert!(net.app.pings(INTERNET) && net.web.pings(INTERNET), "traffic goes on: {}", daemon.log());
    daemon.until("the file gets its lines", |_| lines(&file).len() > before);
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().success());
}
