// SPDX-License-Identifier: Apache-2.0
//! Each method, to the packet: in a network namespace, from a packet socket at the other end of a
//! veth pair.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::ffi::CStr;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

const PACKETS: u64 = 3000;
const FLOWS: u64 = 50;
const LENGTH: usize = 100;

/// Runs a test in a network namespace of a thread's own.
fn isolated(body: fn()) {
    let enter = move || {
        // SAFETY: only this thread's network namespace changes; no descriptor table is unshared.
        if unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.is_err() {
            println!("SKIP: needs root (network namespaces)");
            return;
        }
        let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
        for line in ["link add near type veth peer name far", "link set near up", "link set far up"] {
            assert!(Command::new("ip").args(line.split(' ')).status().unwrap().success(), "{line}");
        }
        body();
    };
    std::thread::spawn(enter).join().unwrap();
}

/// A running program, and its output.
struct Program(Child, BufReader<ChildStdout>);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Program {
    fn start(method: &str, monitor: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_netvm-bench-receive"));
        command
            .args(["--method", method, "--monitor", monitor, "--interface", "near"])
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self(child, output)
    }

    /// The next report; `None` if the program has ended.
    fn report(&mut self) -> Option<Value> {
        let mut line = String::new();
        let length = self.1.read_line(&mut line).unwrap();
        (length > 0).then(|| serde_json::from_str(&line).unwrap())
    }
}

fn send_packets() {
    let mut frame = [0u8; LENGTH];
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    frame[16..18].copy_from_slice(&(LENGTH as u16 - 14).to_be_bytes());
    (frame[22], frame[23]) = (64, 17);
    frame[38..40].copy_from_slice(&(LENGTH as u16 - 34).to_be_bytes());
    let far = socket_on(c"far");
    for number in 0..PACKETS {
        frame[29] = (number % FLOWS) as u8;
        // SAFETY: the kernel reads the bytes of the frame.
        let sent = unsafe { libc::send(far.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, LENGTH as isize, "{}", std::io::Error::last_os_error());
        // Slow enough for every buffer.
        if number % 64 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn socket_on(interface: &CStr) -> OwnedFd {
    // SAFETY: zeros are a valid address of integers; the kernel reads as many bytes as it is told; the descriptor is
    // new.
    unsafe {
        let socket = OwnedFd::from_raw_fd(libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0));
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = libc::if_nametoindex(interface.as_ptr()) as i32;
        let size = size_of::<libc::sockaddr_ll>() as u32;
        assert_eq!(libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size), 0);
        socket
    }
}

/// Counts the test's packets, of `monitor`.
fn check(method: &str, monitor: &str) {
    let mut program = Program::start(method, monitor);
    let before = program.report().unwrap_or_else(|| panic!("{method} ended"));
    send_packets();
    let counted = |report: &Value, key: &str| report[key].as_u64().unwrap() - before[key].as_u64().unwrap();
    let report = netvm_testing::until_some("all packets are counted", || {
        let report = program.report().unwrap_or_else(|| panic!("{method} ended"));
        (counted(&report, "received") >= PACKETS).then_some(report)
    });
    assert_eq!(counted(&report, "received"), PACKETS, "{method}");
    assert_eq!(counted(&report, "bytes"), PACKETS * LENGTH as u64, "{method}");
    assert_eq!(counted(&report, "flows"), if monitor == "flow" { FLOWS } else { 0 }, "{method}");
    assert_eq!(report["dropped"], 0, "{method}");
}

#[test]
fn libpcap_counts_every_packet() {
    isolated(|| {
        check("libpcap", "null");
        check("libpcap", "flow");
    });
}

#[test]
fn tpacket_counts_every_packet() {
    isolated(|| {
        check("tpacket-v3", "null");
        check("tpacket-v3", "flow");
    });
}

#[test]
fn af_xdp_counts_every_packet() {
    isolated(|| {
        check("af-xdp", "null");
        check("af-xdp", "flow");
    });
}

#[test]
fn xdp_counts_every_packet() {
    isolated(|| {
        check("xdp", "null");
        check("xdp", "flow");
    });
}

#[test]
fn a_missing_interface_is_named() {
    for method in ["libpcap", "tpacket-v3", "af-xdp", "xdp"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_netvm-bench-receive"));
        let output = command.args(["--method", method, "--interface", "no-such-if"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("no-such-if"), "{method}: {said}");
    }
}
