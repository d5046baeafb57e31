// SPDX-License-Identifier: Apache-2.0
//! Packet capture on a running netvmd: each capture point shows the sent packets, byte for byte.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;
mod delays;
mod device;
mod drops;
mod ends;
mod extcap;
mod points;
mod rights;
#[allow(dead_code, reason = "the tests of routers use the rest")]
#[path = "../routers/site.rs"]
mod router_site;
mod trace;

use std::path::Path;
use std::time::Duration;

use common::captured::{Captured, gather, read};
use common::hosts::{Host, are_possible};
use common::{ADAPTIVE, Daemon, Forward, PROGRAM, engine, program};
use netlib::{Burst, NetworkFunction, Options, Packet, Verdict};
use netvm_api::{CaptureRequest, Client, FilterProgram};
use netvm_capture_client::{Limits, Output, Session, SessionError, Target, compile, run};
use netvm_vnet::{SocketOptions, packet_socket};
use pcap_file::pcapng::PcapNgReader;
use pcap_file::pcapng::blocks::Block;

const FRAMES: usize = 300;
/// The first byte of a payload that ends an NF.
const FATAL: u8 = 77;
/// Bytes of headers before the payload.
const HEADERS: usize = 42;

/// Drops packets whose payload begins with a multiple of 3.
struct DropsSome;

impl NetworkFunction for DropsSome {
    fn packet(&mut self, packet: &mut Packet<'_>) -> Verdict {
        if packet.data()[HEADERS].is_multiple_of(3) { Verdict::Drop } else { Verdict::Next }
    }
}

/// Ends at packets whose payload begins with 77.
struct EndsAt;

impl NetworkFunction for EndsAt {
    fn packet(&mut self, packet: &mut Packet<'_>) -> Verdict {
        if packet.data().get(HEADERS) == Some(&FATAL) {
            std::process::abort();
        }
        Verdict::Next
    }
}

/// Not a test: runs as an NF if the environment says so.
#[test]
fn be_the_program() {
    match std::env::var(PROGRAM).as_deref() {
        Ok("ends-at") => netlib::run(&Options::new("nf"), |_| EndsAt).unwrap(),
        Ok("copies") => netlib::run(&Options::new("nf"), |_| trace::made::Copies).unwrap(),
        Ok("drops-some") => netlib::run(&Options::new("nf"), |_| DropsSome).unwrap(),
        Ok(_) => netlib::run(&Options::new("nf"), |_| Forward).unwrap(),
        Err(_) => {}
    }
}

/// UDP over IPv4, to port 9 or 4000, with a payload that differs from frame to frame.
fn frames(count: usize) -> Vec<Vec<u8>> {
    let frame = |n: usize| {
        let length = 20 + n * 37 % 1400;
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
        frame.extend([0x45, 0]);
        frame.extend(((28 + length) as u16).to_be_bytes());
        frame.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2]);
        frame.extend(5000u16.to_be_bytes());
        frame.extend(if n.is_multiple_of(5) { 9u16 } else { 4000 }.to_be_bytes());
        frame.extend(((8 + length) as u16).to_be_bytes());
        frame.extend([0, 0]);
        frame.extend((0..length).map(|byte| (n + byte * 7) as u8));
        frame
    };
    (0..count).map(frame).collect()
}

fn is_blocked(frame: &[u8]) -> bool {
    frame[36..38] == 9u16.to_be_bytes()
}

fn is_refused(frame: &[u8]) -> bool {
    frame[HEADERS].is_multiple_of(3)
}

struct Site {
    left: Host,
    right: Host,
    daemon: Daemon,
}

impl Site {
    fn new(name: &str) -> Self {
        Self::with(name, "forward", "")
    }

    /// `first`: the program of the first hop; `more`: more of the configuration.
    fn with(name: &str, first: &str, more: &str) -> Self {
        Self::with_ports(name, first, more, "")
    }

    /// The same, with further keys of both ports.
    fn with_ports(name: &str, first: &str, more: &str, keys: &str) -> Self {
        let left = Host::new(&format!("{name}l"), &[], &[]);
        let right = Host::new(&format!("{name}r"), &[], &[]);
        let mut config = engine(ADAPTIVE) + "\n[[group]]\nname = \"g\"\nbuffers = 4096\n";
        for (port, host) in [("left", &left), ("right", &right)] {
            let interface = host.port();
            config += &format!(
                "[[port]]\nname = \"{port}\"\nkind = \"af_packet\"\ninterface = \"{interface}\"\n{keys}"
            );
        }
        for (role, kind) in [("first", first), ("second", "drops-some")] {
            config += &format!("[[nf]]\nrole = \"{role}\"\ngroup = \"g\"\n{}", program(kind));
        }
        config += "[[chain]]\nname = \"through\"\nhops = [\"first\", \"second\"]\noutput = \"right\"\n\
                   [[rule]]\nname = \"blocked\"\nfrom = \"left\"\n\
                   match = { protocol = \"udp\", destination_ports = 9 }\ndrop = true\n\
                   [[rule]]\nname = \"all\"\nfrom = \"left\"\nchain = \"through\"\n";
        config += more;
        let daemon = Daemon::start(&config);
        daemon.until_running("first");
        daemon.until_running("second");
        Self { left, right, daemon }
    }

    fn client(&self) -> Client {
        Client::new(Some(&self.daemon.api_socket()))
    }

    fn start(&self, request: &CaptureRequest) -> Result<Session, SessionError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(Session::start(&self.client(), request))
    }

    /// Sends frames from the left host, slowly enough for a slow machine.
    fn send(&self, frames: Vec<Vec<u8>>) {
        let send = move || {
            let options = SocketOptions { interface: "eth0".to_owned(), queues: 1 };
            let socket = packet_socket::open(&options).unwrap().queues.remove(0);
            for (n, frame) in frames.iter().enumerate() {
                // Before the frame, a header without offload work.
                netvm_testing::until("a frame is sent", || {
                    rustix::io::write(&socket, &[&[0; 10][..], frame].concat()).is_ok()
                });
                if n % 16 == 15 {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        };
        self.left.inside(send).join().unwrap();
    }
}

fn request(at: &[&str], filter: &str) -> CaptureRequest {
    CaptureRequest {
        at: at.iter().map(|&point| point.to_owned()).collect(),
        filter: compile(filter).unwrap(),
        ..CaptureRequest::default()
    }
}

/// A filter of as many divisions as one may have, with this result: how many bytes to capture.
fn divisions(result: u32) -> FilterProgram {
    let mut filter = vec![(0x01, 0, 0, 3)];
    filter.extend(vec![(0x3c, 0, 0, 0); 4094]);
    filter.push((0x06, 0, 0, result));
    filter
}

const MARKED: &str = "udp and src port 5000 and host 10.9.0.2";
