// SPDX-License-Identifier: Apache-2.0
//! Rights to capture.

use std::os::unix::process::CommandExt;
use std::process::Command;

use super::*;
use common::hosts::succeeds;

/// A group that no user of this machine needs to have.
const GROUP: u32 = 54_321;
const USER: u32 = 65_534;

/// The status of a request by a user of a group; 0 if it may not connect.
fn status(socket: &Path, group: u32, words: &[&str]) -> u32 {
    let mut command = Command::new("curl");
    command.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "--unix-socket"]).arg(socket).args(words);
    let output = command.uid(USER).gid(group).output().unwrap();
    String::from_utf8(output.stdout).unwrap().parse().unwrap()
}

#[test]
fn a_group_may_capture_and_change_nothing() {
    if !are_possible() {
        return;
    }
    if !succeeds("curl --version") {
        println!("SKIP: no curl");
        return;
    }
    let site = Site::with("cg", "forward", &format!("[api]\ncapture_group = \"{GROUP}\"\n"));
    let socket = site.daemon.folder.run_dir().join(netvm_api::group_socket(netvm_api::Role::Capture));
    site.daemon.until("the socket is there", |daemon| daemon.log().contains("may capture by"));
    let ports = "http://netvm/v1/ports";
    assert_eq!(status(&site.daemon.api_socket(), GROUP, &[ports]), 0);
    assert_eq!(status(&socket, GROUP + 1, &[ports]), 0);
    assert_eq!(status(&socket, GROUP, &[ports]), 200);
    // 426: only the upgrade is missing.
    assert_eq!(status(&socket, GROUP, &["-X", "POST", "-d", "{}", "http://netvm/v1/capture"]), 426);
    // 422: it may trace, but not no packets.
    let none = ["-H", "content-type: application/json", "-d", "{\"packets\": 0}", "http://netvm/v1/trace"];
    assert_eq!(status(&socket, GROUP, &none), 422);
    assert_eq!(status(&socket, GROUP, &["-X", "POST", "-d", "{}", "http://netvm/v1/stop"]), 403);
    assert_eq!(status(&socket, GROUP, &["-X", "DELETE", "http://netvm/v1/policy/rules/all"]), 403);
    // A path that no table lists is for administrators.
    assert_eq!(status(&socket, GROUP, &["-X", "PUT", "http://netvm/v1/ports"]), 403);
    // A capture on this socket.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = Client::new(Some(&socket));
    let session = runtime.block_on(Session::start(&client, &request(&["left"], MARKED))).unwrap();
    let file = site.daemon.folder.0.join("group.pcapng");
    let reader = gather(session, 20, &file);
    site.send(frames(20));
    assert_eq!(reader.join().unwrap().packets, 20);
}

/// Sent frames of a port within a second.
fn sent(daemon: &Daemon, port: &str) -> u64 {
    let count = || {
        let ports: Vec<netvm_api::PortInfo> = daemon.get(netvm_api::path::PORTS);
        ports.into_iter().find(|info| info.name == port).unwrap().tx_packets
    };
    let before = count();
    std::thread::sleep(Duration::from_secs(1));
    count() - before
}

#[test]
fn a_capture_has_its_share_of_time_and_memory() {
    let mut daemon = Daemon::start(&format!(
        "[engine]\nidle = \"adaptive\"\nhuge_pages = false\n[api]\ncapture_group = \"{GROUP}\"\n\
         [[port]]\nname = \"in\"\nkind = \"source\"\nsize = 60\n[[port]]\nname = \"out\"\nkind = \"sink\"\n\
         [[rule]]\nfrom = \"in\"\nout = \"out\"\n"
    ));
    let socket = daemon.folder.run_dir().join(netvm_api::group_socket(netvm_api::Role::Capture));
    daemon.until("the socket is there", |daemon| daemon.log().contains("may capture by"));
    let client = Client::new(Some(&socket));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let start = |request: &CaptureRequest| runtime.block_on(Session::start(&client, request));
    let large = CaptureRequest { buffer: 1 << 40, ..CaptureRequest::default() };
    let error = start(&large).err().unwrap().to_string();
    assert!(error.contains("the limit is 256 MiB"), "{error}");
    let alone = sent(&daemon, "out");
    // It accepts nothing.
    let session = start(&CaptureRequest { filter: divisions(0), ..CaptureRequest::default() }).unwrap();
    daemon.until("other traffic is not slowed down much", |daemon| sent(daemon, "out") > alone / 2);
    let mut output = Output::open(Target::Lines).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(true);
    let summary = run(session, &mut output, Limits { packets: None, stop: Some(&stop) }).unwrap();
    assert_eq!(summary.packets, 0);
    assert!(summary.missed > summary.seen / 2 && summary.missed < summary.seen, "{summary:?}");
    // The captures of a user are counted until they end.
    let all: Vec<Session> = (0..4).map(|_| start(&CaptureRequest::default()).unwrap()).collect();
    let error = start(&CaptureRequest::default()).err().unwrap().to_string();
    assert!(error.contains("4 captures run already, which is the limit of this user"), "{error}");
    drop(all);
    daemon.until("they have ended", |_| start(&CaptureRequest::default()).is_ok());
    daemon.signal(rustix::process::Signal::TERM);
    daemon.wait();
    assert!(!socket.exists(), "the socket stays behind");
}
