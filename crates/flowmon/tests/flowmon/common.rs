// SPDX-License-Identifier: Apache-2.0
//! Captures, nfdump's collector, libfixbuf's reader.

use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use netvm_flowmon::export::{Clock, Options, Target};

/// The captures, written to a folder.
pub fn captures(folder: &Path) -> Vec<PathBuf> {
    let mut paths = netvm_workload::captures::write(folder).unwrap();
    // Those of another link type are no Ethernet frames.
    paths.retain(|path| netvm_capture::CaptureReader::open(path).is_ok());
    assert!(paths.len() > 20);
    paths
}

/// Cycles of a nanosecond, from now on.
pub fn clock() -> Clock {
    static CLOCK: OnceLock<Clock> = OnceLock::new();
    *CLOCK.get_or_init(|| {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
        Clock { cycles: 1 << 60, unix_micros: unix as u64, per_second: 1_000_000_000 }
    })
}

pub fn options(collector: Option<Target>) -> Options {
    Options {
        program: "test",
        collector,
        domain: 7,
        message_size: 1400,
        messages_per_second: 5000,
        template_refresh: Duration::from_secs(1),
        sampling: 1,
        rules: netvm_flowmon::export::RuleNames::default(),
        interfaces: netvm_flowmon::export::Interfaces::default(),
        eve: None,
        reopen: Arc::default(),
        clock: clock(),
    }
}

pub fn free_udp_port() -> u16 {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Datagrams that wait in the socket of `port`, and those that found no room: of /proc/net/udp.
fn udp_queue(port: u16) -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/net/udp").ok()?;
    text.lines().skip(1).find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let local = u16::from_str_radix(fields.get(1)?.split_once(':')?.1, 16).ok()?;
        let waiting = u64::from_str_radix(fields.get(4)?.split_once(':')?.1, 16).ok()?;
        (local == port).then_some((waiting, fields.last()?.parse().ok()?))
    })
}

/// nfdump's collector, with files of its own.
pub struct Nfcapd {
    child: Child,
    folder: tempfile::TempDir,
    log: tempfile::NamedTempFile,
    port: u16,
}

impl Nfcapd {
    /// `None`, with a note, if nfdump is not installed.
    pub fn start() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let port = free_udp_port();
        let mut command = Command::new("nfcapd");
        command.args(["-b", "127.0.0.1", "-p", &port.to_string(), "-w"]).arg(folder.path());
        command.args(["-B", "2000000", "-t", "3600"]).stdout(Stdio::null());
        let log = tempfile::NamedTempFile::new().unwrap();
        let Ok(child) = command.stderr(log.reopen().unwrap()).spawn() else {
            println!("SKIP: nfcapd is not installed: apt-get install nfdump");
            return None;
        };
        netvm_testing::until("nfcapd listens", || udp_queue(port).is_some());
        Some(Self { child, folder, log, port })
    }

    pub fn target(&self) -> Target {
        format!("ipfix:udp:127.0.0.1:{}", self.port).parse().unwrap()
    }

    /// Stops it when it has read everything. Returns the packets and octets that it stored, both directions of each
    /// flow.
    pub fn finish(mut self, packets: u64) -> (u64, u64) {
        let has_read = || {
            udp_queue(self.port).is_none_or(|(waiting, lost)| {
                assert_eq!(lost, 0, "nfcapd's socket had no room: lower the rate");
                waiting == 0
            })
        };
        assert!(netvm_testing::within(Duration::from_secs(60), has_read), "nfcapd reads {packets} packets");
        // What it has taken from the socket is processed when it stops.
        std::thread::sleep(Duration::from_millis(200));
        let status = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(status.success() && self.child.wait().is_ok());
        let mut nfdump = Command::new("nfdump");
        nfdump.arg("-R").arg(self.folder.path()).args(["-N", "-q", "-o", "fmt:%ipkt %opkt %ibyt %obyt"]);
        let output = nfdump.output().unwrap();
        let log = fs::read_to_string(self.log.path()).unwrap();
        assert!(log.contains("Sequence Errors: 0, Bad Packets: 0"), "{log}");
        let mut sums = [0; 4];
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let numbers: Vec<u64> = line.split_whitespace().filter_map(|text| text.parse().ok()).collect();
            assert_eq!(numbers.len(), 4, "{line}\n{log}");
            sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
        }
        (sums[0] + sums[1], sums[2] + sums[3])
    }
}

/// libfixbuf reads a whole TCP session, if it is installed.
pub fn check_with_fixbuf(session: &[u8], records: u64) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session.ipfix");
    fs::write(&path, session).unwrap();
    let Ok(output) = Command::new("ipfixDump").args(["--data", "--in"]).arg(&path).output() else {
        println!("SKIP: ipfixDump is not installed: apt-get install libfixbuf-tools");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let found = text.lines().filter(|line| line.contains("flowStartMilliseconds")).count();
    assert_eq!(found as u64, records, "{}", String::from_utf8_lossy(&output.stderr));
}
