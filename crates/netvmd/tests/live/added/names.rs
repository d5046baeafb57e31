// SPDX-License-Identifier: Apache-2.0
//! Labels of a container's port where packets of the container are shown: `netvm port`, `top`, `flow list`, `conn
//! list`, captures, and records of flows.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use super::{add, remove};
use crate::common::hosts::{self, Host};
use crate::common::{Daemon, ENGINE, Folder};

/// What netvm-cni gives a pod's port, with an annotation for the image.
const LABELS: &str = "app=web image=docker.io/library/nginx:1.27 network=pods pod=front";

/// A port of a container, with or without labels.
fn container(name: &str, host: &Host, last: u8) -> String {
    let labels = LABELS.split(' ').filter_map(|label| label.split_once('='));
    let labels: Vec<String> = labels.map(|(key, value)| format!("{key} = \"{value}\"")).collect();
    let labels = if last == 1 { labels.join(", ") } else { String::new() };
    format!(
        "name = \"{name}\"\nkind = \"container\"\nnamespace = \"{}\"\naddresses = [\"10.94.0.{last}/24\"]\n\
         forward = {{ normal = true }}\ntrack = true\nlabels = {{ {labels} }}",
        host.namespace()
    )
}

fn netvm(daemon: &Daemon) -> Command {
    let program: PathBuf = Path::new(env!("CARGO_BIN_EXE_netvmd")).with_file_name("netvm");
    let mut command = Command::new(program);
    command.arg("--socket").arg(daemon.api_socket()).env("COLUMNS", "200");
    command
}

/// What a command of netvm prints.
fn said(daemon: &Daemon, words: &[&str]) -> String {
    let output = netvm(daemon).args(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A capture of so many packets at the container's port.
fn capture(daemon: &Daemon, more: &[&str], traffic: impl Fn() -> bool) -> Vec<u8> {
    let mut command = netvm(daemon);
    command.args(["capture", "--at", "front-1f0c52aa", "-c", "2"]).args(more).arg("icmp");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It begins when it does; pings go on until it has what it wants.
    assert!(hosts::within(std::time::Duration::from_secs(30), || {
        assert!(traffic());
        child.try_wait().unwrap().is_some()
    }));
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[test]
fn labels_of_a_container_are_shown_wherever_its_packets_are() {
    if !hosts::are_possible() {
        return;
    }
    if !Path::new(env!("CARGO_BIN_EXE_netvmd")).with_file_name("netvm").is_file() {
        println!("SKIP: no program netvm beside netvmd");
        return;
    }
    let (front, other) = (Host::bare("nf"), Host::bare("no"));
    let folder = Folder::new();
    let eve = folder.config().with_file_name("eve.json");
    let monitor = format!("huge_pages = false\nflow_monitor = {{ eve = {eve:?}, idle_timeout = 1 }}\n");
    let engine = ENGINE.replace("huge_pages = false\n", &monitor);
    let mut daemon = Daemon::start_in(folder.into(), &engine);
    add(&daemon, "1", &container("front-1f0c52aa", &front, 1));
    add(&daemon, "2", &container("other", &other, 2));
    let pings = || front.pings("10.94.0.2");
    daemon.until("they reach each other", |_| pings());

    let row_of = |text: &str, flow: &str| {
        text.lines().find(|line| line.contains("front-1f0c52aa") && line.contains(flow)).map(str::to_owned)
    };
    for (words, flow) in [
        (&["port"][..], LABELS),
        (&["top", "--once", "--interval", "0.1"], "up"),
        (&["flow", "list"], "10.94.0.1"),
        (&["conn", "list"], "10.94.0.1"),
    ] {
        daemon.until("its row has the labels", |daemon| {
            assert!(pings());
            let text = said(daemon, words);
            let row = row_of(&text, flow);
            assert!(row.as_ref().is_none_or(|row| row.contains(LABELS)), "{words:?}: {text}");
            row.is_some()
        });
    }
    let top: Value = serde_json::from_str(&said(&daemon, &["--json", "top", "--once"])).unwrap();
    let port = top["ports"].as_array().unwrap().iter().find(|port| port["name"] == "front-1f0c52aa");
    assert_eq!(port.unwrap()["labels"]["image"], "docker.io/library/nginx:1.27");
    let flows: Value = serde_json::from_str(&said(&daemon, &["--json", "flow", "list"])).unwrap();
    assert_eq!(flows["port_labels"]["front-1f0c52aa"]["pod"], "front", "{flows}");
    assert!(flows["port_labels"].get("other").is_none(), "{flows}");

    let text = String::from_utf8(capture(&daemon, &[], pings)).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert_eq!(lines[0], format!("port front-1f0c52aa is {LABELS}"));
    assert!(lines[1].contains(" front-1f0c52aa "), "{text}");
    let file = capture(&daemon, &["-w", "-"], pings);
    let description = format!("port front-1f0c52aa, {LABELS}");
    assert!(file.windows(description.len()).any(|bytes| bytes == description.as_bytes()));

    // Its flows end after it is gone, and have its name.
    assert_eq!(remove(&daemon, "1").0, 200);
    let has_labels = || {
        let text = std::fs::read_to_string(&eve).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines
            .filter(|line| line["in_iface"] == "front-1f0c52aa")
            .any(|line| line["in_labels"]["pod"] == "front")
    };
    daemon.until("its records have its labels", |_| has_labels());
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().success());
}
