// SPDX-License-Identifier: Apache-2.0
//! Captures: of the underlay by tcpdump, and at ports of netvmd; tshark reads both.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use netvm_api::{CaptureRequest, Client};
use netvm_capture_client::{Session, Summary, compile};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::super::super::common::Daemon;
use super::super::super::common::captured::gather;
use super::super::super::common::hosts::within;
use super::super::TIMEOUT;
use super::super::fabric::Spine;

/// A capture of the underlay at a spine.
pub struct Capture {
    child: Child,
    pub file: PathBuf,
}

impl Capture {
    pub fn start(spine: &Spine) -> Self {
        let file = std::env::temp_dir().join(format!("{}.pcap", spine.host.namespace()));
        let mut command = Command::new("ip");
        command.args(["netns", "exec", spine.host.namespace(), "tcpdump", "-U"]);
        // In immediate mode, the kernel's ring has room for few packets of tcpdump's usual length.
        command
            .args(["--immediate-mode", "-s", "2048", "-B", "8192", "-i", "any", "-Q", "in", "-w"])
            .arg(&file)
            .arg("udp port 4789")
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().unwrap();
        assert!(within(TIMEOUT, || std::fs::metadata(&file).is_ok_and(|file| file.len() > 0)));
        Self { child, file }
    }

    /// Ends it, unless it has ended.
    fn stop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
            self.child.wait().unwrap();
        }
    }

    /// Ends it, and returns what tshark says of the packets that a filter selects.
    pub fn end(&mut self, filter: &str, field: &str) -> Vec<String> {
        self.stop();
        let mut tshark = Command::new("tshark");
        tshark.arg("-r").arg(&self.file).args(["-Y", filter, "-T", "fields", "-e", field]);
        let output = tshark.output().unwrap();
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.stop();
        let _ = std::fs::remove_file(&self.file);
    }
}

/// An innermost frame, and the VNI of the headers before it.
#[derive(Debug, PartialEq, Eq)]
pub struct Inner {
    pub vni: Option<u32>,
    pub frame: Vec<u8>,
}

/// The frames that tshark finds in a file of packets.
pub fn decoded(file: &Path, filter: &str) -> Vec<Inner> {
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(file).args(["-Y", filter, "-T", "jsonraw", "--no-duplicate-keys", "-j", "vxlan"]);
    // Of a file whose last packet is just written, the text may have no end.
    let packets: Vec<Value> = serde_json::from_slice(&tshark.output().unwrap().stdout).unwrap_or_default();
    packets.iter().map(|packet| inner(&packet["_source"]["layers"])).collect()
}

fn inner(layers: &Value) -> Inner {
    let bytes = hex(&layers["frame_raw"][0]);
    // With an Ethernet header before and one within, both are there.
    let ethernet = &layers["eth_raw"];
    let last =
        if ethernet[0].is_array() { &ethernet[ethernet.as_array().unwrap().len() - 1] } else { ethernet };
    let from = last[1].as_u64().unwrap() as usize;
    let vni = &layers["vxlan"]["vxlan.vni_raw"][0];
    let vni = vni.is_string().then(|| hex(vni).iter().fold(0, |vni, byte| vni << 8 | u32::from(*byte)));
    Inner { vni, frame: bytes[from..].to_vec() }
}

fn hex(text: &Value) -> Vec<u8> {
    let text = text.as_str().unwrap();
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// Packets of a port that a filter selects.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    pub port: &'a str,
    pub filter: &'a str,
    pub packets: usize,
}

/// Captures packets in a file.
pub fn at_port(daemon: &Daemon, wanted: &Wanted<'_>, file: &Path) -> JoinHandle<Summary> {
    let Wanted { port, filter, packets } = *wanted;
    let request = CaptureRequest {
        at: vec![port.to_owned()],
        filter: compile(filter).unwrap(),
        ..CaptureRequest::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = Client::new(Some(&daemon.api_socket()));
    let session = runtime.block_on(Session::start(&client, &request)).unwrap();
    gather(session, packets, file)
}
