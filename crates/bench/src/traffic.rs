//! The traffic of comparisons, the same for all sides: `peer/traffic.c` says what it is and how it gets into a port.

use std::path::Path;
use std::process::Command;

use crate::error::BenchError;

/// The shared object by which other programs on DPDK get this traffic (`-d`).
pub const PLUGIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/traffic.so"));

/// Which flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// How many, which come round in order; `None`: no flow ever comes again.
    pub flows: Option<u64>,
    /// Each flow has a source MAC address of its own.
    pub new_macs: bool,
}

/// As in `peer/traffic.h`.
#[repr(C)]
struct Options {
    flows: u64,
    new_macs: u32,
    destinations: *const u32,
}

unsafe extern "C" {
    fn netvm_bench_traffic_attach(options: *const Options) -> i32;
    fn netvm_bench_traffic_detach();
}

impl Traffic {
    /// So many flows, all of one source MAC address.
    pub const fn of(flows: u64) -> Self {
        Self { flows: Some(flows), new_macs: false }
    }

    /// What the null port of this process's engine receives, until the result is dropped.
    ///
    /// # Errors
    /// DPDK's; there is no null port, or one has the traffic already.
    pub fn attach(self) -> Result<Attached, BenchError> {
        attach(&Options {
            flows: self.flows.unwrap_or(0),
            new_macs: self.new_macs.into(),
            destinations: std::ptr::null(),
        })
    }

    /// As [`Traffic::attach`], with a flow to each of these addresses, in network order, from 10.0.0.0/8.
    ///
    /// # Errors
    /// As there.
    pub fn attach_to(destinations: &'static [u32]) -> Result<Attached, BenchError> {
        let flows = destinations.len() as u64;
        attach(&Options { flows, new_macs: 0, destinations: destinations.as_ptr() })
    }

    /// Tells a program that loads the plug-in what to do, and which file to make when it is done.
    pub fn describe(self, command: &mut Command, ready: &Path) {
        command.env("NETVM_BENCH_FLOWS", self.flows.unwrap_or(0).to_string());
        command.env("NETVM_BENCH_READY", ready);
        if self.new_macs {
            command.env("NETVM_BENCH_NEW_MACS", "1");
        }
    }
}

/// The addresses, if there are any, are there for ever, and as many as the flows.
fn attach(options: &Options) -> Result<Attached, BenchError> {
    // SAFETY: the structure is that of the header and is copied before the call returns; of its addresses, both callers see to
    // what is said above. The call keeps to DPDK's rules for receive callbacks, which may be added while another thread
    // receives.
    let port = unsafe { netvm_bench_traffic_attach(std::ptr::from_ref(options)) };
    match port {
        0.. => Ok(Attached(())),
        error => Err(BenchError::System {
            what: "putting traffic into DPDK's null port".to_owned(),
            source: std::io::Error::from_raw_os_error(-error),
        }),
    }
}

/// A port has the traffic. To be dropped before the port is.
#[derive(Debug)]
pub struct Attached(());

impl Drop for Attached {
    fn drop(&mut self) {
        // SAFETY: takes nothing; the callback's code stays where it is, so that a burst under way ends well.
        unsafe { netvm_bench_traffic_detach() };
    }
}

/// The frame of a flow, and four bytes behind it.
#[cfg(test)]
pub fn frame(flow: u64, new_macs: bool) -> [u8; 64] {
    frame_to(flow, new_macs, None)
}

/// The same to a destination.
#[cfg(test)]
fn frame_to(flow: u64, new_macs: bool, destination: Option<u32>) -> [u8; 64] {
    unsafe extern "C" {
        fn netvm_bench_traffic_frame(frame: *mut [u8; 64], flow: u64, new_macs: u32, destination: *const u32);
    }
    let mut frame = [0xff; 64];
    let destination = destination.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: 64 bytes are written, as the header says, and there is a destination or none.
    unsafe { netvm_bench_traffic_frame(&raw mut frame, flow, new_macs.into(), destination) };
    frame
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{frame, frame_to};

    #[test]
    fn frames_are_sound() {
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
    fn no_two_flows_are_alike_and_macs_are_new_only_when_asked_for() {
        let flows: HashSet<_> = (0..50_000).map(|flow| frame(flow, false)).collect();
        assert_eq!(flows.len(), 50_000);
        let macs: HashSet<_> = (0..50_000).map(|flow| frame(flow, true)[6..12].to_vec()).collect();
        assert_eq!(macs.len(), 50_000);
        assert!(macs.iter().all(|mac| mac[0] == 2), "unicast, locally administered");
        assert_eq!(frame(7, true)[..6], frame(7, false)[..6]);
        assert_eq!(frame(7, true)[12..], frame(7, false)[12..]);
    }
}
