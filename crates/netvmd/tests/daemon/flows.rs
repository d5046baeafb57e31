// SPDX-License-Identifier: Apache-2.0
//! The engine's flow monitor: every packet is in a record, to a collector and in the eve file, and drops are there too.

use std::net::UdpSocket;
use std::time::Duration;

use netvm_api::{Flows, TopTalkers, path};
use netvm_capture::CaptureReader;
use netvm_workload::captures;
use rustix::process::Signal;
use serde_json::Value;

use super::common::{Daemon, ENGINE, Folder};

fn source(name: &str, rest: &str) -> String {
    format!("\n[[port]]\nname = \"{name}\"\nkind = \"source\"\nflows = 10\n{rest}")
}

#[test]
fn flows_of_ports_are_exported_with_drops_and_none_is_lost() {
    let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
    collector.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let folder = Folder::new();
    let eve = folder.config().with_file_name("eve.json");
    let monitor = format!(
        "huge_pages = false\nflow_monitor = {{ export = \"ipfix:udp:{}\", eve = {eve:?}, idle_timeout = 1 }}\n",
        collector.local_addr().unwrap()
    );
    // Without a rate, a source on a busy machine misses no packets.
    let config = [
        ENGINE.replace("huge_pages = false\n", &monitor),
        source("lan", "count = 1000\n"),
        source("noise", "count = 50\n"),
        source("quiet", "count = 500\nmonitor = false\n"),
        "\n[[port]]\nname = \"uplink\"\nkind = \"sink\"\n".to_owned(),
        "\n[[rule]]\nfrom = [\"lan\", \"quiet\"]\nout = \"uplink\"\n".to_owned(),
        "\n[[rule]]\nfrom = \"noise\"\ndrop = true\n".to_owned(),
    ];
    let mut daemon = Daemon::start_in(folder.into(), &config.concat());
    let lines = || -> Vec<Value> {
        let text = std::fs::read_to_string(&eve).unwrap_or_default();
        // The last line may not be whole yet.
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    let packets =
        || -> u64 { lines().iter().filter_map(|line| line["flow"]["pkts_toserver"].as_u64()).sum() };
    let dropped = || -> u64 {
        let noise = |line: &&Value| line["drop"]["name"] == "noise" && line["drop"]["place"] == "port";
        lines().iter().filter(noise).filter_map(|line| line["drop"]["packets"].as_u64()).sum()
    };
    daemon.until("all flows have ended", |_| packets() >= 1050 && dropped() >= 50);
    daemon.until("all records are exported", |daemon| {
        let top: TopTalkers = daemon.get(path::TOP_TALKERS);
        top.monitor.flows == 0 && top.monitor.exported == top.monitor.records && top.addresses.len() == 10
    });
    let top: TopTalkers = daemon.get(&format!("{}?count=3", path::TOP_TALKERS));
    let monitor = daemon.stats().flow_monitor.unwrap();
    assert_eq!((monitor.packets, monitor.flows, monitor.lost_records), (1050, 0, 0), "{monitor:?}");
    // Both ports have packets of the same ten flows.
    assert!(monitor.records >= 10 && monitor.exported == monitor.records, "{monitor:?}");
    let bytes: Vec<u64> = top.addresses.iter().map(|address| address.bytes).collect();
    assert!(bytes.len() == 3 && bytes.is_sorted_by(|a, b| a >= b) && bytes[0] > 0, "{top:?}");
    let (_, metrics) = daemon.request("GET", path::METRICS, "");
    assert!(metrics.contains("netvm_flow_monitor_packets_total 1050"), "{metrics}");
    assert!(metrics.contains("netvm_flow_monitor_lost_records_total{at=\"ring\"} 0"), "{metrics}");
    let mut message = [0; 2048];
    let length = collector.recv(&mut message).unwrap();
    assert_eq!(u16::from_be_bytes([message[0], message[1]]), 10, "IPFIX (RFC 7011)");
    assert_eq!(usize::from(u16::from_be_bytes([message[2], message[3]])), length);
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().success());
    assert_eq!((packets(), dropped()), (1050, 50));
    assert!(lines().iter().all(|line| line["event_type"] == "flow" || line["event_type"] == "drop"));
    // Both ports have the same flows: the last packet says. Rules without names have numbers.
    for line in lines().iter().filter(|line| line["event_type"] == "flow") {
        let (verdict, rule) = (&line["flow"]["verdict"], &line["flow"]["rule"]);
        let expected = if *verdict == "dropped" { "1" } else { "0" };
        // The exporter learns the rules within two seconds.
        let is_named = *rule == expected || rule.is_null();
        assert!(is_named && (*verdict == "dropped" || *verdict == "forwarded"), "{line}");
    }
    assert!(daemon.log().contains("flow records in"), "{}", daemon.log());
}

/// Flows that run, without a record yet; and flows of packets that the prefilter handles.
#[test]
fn running_flows_are_shown() {
    let config = [
        ENGINE.replace("huge_pages = false\n", "huge_pages = false\nflow_monitor = {}\n"),
        source("lan", "rate = 5000\nforward = { out = \"uplink\" }\n"),
        "\n[[port]]\nname = \"uplink\"\nkind = \"sink\"\n".to_owned(),
        "\n[[rule]]\nfrom = \"lan\"\nmatch = { protocol = \"tcp\", destination_ports = 23 }\ndrop = true\n"
            .to_owned(),
    ];
    let daemon = Daemon::start(&config.concat());
    daemon.until("running flows are among the top talkers", |daemon| {
        let top: TopTalkers = daemon.get(path::TOP_TALKERS);
        assert_eq!(top.monitor.records, 0, "the active time-out is longer than this test");
        top.addresses.len() == 10 && top.addresses.iter().all(|address| address.bytes > 0)
    });
    let listed: Flows = daemon.get(path::FLOWS);
    assert_eq!(listed.flows.len(), 10, "{listed:?}");
    assert!(listed.flows.iter().all(|flow| flow.port == "lan" && flow.flow.contains("udp")), "{listed:?}");
}

/// Without a collector or a file, from two captures.
#[test]
fn names_and_top_talkers_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    captures::write(folder.path()).unwrap();
    // Bytes of all frames of a file.
    let bytes = |file: &str| {
        let mut reader = CaptureReader::open(&folder.path().join(file)).unwrap();
        let mut sum = 0;
        while let Some(frame) = reader.next_frame().unwrap() {
            sum += u64::from(frame.orig_len);
        }
        sum
    };
    let port = |name: &str, file: &str| {
        let file = folder.path().join(file);
        format!(
            "\n[[port]]\nname = \"{name}\"\nkind = \"pcap\"\ninput = {file:?}\n[[rule]]\nfrom = \"{name}\"\ndrop = true\n"
        )
    };
    let monitor = "huge_pages = false\nflow_monitor = { idle_timeout = 1 }\n";
    let config =
        [ENGINE.replace("huge_pages = false\n", monitor), port("tls", "tls.pcap"), port("dns", "dns.pcap")];
    let daemon = Daemon::start(&config.concat());
    // All bytes of a connection, not only those of the packet with the name. A flow that has just ended is in no answer
    // until its record is read, so one answer has to have all.
    let wanted =
        [(captures::TLS_NAME, "tls", bytes("tls.pcap")), (captures::DNS_NAME, "dns", bytes("dns.pcap"))];
    daemon.until("all flows have ended, with all bytes", |daemon| {
        let top: TopTalkers = daemon.get(path::TOP_TALKERS);
        let is_found = |(name, kind, bytes): &(&str, &str, u64)| {
            top.names.iter().any(|it| it.name == *name && it.kind == *kind && it.bytes == *bytes)
        };
        let server = top.addresses.iter().find(|it| it.address == "198.51.100.7");
        let is_counted = server.is_some_and(|it| it.bytes == bytes("tls.pcap") && it.error == 0);
        top.monitor.flows == 0 && top.names.len() == 2 && wanted.iter().all(is_found) && is_counted
    });
    drop(daemon);
    // Without a monitor and connections, the error says how to have one.
    let daemon = Daemon::start(&ENGINE);
    let (status, message) = daemon.request("GET", path::TOP_TALKERS, "");
    assert!(status == 404 && message.contains("flow_monitor = {}"), "{message}");
}
