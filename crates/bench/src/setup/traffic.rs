// SPDX-License-Identifier: Apache-2.0
//! The traffic of comparisons, the same for all sides: see `peer/traffic/traffic.c` for its contents and how a port
//! receives it.

use std::path::Path;
use std::process::Command;

use crate::error::BenchError;

/// The plug-in with which other DPDK programs get this traffic (`-d`).
pub const PLUGIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/traffic.so"));

/// The flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Their number, repeated in order; `None`: no flow repeats.
    pub flows: Option<u64>,
    /// Each flow has a different source MAC address.
    pub new_macs: bool,
    /// Who sends.
    pub turns: Turns,
}

/// Who sends. The numbers are those of `peer/traffic/traffic.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Turns {
    /// One end of each flow.
    #[default]
    OneWay = 0,
    /// One end of each flow, then the other end of each.
    BothWays = 1,
    /// The same in every other packet; between them TCP connections that open and close, and never repeat.
    BesideNew = 2,
}

impl Turns {
    /// Packets of a TCP connection that opens and closes.
    pub const STEPS: u64 = 6;
}

/// As in `peer/traffic/traffic.h`.
#[repr(C)]
struct Options {
    flows: u64,
    new_macs: u32,
    destinations: *const u32,
    turns: u32,
}

unsafe extern "C" {
    fn netvm_bench_traffic_attach(options: *const Options) -> i32;
    fn netvm_bench_traffic_detach();
}

impl Traffic {
    /// `flows` flows with one source MAC address.
    pub const fn of(flows: u64) -> Self {
        Self { flows: Some(flows), new_macs: false, turns: Turns::OneWay }
    }

    /// `flows` connections, in the way that `turns` says.
    pub const fn of_connections(flows: u64, turns: Turns) -> Self {
        Self { flows: Some(flows), new_macs: false, turns }
    }

    /// Makes this process's null port receive the traffic until the result is dropped.
    ///
    /// # Errors
    /// DPDK's error: no null port exists, or it has the traffic already.
    pub fn attach(self) -> Result<Attached, BenchError> {
        attach(&Options {
            flows: self.flows.unwrap_or(0),
            new_macs: self.new_macs.into(),
            destinations: std::ptr::null(),
            turns: self.turns as u32,
        })
    }

    /// As [`Traffic::attach`], with a flow from 10.0.0.0/8 to each of these addresses (in network order).
    ///
    /// # Errors
    /// As [`Traffic::attach`].
    pub fn attach_to(destinations: &'static [u32]) -> Result<Attached, BenchError> {
        let flows = destinations.len() as u64;
        let destinations = destinations.as_ptr();
        attach(&Options { flows, new_macs: 0, destinations, turns: Turns::OneWay as u32 })
    }

    /// Sets the environment of a program that loads the plug-in. The plug-in creates `ready` when the traffic is
    /// attached.
    pub fn describe(self, command: &mut Command, ready: &Path) {
        command.env("NETVM_BENCH_FLOWS", self.flows.unwrap_or(0).to_string());
        command.env("NETVM_BENCH_READY", ready);
        command.env("NETVM_BENCH_TURNS", (self.turns as u32).to_string());
        if self.new_macs {
            command.env("NETVM_BENCH_NEW_MACS", "1");
        }
    }
}

/// The addresses, if any, must have a static lifetime, and their number must be the number of flows.
fn attach(options: &Options) -> Result<Attached, BenchError> {
    // SAFETY: the structure matches the header and is copied during the call; both callers meet the requirement for the
    // addresses. DPDK permits adding receive callbacks while another thread receives.
    let port = unsafe { netvm_bench_traffic_attach(std::ptr::from_ref(options)) };
    match port {
        0.. => Ok(Attached(())),
        error => Err(BenchError::System {
            what: "cannot attach traffic to DPDK's null port".to_owned(),
            source: std::io::Error::from_raw_os_error(-error),
        }),
    }
}

/// Attached traffic. Drop before the port.
#[derive(Debug)]
pub struct Attached(());

impl Drop for Attached {
    fn drop(&mut self) {
        // SAFETY: no arguments; the callback's code stays loaded, so a running burst completes.
        unsafe { netvm_bench_traffic_detach() };
    }
}

/// The frame of a flow, followed by four bytes.
#[cfg(test)]
pub fn frame(flow: u64, new_macs: bool) -> [u8; 64] {
    frame_to(flow, new_macs, None)
}

/// The same with a destination.
#[cfg(test)]
fn frame_to(flow: u64, new_macs: bool, destination: Option<u32>) -> [u8; 64] {
    unsafe extern "C" {
        fn netvm_bench_traffic_frame(frame: *mut [u8; 64], flow: u64, new_macs: u32, destination: *const u32);
    }
    let mut frame = [0xff; 64];
    let destination = destination.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the call writes 64 bytes, as the header says; the destination is valid or null.
    unsafe { netvm_bench_traffic_frame(&raw mut frame, flow, new_macs.into(), destination) };
    frame
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{Turns, frame, frame_to};

    /// The frame of a step of a TCP connection.
    fn step_of(connection: u64, step: u32) -> [u8; 64] {
        unsafe extern "C" {
            fn netvm_bench_traffic_step(frame: *mut [u8; 64], connection: u64, step: u32);
        }
        let mut frame = [0xff; 64];
        assert!(u64::from(step) < Turns::STEPS);
        // SAFETY: the call writes 64 bytes, as the header says, for a step that there is.
        unsafe { netvm_bench_traffic_step(&raw mut frame, connection, step) };
        frame
    }

    fn sum(words: &[u8]) -> u32 {
        let sum: u32 =
            words.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        (sum & 0xffff) + (sum >> 16)
    }

    #[test]
    fn a_connection_opens_and_closes_with_right_checksums() {
        for connection in (0..2000).chain([1 << 40]) {
            let frames: Vec<_> = (0..Turns::STEPS as u32).map(|step| step_of(connection, step)).collect();
            let flags: Vec<u8> = frames.iter().map(|frame| frame[47]).collect();
            assert_eq!(flags, [2, 18, 16, 17, 17, 16], "SYN, SYN and ACK, ACK, FIN and ACK twice, ACK");
            let numbers: Vec<[u8; 2]> = frames.iter().map(|frame| [frame[41], frame[45]]).collect();
            assert_eq!(numbers, [[0, 0], [0, 1], [1, 1], [1, 1], [1, 2], [2, 2]]);
            for (frame, answers) in frames.iter().zip([false, true, false, false, true, false]) {
                assert_eq!((frame[17], frame[23], frame[46]), (40, 6, 0x50));
                assert_eq!(sum(&frame[14..34]), 0xffff);
                let pseudo = sum(&[0, 6, 0, 20]) + sum(&frame[26..34]);
                let all = pseudo + sum(&frame[34..54]);
                assert_eq!((all & 0xffff) + (all >> 16), 0xffff, "RFC 9293 section 3.1");
                let ends = |at: usize, length: usize| frame[at..at + length].to_vec();
                let [from, to] = if answers { [30, 26] } else { [26, 30] };
                assert_eq!(
                    (ends(from, 4), ends(to, 4)),
                    (frames[0][26..30].into(), frames[0][30..34].into())
                );
            }
        }
    }

    #[test]
    fn frames_are_well_formed() {
        let to = u32::from_ne_bytes([192, 0, 2, 9]);
        for flow in (0..2000).chain([u64::MAX]) {
            let routed = frame_to(flow, false, Some(to));
            assert_eq!((routed[26], &routed[30..34]), (10, &[192, 0, 2, 9][..]));
            check(&routed);
            check(&frame(flow, false));
        }

        fn check(frame: &[u8; 64]) {
            assert_eq!(frame[..14], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
            let word = |at: usize| u32::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
            let sum: u32 = (14..34).step_by(2).map(word).sum();
            assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "RFC 1071: the sum over a header is all ones");
            assert_eq!((word(16), word(38)), (46, 26), "lengths of IP and UDP");
            assert!(word(34) >= 1024 && word(36) >= 1024);
        }
    }

    #[test]
    fn flows_differ_and_macs_only_on_request() {
        let flows: HashSet<_> = (0..50_000).map(|flow| frame(flow, false)).collect();
        assert_eq!(flows.len(), 50_000);
        let macs: HashSet<_> = (0..50_000).map(|flow| frame(flow, true)[6..12].to_vec()).collect();
        assert_eq!(macs.len(), 50_000);
        assert!(macs.iter().all(|mac| mac[0] == 2), "unicast, locally administered");
        assert_eq!(frame(7, true)[..6], frame(7, false)[..6]);
        assert_eq!(frame(7, true)[12..], frame(7, false)[12..]);
    }
}
