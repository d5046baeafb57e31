//! The engine's flow monitor: every packet is in a record, to a collector and in the eve file, and drops are there too.

use std::net::UdpSocket;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::common::{Daemon, ENGINE, Folder};

fn source(name: &str, rest: &str) -> String {
    format!("\n[[port]]\nname = \"{name}\"\nkind = \"source\"\nrate = 5000\nflows = 10\n{rest}")
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
    let mut message = [0; 2048];
    let length = collector.recv(&mut message).unwrap();
    assert_eq!(u16::from_be_bytes([message[0], message[1]]), 10, "IPFIX (RFC 7011)");
    assert_eq!(usize::from(u16::from_be_bytes([message[2], message[3]])), length);
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().success());
    assert_eq!((packets(), dropped()), (1050, 50));
    assert!(lines().iter().all(|line| line["event_type"] == "flow" || line["event_type"] == "drop"));
    assert!(daemon.log().contains("records of flows in"), "{}", daemon.log());
}
