//! Runs the program on real rings without an engine.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::Command;
use std::time::{Duration, Instant};

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

        let deadline = Instant::now() + Duration::from_secs(5);
        while read()["total"]["packets"] != 210 {
            assert!(Instant::now() < deadline, "no report while it runs: {}", read());
            std::thread::sleep(Duration::from_millis(20));
        }
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
