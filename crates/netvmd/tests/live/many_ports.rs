// SPDX-License-Identifier: Apache-2.0
//! As many ports as a host can have.

use std::fmt::Write as _;
use std::process::Command;

use netvm_api::{ApplyReply, PortInfo, path};
use netvm_model::MAX_PORTS;

use crate::common::{Daemon, ENGINE};

/// Packets of each source.
const PACKETS: u64 = 5000;

/// Sinks, but for port 300, whose packets leave by port 700, and port 1001, whose packets are switched.
fn config(count: usize) -> String {
    let mut text = ENGINE.to_owned();
    for n in 0..count {
        let kind = match n {
            300 => format!(
                "kind = \"source\"\ncount = {PACKETS}\nlossless = true\nforward = {{ out = \"p700\" }}"
            ),
            1001 => format!(
                "kind = \"source\"\ncount = {PACKETS}\nlossless = true\nforward = {{ normal = true }}"
            ),
            // The only other port of the switch.
            260 => "kind = \"sink\"\nforward = { normal = true }".to_owned(),
            _ => "kind = \"sink\"".to_owned(),
        };
        writeln!(text, "\n[[port]]\nname = \"p{n}\"\n{kind}").unwrap();
    }
    text
}

#[test]
fn all_ports_of_the_largest_host_forward_and_are_shown() {
    let daemon = Daemon::start(&config(MAX_PORTS));
    let ports = || daemon.get::<Vec<PortInfo>>(path::PORTS);
    let of = |name: &str| ports().into_iter().find(|port| port.name == name).unwrap();
    let has_sent = |name: &str| of(name).tx_packets == PACKETS;
    daemon.until("packets arrive", |_| has_sent("p700") && has_sent("p260"));
    assert_eq!(ports().len(), MAX_PORTS);
    assert_eq!(ports().iter().filter(|port| port.tx_packets > 0).count(), 2);
    let (status, metrics) = daemon.request("GET", path::METRICS, "");
    assert_eq!(status, 200);
    for (name, sent) in [("p700", PACKETS), ("p260", PACKETS), ("p1023", 0)] {
        let line = format!("netvm_port_tx_packets_total{{port=\"{name}\"}} {sent}.0");
        let have: Vec<&str> = metrics.lines().filter(|have| have.contains(&format!("\"{name}\""))).collect();
        assert!(have.contains(&&*line), "no {line}: {have:#?}");
    }
    let netvm = std::path::Path::new(env!("CARGO_BIN_EXE_netvmd")).with_file_name("netvm");
    if netvm.is_file() {
        let output =
            Command::new(netvm).arg("--socket").arg(daemon.api_socket()).arg("port").output().unwrap();
        let table = String::from_utf8(output.stdout).unwrap();
        let row = |name: &str| {
            let line = table.lines().find(|line| line.split_whitespace().nth(1) == Some(name));
            line.unwrap_or_else(|| panic!("no {name} in\n{table}")).to_owned()
        };
        assert!(row("p700").contains("5,000") && row("p1023").contains(" 0"), "{table}");
    } else {
        println!("SKIP: netvm is not built: a test of the whole workspace builds it");
    }
    // One more is refused, and nothing changes; fewer take effect at once.
    let (status, error) = daemon.post_failing(path::APPLY, config(MAX_PORTS + 1));
    let said = serde_json::to_string(&error).unwrap();
    assert!(status == 422 && said.contains("a host can have 1024 ports"), "{status}: {said}");
    assert_eq!(ports().len(), MAX_PORTS);
    let _: ApplyReply = daemon.post(path::APPLY, &config(300));
    assert_eq!(ports().len(), 300);
    let _: ApplyReply = daemon.post(path::APPLY, &config(800));
    daemon.until("packets arrive again", |_| of("p700").tx_packets >= PACKETS);
}
