// SPDX-License-Identifier: Apache-2.0
//! `netvm vm` against a server with canned answers and a fake console.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Stdio;

use crate::common::{Run, Server, folder, program, run};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use netvm_api::{ApiError, Done, StopVm, VmInfo, VmManualStart, VmState, path};
use netvm_model::VmAccel;

fn vm(name: &str, console: PathBuf) -> VmInfo {
    VmInfo {
        name: name.into(),
        state: VmState::Running,
        role: None,
        ports: vec!["guest1".into(), "guest2".into()],
        macs: vec!["02:00:00:00:00:01".into(), "02:00:00:00:00:02".into()],
        memory: 512,
        cpus: 2,
        accel: VmAccel::KvmOrTcg,
        pid: Some(77),
        uptime_s: Some(61.0),
        restarts: 3,
        resets: 1,
        last_exit: Some("killed by signal 9".into()),
        trouble: None,
        adopted: true,
        outdated: true,
        console,
    }
}

fn server(console: PathBuf) -> Server {
    let nf = VmInfo {
        state: VmState::Stopped,
        role: Some("firewall".into()),
        ports: Vec::new(),
        pid: None,
        uptime_s: None,
        last_exit: None,
        trouble: Some("its NF firewall has not attached within 60 s".into()),
        ..vm("scan", console.clone())
    };
    let vms = vec![vm("web1", console), nf];
    let manual_start = VmManualStart {
        command: vec!["qemu".into(), "-append".into(), "a b".into()],
        shell: "qemu -append 'a b'".into(),
        libvirt_xml: "<domain/>\n".into(),
    };
    let missing = || async { (StatusCode::NOT_FOUND, Json(ApiError::new("there is no VM `web1`"))) };
    Server::start(
        Router::new()
            .route(path::VMS, get(|| async { Json(vms) }))
            .route(path::VM_MANUAL_START, get(|| async { Json(manual_start) }))
            .route(path::VM_START, post(missing))
            .route(
                path::VM_STOP,
                post(|Json(StopVm { force }): Json<StopVm>| async move {
                    Json(Done { message: format!("vm web1: stopped, force {force}") })
                }),
            ),
    )
}

fn netvm(server: &Server, arguments: &[&str]) -> Run {
    run(program().arg("--socket").arg(server.socket()).arg("vm").args(arguments))
}

#[test]
fn machines_are_listed_started_stopped_and_printed() {
    let server = server("/nonexistent".into());
    let table = netvm(&server, &["list"]).good();
    let rows: Vec<String> =
        table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(
        rows[1], "web1 running, outdated guest1,guest2 2 512 77 1 min 1 s 3 1 killed by signal 9",
        "{table}"
    );
    assert_eq!(rows[2], "scan stopped nf firewall 2 512 - - 3 1 -", "{table}");
    assert_eq!(rows[3], "scan: its NF firewall has not attached within 60 s", "{table}");
    let json: Vec<VmInfo> = serde_json::from_str(&netvm(&server, &["list", "--json"]).good()).unwrap();
    assert_eq!(json[0].macs.len(), 2);
    assert_eq!(netvm(&server, &["stop", "web1"]).good(), "vm web1: stopped, force false\n");
    assert_eq!(netvm(&server, &["stop", "web1", "--force"]).good(), "vm web1: stopped, force true\n");
    assert!(netvm(&server, &["start", "web1"]).failed(1).contains("there is no VM `web1`"));
    assert_eq!(netvm(&server, &["args", "web1"]).good(), "qemu -append 'a b'\n");
    let words: Vec<String> =
        serde_json::from_str(&netvm(&server, &["args", "web1", "--json"]).good()).unwrap();
    assert_eq!(words[2], "a b");
    assert_eq!(netvm(&server, &["libvirt-xml", "web1"]).good(), "<domain/>\n");
}

#[test]
fn a_console_copies_both_ways_and_detaches_by_key() {
    let folder = folder();
    let socket = folder.path().join("serial.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = server(socket);
    let guest = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        stream.write_all(b"login: ").unwrap();
        let mut typed = Vec::new();
        stream.read_to_end(&mut typed).unwrap();
        typed
    });
    let mut command = program();
    command.arg("--socket").arg(server.socket()).args(["vm", "console", "web1"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut shown = [0; 7];
    child.stdout.as_mut().unwrap().read_exact(&mut shown).unwrap();
    assert_eq!(&shown, b"login: ");
    // The detach key and the bytes after it do not reach the guest.
    child.stdin.as_mut().unwrap().write_all(b"root\r\x1dmore").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(guest.join().unwrap(), b"root\r");

    let error = netvm(&server, &["console", "nobody"]).failed(1);
    assert!(error.contains("no VM `nobody`; known: web1, scan"), "{error}");
    std::fs::remove_file(folder.path().join("serial.sock")).unwrap();
    let error = netvm(&server, &["console", "web1"]).failed(1);
    assert!(error.contains("it exists while the VM runs"), "{error}");
}
