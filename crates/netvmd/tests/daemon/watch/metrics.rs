// SPDX-License-Identifier: Apache-2.0
//! Metrics, as promtool and Prometheus read them.

use std::io::Write;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use netvm_api::explain::METRICS;
use netvm_api::path;
use serde_json::Value;

use super::{ask, authorization, free_address, is_there, router, until_served, watched};
use crate::common::{Daemon, is_root};

/// What is there once packets have passed.
const PARTS: [&str; 8] = [
    "netvm_port_rx_packets_total{port=\"a-in\"} ",
    "netvm_dropped_packets_total{at=\"port\",name=\"noise\",reason=\"rule\"} ",
    "netvm_chain_hop{chain=\"a\",hop=\"0\",role=\"a-nf\"} 1",
    "netvm_nf_ring_ratio{role=\"a-nf\",instance=\"0\",thread=\"0\"} ",
    "netvm_group_buffers{group=\"edge\",node=\"0\",state=\"free\"} ",
    "netvm_worker_busy_ratio{",
    "netvm_nf_running{role=\"a-nf\",instance=\"0\"} 1",
    // A hostile name of a counter is only a label with other characters.
    "netvm_nf_own_total{role=\"a-nf\",counter=\"_img_src_x_onerror_document.title__broken__\"} 7",
];

#[test]
fn metrics_are_those_of_the_reference_and_prometheus_takes_them() {
    let address = free_address();
    let router = if is_root() { router(&format!("m{}", std::process::id())) } else { String::new() };
    let mut daemon = Daemon::start(&(watched(address) + &router));
    daemon.until_running("a-nf");
    daemon.until_flowing("a");
    daemon.until("the NF reports its counters", |daemon| {
        daemon.request("GET", path::METRICS, "").1.contains("netvm_nf_own_total{role=\"a-nf\"")
            && daemon.nf("a-nf").counters.values().all(|value| *value == 7)
    });
    for part in PARTS {
        daemon.until(part, |daemon| daemon.request("GET", path::METRICS, "").1.contains(part));
    }
    let (status, text) = daemon.request("GET", path::METRICS, "");
    assert_eq!(status, 200);
    for line in text.lines().filter(|line| line.starts_with("# TYPE ")) {
        let mut words = line.split(' ').skip(2);
        let (name, kind) = (words.next().unwrap(), words.next().unwrap());
        let name = name.strip_suffix("_total").unwrap_or(name);
        let known = METRICS.iter().find(|metric| metric.name == name);
        assert_eq!(known.map(|metric| metric.kind.word()), Some(kind), "{line}");
    }
    check_with_promtool(&text);
    until_served(address);
    let accept = "accept: application/openmetrics-text;version=1.0.0";
    let (status, head, open) = ask(address, "GET /metrics", &[accept, &authorization(&daemon)], "");
    assert!(status == 200 && head.contains("application/openmetrics-text"), "{head}");
    assert!(open.ends_with("# EOF\n"), "{open}");
    scrape_with_prometheus(&daemon, address);
    daemon.purge();
}

fn check_with_promtool(text: &str) {
    if !is_there("promtool") {
        return;
    }
    let mut tool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    tool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = tool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && said.is_empty(), "{said}");
}

/// The queries of the dashboard.
fn queries() -> Vec<String> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/grafana/netvm.json");
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let targets =
        dashboard["panels"].as_array().unwrap().iter().flat_map(|panel| panel["targets"].as_array());
    targets.flatten().map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

/// A Prometheus of the machine scrapes it, and every query of the dashboard has an answer.
fn scrape_with_prometheus(daemon: &Daemon, address: SocketAddr) {
    if !is_there("prometheus") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let credentials = daemon.folder.run_dir().join("token");
    let settings = format!(
        "global: {{ scrape_interval: 1s }}\nscrape_configs:\n- job_name: netvm\n  authorization: {{ credentials_file: {} }}\n  \
         static_configs: [{{ targets: [\"{address}\"] }}]\n",
        credentials.display()
    );
    let file = folder.path().join("prometheus.yml");
    std::fs::write(&file, settings).unwrap();
    let web = free_address();
    let mut prometheus = Command::new("prometheus")
        .arg(format!("--config.file={}", file.display()))
        .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
        .arg(format!("--web.listen-address={web}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until_served(web);
    let mut left = queries();
    assert!(left.len() > 15, "{left:?}");
    netvm_testing::within(Duration::from_secs(40), || {
        left.retain(|query| {
            let query = query.replace("$__rate_interval", "20s");
            let digits: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
            let (_, _, body) = ask(web, &format!("GET /api/v1/query?query={digits}"), &[], "");
            let answer: Value = serde_json::from_str(&dechunked(&body)).unwrap_or_default();
            answer["status"] != "success" || answer["data"]["result"].as_array().is_none_or(Vec::is_empty)
        });
        left.is_empty()
    });
    prometheus.kill().unwrap();
    prometheus.wait().unwrap();
    // Only root can make a router.
    left.retain(|query| is_root() || !query.contains("netvm_router"));
    assert!(left.is_empty(), "queries without an answer: {left:#?}");
}

/// A body without the lengths of its chunks.
fn dechunked(body: &str) -> String {
    let Some((size, rest)) = body.split_once("\r\n") else { return body.to_owned() };
    let Ok(size) = usize::from_str_radix(size, 16) else { return body.to_owned() };
    let (chunk, rest) = rest.split_at(size.min(rest.len()));
    if size == 0 { String::new() } else { chunk.to_owned() + &dechunked(rest.trim_start_matches("\r\n")) }
}
