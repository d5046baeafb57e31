// SPDX-License-Identifier: Apache-2.0
//! Runs the program on real rings without an engine.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::Command;
use std::time::Duration;

use netlib::sim::Process;
use netlib::{PortId, Verdict};
use netvm_nf_common::testing;

const PROGRAM: &str = env!("CARGO_BIN_EXE_netvm-monitor");

#[test]
fn the_program_reports_while_it_runs_and_at_the_end() {
    for waiting in [&[][..], &["--poll"]] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.json");
        let read = || serde_json::from_slice::<serde_json::Value>(&std::fs::read(&path).unwrap()).unwrap();
        let mut command = Command::new(PROGRAM);
        command
            .arg("--report")
            .arg(&path)
            .args(["--interval", "1", "--top", "3", "--threads", "2"])
            .args(waiting);
        let mut nf = Process::spawn(command, &["a"], &[]).unwrap();
        let frames: Vec<_> = (1..=20u16)
            .flat_map(|flow| {
                let frame = testing::udp(&format!("10.0.0.1:{flow}"), "10.0.0.2:53", &[0; 100]);
                vec![frame; usize::from(flow)]
            })
            .collect();
        let list: Vec<_> = frames.iter().map(|frame| (PortId(0), frame.as_slice())).collect();
        let outcomes = nf.inject_all(&list).unwrap();
        assert!(outcomes.iter().zip(&frames).all(|(o, f)| o.verdict == Verdict::Next && o.bytes == *f));

        testing::until("a report while it runs", || read()["total"]["packets"] == 210);
        nf.inject(PortId(0), &frames[0]).unwrap();
        // Ended by a signal.
        assert!(
            Command::new("sh").args(["-c", &format!("kill -TERM {}", nf.id())]).status().unwrap().success()
        );
        assert!(nf.stop().unwrap().success());
        let report = read();
        assert_eq!(report["total"]["packets"], 211);
        let top = report["top"].as_array().unwrap();
        let counted: Vec<_> =
            top.iter().map(|flow| (flow["source_port"].clone(), flow["packets"].clone())).collect();
        assert_eq!(counted, [20, 19, 18].map(|n| (n.into(), n.into())));
        assert_eq!(nf.counter("udp"), Some(211));
    }
}

#[test]
fn the_program_exports_flows_as_eve_lines_and_to_a_collector() {
    let dir = tempfile::tempdir().unwrap();
    let (eve, report) = (dir.path().join("eve.json"), dir.path().join("report.json"));
    let collector = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    collector.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut command = Command::new(PROGRAM);
    command.args([
        "--table",
        "d-left",
        "--export",
        &format!("ipfix:udp:{}", collector.local_addr().unwrap()),
    ]);
    command.arg("--eve").arg(&eve).arg("--report").arg(&report);
    command.args(["--idle-timeout", "1", "--interval", "1"]);
    let mut nf = Process::spawn(command, &["a"], &[]).unwrap();
    let query = testing::udp(
        "10.0.0.1:999",
        "10.0.0.2:53",
        b"\0\x01\x01\0\0\x01\0\0\0\0\0\0\x07example\x03org\0\0\x01\0\x01",
    );
    let answer = testing::udp("10.0.0.2:53", "10.0.0.1:999", &[0; 100]);
    nf.inject_all(&[(PortId(0), query.as_slice()), (PortId(0), answer.as_slice())]).unwrap();
    // The flow ends, while the NF goes on.
    let mut message = [0; 2000];
    let length = collector.recv(&mut message).unwrap();
    assert_eq!(
        (&message[..2], usize::from(u16::from_be_bytes([message[2], message[3]]))),
        (&[0, 10][..], length)
    );
    assert!(message[..length].windows(11).any(|bytes| bytes == b"example.org"));
    let read =
        |path: &std::path::Path| serde_json::from_slice::<serde_json::Value>(&std::fs::read(path).unwrap());
    let talkers = || read(&report).unwrap()["talkers"].as_array().map_or(0, Vec::len);
    testing::until("the flow is in both", || !std::fs::read(&eve).unwrap().is_empty() && talkers() == 2);
    let line = read(&eve).unwrap();
    let flow = &line["flow"];
    assert_eq!((&line["dns"]["rrname"], &line["src_ip"]), (&"example.org".into(), &"10.0.0.1".into()));
    assert_eq!(
        (&flow["pkts_toserver"], &flow["pkts_toclient"], &flow["reason"]),
        (&1.into(), &1.into(), &"timeout".into())
    );
    assert_eq!(read(&report).unwrap()["export"]["exported"], 1);
    assert!(nf.stop().unwrap().success());
    assert_eq!((nf.counter("records"), nf.counter("lost-records")), (Some(1), Some(0)));
}
