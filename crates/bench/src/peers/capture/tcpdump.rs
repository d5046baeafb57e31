// SPDX-License-Identifier: Apache-2.0
//! `tcpdump` on a veth pair. A sender in a namespace of its own runs on one core, and tcpdump on the other. The
//! sender's system calls carry packets up to tcpdump's ring, just as a null port and the engine share a core.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use netvm_wire::MacAddr;

use super::{Running, Stored, program};
use crate::error::BenchError;
use crate::machine::Cores;
use crate::measure::probe::ip;
use crate::setup::guest::pinned;
use crate::setup::sender::{Destination, Sender, Stream};

const NAME: &str = "tcpdump";
const INTERFACE: &str = "near";
/// Size of tcpdump's ring in KiB, the same as netvm's.
const RING: u32 = 32 << 10;
/// Number of files in rotation and their size in millions of bytes, the same as netvm's.
const FILES: (u32, u32) = (2, 268);
/// Time limit for tcpdump to start and to end.
const TCPDUMP_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which all sent packets have arrived.
const SETTLE_TIME: Duration = Duration::from_millis(200);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// A rate that no sender reaches, in packets per second.
pub const LINE_RATE: f64 = 1e9;

/// A sender, and the folder to which tcpdump writes.
#[derive(Debug)]
pub struct Tcpdump {
    sender: Sender,
    folder: PathBuf,
    core: u32,
}

/// Checks that tcpdump is installed.
///
/// # Errors
/// [`BenchError::MissingPeer`] names the package.
pub fn find() -> Result<(), BenchError> {
    let version = Command::new(program(NAME)).arg("--version").stdin(Stdio::null()).output();
    match version {
        Ok(_) => Ok(()),
        Err(_) => Err(BenchError::MissingPeer { program: NAME, package: NAME }),
    }
}

impl Tcpdump {
    /// Starts the sender, with a veth pair to this process's network namespace. `size`: bytes of a frame with FCS.
    ///
    /// # Errors
    /// This process lacks the privilege, or `ip` fails.
    pub fn start(sandbox: &Path, size: u16, cores: Cores) -> Result<Self, BenchError> {
        let stream = Stream {
            interface: INTERFACE.to_owned(),
            queues: 1,
            size,
            is_multi: false,
            is_spread: false,
            is_timed: false,
            destinations: vec![Destination {
                mac: MacAddr([2, 0, 0, 0, 0, 1]),
                vlan: None,
                address: [10, 255, 0, 1],
            }],
        };
        let sender = Sender::start(vec![stream], cores.engine)?;
        ip(&["link", "set", INTERFACE, "up"])?;
        Ok(Self { sender, folder: sandbox.to_owned(), core: cores.nf })
    }

    /// Sends at `rate` packets per second for a time, and counts what tcpdump stored.
    ///
    /// # Errors
    /// tcpdump or the sender failed.
    pub fn trial(&self, rate: f64, time: Duration) -> Result<Stored, BenchError> {
        let failed = |problem: String| BenchError::Peer { peer: NAME, problem };
        let log = self.folder.join("tcpdump.out");
        let errors = File::create(&log).map_err(BenchError::system("cannot create a file"))?;
        let mut command = pinned(self.core, &program(NAME));
        // No name resolution; tcpdump stays root, because root owns the folder.
        command.args(["-n", "-Z", "root", "-Q", "in", "-i", INTERFACE]);
        command.args(["-B", &RING.to_string()]);
        command.args(["-W", &FILES.0.to_string(), "-C", &FILES.1.to_string()]);
        command.arg("-w").arg(self.folder.join("tcpdump.pcap"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
        let mut child = Running(command.spawn().map_err(BenchError::system(NAME))?);
        // tcpdump has just created the file, and may not have written to it yet.
        let read = || std::fs::read_to_string(&log).unwrap_or_default();
        let start = Instant::now();
        while !read().contains("listening on") {
            if start.elapsed() > TCPDUMP_TIMEOUT || child.has_ended() {
                return Err(failed(format!("did not start: {}", read().trim())));
            }
            sleep(POLL_INTERVAL);
        }
        self.sender.send(&[rate], time);
        let sent = loop {
            sleep(POLL_INTERVAL);
            if let Some(sent) = self.sender.poll()? {
                break sent.into_iter().next().unwrap_or_default();
            }
        };
        sleep(SETTLE_TIME);
        child.interrupt();
        let end = Instant::now();
        while !child.has_ended() {
            if end.elapsed() > TCPDUMP_TIMEOUT {
                return Err(failed("does not end".to_owned()));
            }
            sleep(POLL_INTERVAL);
        }
        let text = read();
        let packets = captured(&text).ok_or_else(|| failed(format!("no count in: {}", text.trim())))?;
        Ok(Stored { offered: sent.packets, packets, seconds: sent.seconds })
    }
}

/// The number of captured packets that tcpdump prints at its end.
fn captured(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.trim().strip_suffix(" packets captured"))?;
    line.split_whitespace().next_back()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_read() {
        let text = "tcpdump: listening on near, link-type EN10MB (Ethernet), snapshot length 262144 bytes\n\
                    1234567 packets captured\n1300000 packets received by filter\n65433 packets dropped by kernel\n";
        assert_eq!(captured(text), Some(1_234_567));
        assert_eq!(captured("tcpdump: near: No such device exists\n"), None);
    }
}
