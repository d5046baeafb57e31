//! What others watch netvmd by: events, metrics, the web page; and peers that misuse them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::routing::get;
use axum::{Json, Router};
use netvm_api::explain::METRICS;
use netvm_api::{Event, EventKind, Status, path};
use serde_json::{Value, json};

use super::browser::Browser;
use super::common::{Daemon, ENGINE, Folder, is_root, lane, program};
use super::{config, kill};

/// A name that an NF gives a counter of its own.
pub const HOSTILE: &str = "<img src=x onerror=document.title='broken'>";

/// A loopback address that is free now.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A lane, a rule that drops, and the web page.
fn watched(address: SocketAddr) -> String {
    format!(
        "{ENGINE}\n[api]\nweb = \"{address}\"\n{}\
         \n[[port]]\nname = \"noise\"\nkind = \"source\"\nsize = 60\nrate = 500\n\
         \n[[rule]]\nname = \"no-noise\"\nfrom = \"noise\"\ndrop = true\n",
        lane("a", &program("shouter"))
    )
}

/// A virtual router between a source and a sink.
pub fn router() -> String {
    let name = format!("w{}", std::process::id());
    let port = |name: &str, kind: &str| format!("\n[[port]]\nname = \"{name}\"\nkind = \"{kind}\"\n");
    format!(
        "{}rate = 10\n{}\n[[router]]\nname = \"{name}\"\n\
         \n[[router.interface]]\nname = \"lan\"\nport = \"r-in\"\naddresses = [\"10.1.0.1/24\"]\n\
         \n[[router.interface]]\nname = \"wan\"\nport = \"r-out\"\naddresses = [\"10.2.0.1/24\"]\n\
         \n[[rule]]\nfrom = \"r-in\"\nrouter = \"{name}\"\n",
        port("r-in", "source"),
        port("r-out", "sink"),
    )
}

/// One request over TCP: status, head and body.
fn ask(address: SocketAddr, request: &str, headers: &[&str], body: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let length = body.len();
    let mut head =
        format!("{request} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {length}\r\n");
    headers.iter().for_each(|header| head.extend([header, "\r\n"]));
    stream.write_all(format!("{head}\r\n{body}").as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), head.to_lowercase(), body.to_owned())
}

/// What a request without a token is answered, if anything.
fn read(address: SocketAddr) -> String {
    let Ok(mut stream) = TcpStream::connect(address) else { return String::new() };
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    let _ = stream.write_all(b"GET /v1/stats HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn token(daemon: &Daemon) -> String {
    std::fs::read_to_string(daemon.folder.run_dir().join("token")).unwrap().trim().to_owned()
}

fn authorization(daemon: &Daemon) -> String {
    format!("authorization: Bearer {}", token(daemon))
}

/// Waits until the page is served.
fn until_served(address: SocketAddr) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while TcpStream::connect(address).is_err() {
        assert!(Instant::now() < deadline, "nothing listens on {address}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn events_tell_what_happened_and_can_be_followed() {
    let daemon = Daemon::start(&config(&["a"]));
    let nf = daemon.until_running("a-nf");
    let mut follower = UnixStream::connect(daemon.api_socket()).unwrap();
    follower.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let request = format!("GET {}?follow=true HTTP/1.1\r\nhost: netvm\r\n\r\n", path::EVENTS);
    follower.write_all(request.as_bytes()).unwrap();
    daemon.until_flowing("a");
    kill(nf.pid.unwrap());
    let mut text = String::new();
    while !(text.contains("\"reclaimed\"") && text.contains("\"nf_down\"")) {
        let mut bytes = [0; 4096];
        let count = follower.read(&mut bytes).unwrap();
        assert!(count > 0, "{text}");
        text.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    assert!(text.contains("application/jsonl") && text.contains("\"started\""), "{text}");
    daemon.until("it runs again", |daemon| daemon.nf("a-nf").pid != nf.pid);
    daemon.until_running("a-nf");
    let (status, body) = daemon.request("POST", path::APPLY, "wrong");
    assert_eq!(status, 422, "{body}");
    let _: netvm_api::ApplyReply = daemon.post(path::APPLY, &config(&["a", "b"]));
    let events: Vec<Event> = daemon.get(path::EVENTS);
    let kinds: Vec<EventKind> = events.iter().map(|event| event.kind).collect();
    for kind in
        [EventKind::Started, EventKind::NfUp, EventKind::NfDown, EventKind::Reclaimed, EventKind::Applied]
    {
        assert!(kinds.contains(&kind), "{kind:?} in {events:#?}");
    }
    let down = events.iter().find(|event| event.kind == EventKind::NfDown).unwrap();
    assert!(down.subject == "a-nf" && down.message.contains("killed by signal 9"), "{down:?}");
    assert!(events.is_sorted_by_key(|event| event.number));
    let last = events.last().unwrap().number;
    assert!(daemon.get::<Vec<Event>>(&format!("{}?after={last}", path::EVENTS)).is_empty());
}

#[test]
fn a_capture_that_cannot_be_read_to_its_end_is_said() {
    let folder = Folder::new();
    let file = folder.0.join("long.pcap");
    // Classic pcap, little-endian: a frame of 60 bytes, and one that fits no buffer.
    let mut bytes = [&0xa1b2_c3d4_u32.to_le_bytes()[..], &[2, 0, 4, 0], &[0; 8]].concat();
    [65_535_u32, 1].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    for length in [60_u32, 9000] {
        [0, 0, length, length].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.extend(vec![2; length as usize]);
    }
    std::fs::write(&file, bytes).unwrap();
    let port = format!(
        "[[port]]\nname = \"old\"\nkind = \"pcap\"\ninput = {file:?}\nforward = {{ out = \"to\" }}\n"
    );
    let daemon = Daemon::start(&format!("{ENGINE}{port}[[port]]\nname = \"to\"\nkind = \"sink\"\n"));
    let fault = |daemon: &Daemon| {
        let events: Vec<Event> = daemon.get(path::EVENTS);
        events.into_iter().find(|event| event.kind == EventKind::PortFault)
    };
    daemon.until("the fault is an event", |daemon| fault(daemon).is_some());
    let said = fault(&daemon).unwrap();
    assert!(said.subject == "old" && said.message.contains("a frame of 9000 bytes does not fit"), "{said:?}");
    let port = daemon.stats().ports.into_iter().find(|port| port.name == "old").unwrap();
    assert!(port.driver_mode.contains("failed: a frame of 9000 bytes"), "{port:?}");
    assert_eq!(port.rx_packets, 1);
}

#[test]
fn metrics_are_those_of_the_reference_and_prometheus_takes_them() {
    let address = free_address();
    let router = if is_root() { router() } else { String::new() };
    let daemon = Daemon::start(&(watched(address) + &router));
    daemon.until_running("a-nf");
    daemon.until_flowing("a");
    daemon.until("the NF reports its counters", |daemon| {
        daemon.request("GET", path::METRICS, "").1.contains("netvm_nf_own_total{role=\"a-nf\"")
            && daemon.nf("a-nf").counters.values().all(|value| *value == 7)
    });
    std::thread::sleep(Duration::from_millis(300));
    let (status, text) = daemon.request("GET", path::METRICS, "");
    assert_eq!(status, 200);
    for line in text.lines().filter(|line| line.starts_with("# TYPE ")) {
        let mut words = line.split(' ').skip(2);
        let (name, kind) = (words.next().unwrap(), words.next().unwrap());
        let name = name.strip_suffix("_total").unwrap_or(name);
        let known = METRICS.iter().find(|metric| metric.name == name);
        assert_eq!(known.map(|metric| metric.kind.word()), Some(kind), "{line}");
    }
    for part in [
        "netvm_port_rx_packets_total{port=\"a-in\"} ",
        "netvm_dropped_packets_total{at=\"port\",name=\"noise\",reason=\"rule\"} ",
        "netvm_chain_hop{chain=\"a\",hop=\"0\",role=\"a-nf\"} 1",
        "netvm_nf_ring_ratio{role=\"a-nf\",instance=\"0\",thread=\"0\"} ",
        "netvm_group_buffers{group=\"edge\",node=\"0\",state=\"free\"} ",
        "netvm_worker_busy_ratio{",
        "netvm_nf_running{role=\"a-nf\",instance=\"0\"} 1",
        // A hostile name of a counter is only a label with other characters.
        "netvm_nf_own_total{role=\"a-nf\",counter=\"_img_src_x_onerror_document.title__broken__\"} 7",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    check_with_promtool(&text);
    until_served(address);
    let accept = "accept: application/openmetrics-text;version=1.0.0";
    let (status, head, open) = ask(address, "GET /metrics", &[accept, &authorization(&daemon)], "");
    assert!(status == 200 && head.contains("application/openmetrics-text"), "{head}");
    assert!(open.ends_with("# EOF\n"), "{open}");
    scrape_with_prometheus(&daemon, address);
}

fn is_there(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let found = found.is_ok_and(|status| status.success());
    if !found {
        println!(
            "SKIP: {program} is not installed (apt-get install --no-install-recommends prometheus chromium)"
        );
    }
    found
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
    let deadline = Instant::now() + Duration::from_secs(40);
    while !left.is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(500));
        left.retain(|query| {
            let query = query.replace("$__rate_interval", "20s");
            let digits: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
            let (_, _, body) = ask(web, &format!("GET /api/v1/query?query={digits}"), &[], "");
            let answer: Value = serde_json::from_str(&dechunked(&body)).unwrap_or_default();
            answer["status"] != "success" || answer["data"]["result"].as_array().is_none_or(Vec::is_empty)
        });
    }
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

#[test]
fn the_loopback_address_needs_a_token_and_only_reads() {
    let address = free_address();
    let daemon = Daemon::start(&watched(address));
    until_served(address);
    let token = authorization(&daemon);
    let (status, head, body) = ask(address, "GET /v1/stats", &[], "");
    assert!(status == 401 && head.contains("www-authenticate: bearer"), "{head}");
    assert!(body.contains("no token, or a wrong one") && body.contains("/token"), "{body}");
    assert_eq!(ask(address, "GET /metrics", &["authorization: Bearer wrong"], "").0, 401);
    assert_eq!(ask(address, "GET /v1/stats", &[&token], "").0, 200);
    let (status, _, body) = ask(address, "POST /v1/stop", &[&token], "");
    assert!(status == 403 && body.contains("Unix socket only"), "{body}");
    let packet = "{\"port\":\"a-in\",\"frame\":\"020000000001020000000002080045\",\"length\":60}";
    let json = "content-type: application/json";
    assert_eq!(ask(address, "POST /v1/policy/trace", &[&token, json], packet).0, 200);
    let foreign = "origin: http://example.org";
    assert_eq!(ask(address, "GET /v1/stats", &[&token, foreign], "").0, 403);
    let own = format!("origin: http://{address}");
    assert_eq!(ask(address, "GET /v1/stats", &[&token, &own], "").0, 200);
    // The page itself has no secrets, and no way for a text to become a script.
    let (status, head, body) = ask(address, "GET /", &[], "");
    assert!(status == 200 && head.contains("default-src 'none'; script-src 'self'"), "{head}");
    assert!(body.contains("<script type=\"module\" src=\"/web/app.js\">"), "{body}");
    for file in ["app.js", "capture.js", "graph.js", "trace.js", "style.css"] {
        let (status, _, body) = ask(address, &format!("GET /web/{file}"), &[], "");
        assert!(status == 200 && !body.contains("innerHTML") && !body.contains("eval("), "{file}");
    }
    assert_eq!(ask(address, "GET /web/../token", &[&token], "").0, 404);
    // Elsewhere, and nowhere.
    let other = free_address();
    let _: netvm_api::ApplyReply = daemon.post(path::APPLY, &watched(other));
    until_served(other);
    assert!(TcpStream::connect(address).is_err());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let _: netvm_api::ApplyReply = daemon.post(path::APPLY, &watched(taken.local_addr().unwrap()));
    daemon.until("the problem is shown", |daemon| {
        daemon
            .get::<Status>(path::STATUS)
            .problems
            .iter()
            .any(|problem| problem.contains("web page is not served"))
    });
    let (status, error) = daemon.post_failing(path::PLAN, watched(address).replace("127.0.0.1", "0.0.0.0"));
    assert!(status == 422 && error.diagnostics[0].rendered.contains("a loopback address"), "{error:?}");
}

/// Packets that leave the chain per second.
fn rate(daemon: &Daemon) -> f64 {
    let before = daemon.stats();
    std::thread::sleep(Duration::from_secs(1));
    let after = daemon.stats();
    (after.chains[0].left - before.chains[0].left) as f64 / (after.uptime_s - before.uptime_s)
}

#[test]
fn a_thousand_clients_and_a_slow_one_disturb_nobody() {
    let address = free_address();
    let daemon = Daemon::start(&watched(address));
    until_served(address);
    daemon.until_flowing("a");
    let alone = rate(&daemon);
    let crowd: Vec<TcpStream> = (0..1000).filter_map(|_| TcpStream::connect(address).ok()).collect();
    assert!(crowd.len() > 900, "{}", crowd.len());
    // Those who are too many are told, as far as they are not too many for that, too.
    let is_told = |_: &Daemon| read(address).contains("which is its limit: try again later");
    daemon.until("a client is told", is_told);
    let mut slow = UnixStream::connect(daemon.api_socket()).unwrap();
    for _ in 0..200 {
        slow.write_all(b"GET /v1/stats HTTP/1.1\r\nhost: netvm\r\n\r\n").unwrap();
    }
    // Other tests run beside this one: a second without disturbance among several.
    daemon.until("packets flow as before", |daemon| rate(daemon) > 0.9 * alone);
    drop(crowd);
    daemon.until("there is room again", |_| read(address).starts_with("HTTP/1.1 401"));
}

/// Lets six seconds of the page's time pass at once.
const SOON: &str = "--virtual-time-budget=6000";

/// The page in a browser, after it has read the counters a few times.
fn browse(address: SocketAddr, token: &str, tab: &str, options: &[&str]) -> String {
    let profile = tempfile::tempdir().unwrap();
    let output = Command::new("chromium")
        .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(options)
        .arg(format!("http://{address}/?tab={tab}#token={token}"))
        .stderr(Stdio::null())
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_page_shows_every_view_and_hostile_names_stay_text() {
    if !is_there("chromium") {
        return;
    }
    let address = free_address();
    let daemon = Daemon::start(&watched(address));
    until_served(address);
    daemon.until_flowing("a");
    let token = token(&daemon);
    // On a busy machine the page may have read the counters only once, which gives no rates.
    let has_rates = |page: &String| page.contains("class=\"live\"");
    let graph = (0..5).map(|_| browse(address, &token, "graph", &[SOON])).find(has_rates).unwrap_or_default();
    for part in
        ["aria-label=\"chain a\"", "aria-label=\"NF a-nf\"", "aria-label=\"port a-in\"", "class=\"live\""]
    {
        assert!(graph.contains(part), "{part} in\n{graph}");
    }
    let tables = browse(address, &token, "tables", &[SOON]);
    let escaped = HOSTILE.replace('<', "&lt;").replace('>', "&gt;");
    assert!(tables.contains(&escaped), "{tables}");
    assert!(!tables.contains("<img") && tables.contains("<title>netvm</title>"), "{tables}");
    assert!(browse(address, &token, "events", &[SOON]).contains("nf up"));
    assert!(browse(address, &token, "trace", &[SOON]).contains("destination port"));
    let refused = browse(address, "wrong", "graph", &[SOON]);
    assert!(refused.contains("needs a token") && !refused.contains("<form id=\"login\" hidden"), "{refused}");
}

/// The program `netvm`, which netvmd captures with, if it is built: `cargo test --workspace` builds it.
fn has_netvm() -> bool {
    let is_built = Path::new(env!("CARGO_BIN_EXE_netvmd")).with_file_name("netvm").exists();
    if !is_built {
        println!("SKIP: no netvm beside netvmd");
    }
    is_built
}

const CAPTURE: &str = "/v1/capture/file";

#[test]
fn a_capture_is_a_file_to_download_if_that_is_allowed() {
    if !has_netvm() {
        return;
    }
    let address = free_address();
    let daemon = Daemon::start(&watched(address));
    until_served(address);
    let refused = |body: &str, status: u16, words: &str| {
        let (found, text) = daemon.request("POST", CAPTURE, body);
        assert!(found == status && text.contains(words), "{body}: {found} {text}");
    };
    refused("{\"filter\": \"tcp prt 80\"}", 422, "does not compile");
    refused("{\"at\": [\"a-im\"]}", 422, "the nearest are");
    refused("{\"packets\": 0}", 422, "`packets` is 0: give 1 to 1000000");
    refused("{\"seconds\": 601}", 422, "give 1 to 600");
    refused("{\"att\": []}", 422, "att");
    let few = "{\"at\": [\"a-in\"], \"packets\": 20, \"seconds\": 60, \"filter\": \"udp\"}";
    assert_eq!(captured(&daemon, few), 20);
    // A time limit, where no packet comes.
    let none = "{\"at\": [\"a-in\"], \"seconds\": 1, \"filter\": \"arp\"}";
    assert_eq!(captured(&daemon, none), 0);
    // A client that goes away ends the capture.
    let mut stream = UnixStream::connect(daemon.api_socket()).unwrap();
    let body = "{\"seconds\": 600, \"filter\": \"arp\"}";
    let head = format!(
        "POST {CAPTURE} HTTP/1.1\r\nhost: netvm\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let mut begin = [0; 15];
    stream.read_exact(&mut begin).unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200 OK");
    drop(stream);
    daemon.until("the capture ends", |daemon| daemon.log().matches("capture 3 ends").count() == 1);

    let token = authorization(&daemon);
    let json = "content-type: application/json";
    let (status, _, body) = ask(address, "POST /v1/capture/file", &[&token, json], few);
    assert!(status == 403 && body.contains("web_capture = true"), "{body}");
    let allowed = watched(address).replace("web = ", "web_capture = true\nweb = ");
    let _: netvm_api::ApplyReply = daemon.post(path::APPLY, &allowed);
    daemon.until("the page may capture", |_| {
        TcpStream::connect(address).is_ok()
            && ask(address, "POST /v1/capture/file", &[&token, json], few).0 == 200
    });
    assert_eq!(ask(address, "POST /v1/capture/file", &[json], few).0, 401);
    assert_eq!(ask(address, "POST /v1/stop", &[&token], "").0, 403);
}

/// Packets in the file that a capture gives.
fn captured(daemon: &Daemon, request: &str) -> usize {
    let output = Command::new("curl")
        .args(["-s", "--unix-socket"])
        .arg(daemon.api_socket())
        .args(["-H", "content-type: application/json", "-d", request])
        .arg(format!("http://netvm{CAPTURE}"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    packets(&output.stdout)
}

/// Packets in a pcapng file.
fn packets(file: &[u8]) -> usize {
    let mut reader = pcap_file::pcapng::PcapNgReader::new(file).unwrap();
    let mut count = 0;
    while let Some(block) = reader.next_block() {
        count += usize::from(block.unwrap().0.into_enhanced_packet().is_some());
    }
    count
}

#[test]
fn the_page_captures_into_a_file_and_shows_what_is_wrong() {
    if !is_there("chromium") || !has_netvm() {
        return;
    }
    let address = free_address();
    let daemon = Daemon::start(&watched(address).replace("web = ", "web_capture = true\nweb = "));
    until_served(address);
    daemon.until_flowing("a");
    let downloads = tempfile::tempdir().unwrap();
    let url = format!("http://{address}/?tab=capture#token={}", token(&daemon));
    let mut browser = Browser::open(&url, downloads.path());
    let place = "document.querySelector('#capture option[value=\"port:a-in\"]')";
    browser.until(&format!("{place} !== null"), "document.body.textContent");
    let status = "document.querySelector('#capture [role=status]').textContent";
    let fill = |filter: &str| {
        format!(
            "const form = document.querySelector('#capture form'); form.at.value = 'port:a-in'; form.filter.value = '{filter}'; \
             form.packets.value = 25; form.seconds.value = 60; form.querySelector('button').click()"
        )
    };
    browser.value(&format!("{{ {} }}", fill("udp prt 9")));
    browser.until(&format!("{status}.includes('does not compile')"), status);
    browser.until(&format!("{status}.includes('^ here')"), status);
    browser.value(&format!("{{ {} }}", fill("udp")));
    browser.until(&format!("{status}.includes('25 packets in netvm-')"), status);
    daemon.until("the file is saved", |_| {
        let files: Vec<_> = std::fs::read_dir(downloads.path()).unwrap().flatten().collect();
        let whole = files.iter().find(|file| file.path().extension().is_some_and(|end| end == "pcapng"));
        whole.is_some_and(|file| packets(&std::fs::read(file.path()).unwrap()) == 25)
    });
}

/// Answers of a netvmd, grown to 500 ports, 100 chains and as many rules.
fn grown(daemon: &Daemon) -> Router {
    let read = |path: &str| daemon.get::<Value>(path);
    let (mut stats, mut config, mut policy) = (read(path::STATS), read(path::CONFIG), read(path::POLICY));
    let grow = |list: &mut Value, count: usize, name: fn(usize) -> String| {
        let list = list.as_array_mut().unwrap();
        let model = list[0].clone();
        *list = (0..count).map(|_| model.clone()).collect();
        for (n, item) in list.iter_mut().enumerate() {
            item["name"] = name(n).into();
            item["id"] = n.into();
        }
    };
    for (list, name) in [(&mut stats["ports"], "ports"), (&mut config["config"]["port"], "config")] {
        assert!(!list[0].is_null(), "{name}");
        grow(list, 500, |n| format!("port{n}"));
    }
    grow(&mut stats["chains"], 100, |n| format!("chain{n}"));
    grow(&mut config["config"]["chain"], 100, |n| format!("chain{n}"));
    grow(&mut policy["rules"], 100, |n| format!("rule{n}"));
    grow(&mut config["config"]["rule"], 100, |n| format!("rule{n}"));
    for n in 0..100 {
        config["config"]["rule"][n] =
            json!({"name": format!("rule{n}"), "from": format!("port{n}"), "chain": format!("chain{n}")});
        config["config"]["chain"][n]["output"] = format!("port{}", n + 250).into();
    }
    let turn = Arc::new(AtomicU64::new(0));
    let counted = move || {
        let mut stats = stats.clone();
        let now = turn.fetch_add(1, Ordering::Relaxed) + 1;
        stats["uptime_s"] = now.into();
        for (n, port) in stats["ports"].as_array_mut().unwrap().iter_mut().enumerate() {
            port["rx_packets"] = (now * (n as u64 + 1) * 1000).into();
        }
        async move { Json(stats) }
    };
    // A picture that comes late: the browser ends when the page has loaded.
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/web/index.html")).unwrap();
    let page = page.replace("</body>", "<img src=\"/late\" alt=\"\"></body>");
    let fixed = |value: Value| get(move || async move { Json(value) });
    let file = |name: &str, kind: &'static str| {
        let text = std::fs::read_to_string(format!("{}/web/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        get(move || async move { ([("content-type", kind)], text) })
    };
    Router::new()
        .route(path::STATS, get(counted))
        .route(path::CONFIG, fixed(config))
        .route(path::POLICY, fixed(policy))
        .route(path::STATUS, fixed(read(path::STATUS)))
        .route(path::ROUTERS, fixed(json!([])))
        .route(path::EVENTS, fixed(json!([])))
        .route("/", get(move || async move { ([("content-type", "text/html")], page) }))
        .route(
            "/late",
            get(|| async {
                tokio::time::sleep(Duration::from_secs(6)).await;
            }),
        )
        .route("/web/app.js", file("app.js", "text/javascript"))
        .route("/web/capture.js", file("capture.js", "text/javascript"))
        .route("/web/graph.js", file("graph.js", "text/javascript"))
        .route("/web/trace.js", file("trace.js", "text/javascript"))
        .route("/web/style.css", file("style.css", "text/css"))
}

#[test]
fn the_page_draws_500_ports_and_100_chains_without_a_stutter() {
    if !is_there("chromium") {
        return;
    }
    let daemon = Daemon::start(&config(&["a"]));
    daemon.until_flowing("a");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let router = grown(&daemon);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, router).await.unwrap();
        });
    });
    let page = browse(address, "", "graph", &[]);
    assert!(
        page.contains("aria-label=\"port port499\"") && page.contains("aria-label=\"chain chain99\""),
        "{page}"
    );
    let figure = |name: &str| -> f64 {
        let rest = page.split(&format!("{name}=\"")).nth(1).unwrap_or_default();
        rest.split('"').next().unwrap_or_default().parse().unwrap_or(f64::MAX)
    };
    let (first, later) = (figure("data-first"), figure("data-draw"));
    println!("first drawing {first:.0} ms, a reading {later:.1} ms");
    // A frame is 16 ms on an idle machine; here tests run beside it.
    assert!(later < 100.0 && first < 3000.0, "{first} {later}");
}
