// SPDX-License-Identifier: Apache-2.0
//! The demo's traffic: a download, pings and a forbidden connection, by ordinary programs over the namespaces' kernel
//! stacks.

use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use crate::failure::{Failure, io};
use crate::host::interrupt::Interrupt;
use crate::host::names::{Names, Side};
use crate::host::process::{Process, Start};

/// The server's port.
pub const ALLOWED_PORT: u16 = 80;
/// Another port of the server, which the policy forbids.
pub const FORBIDDEN_PORT: u16 = 23;
/// Size of the file.
const FILE_BYTES: u64 = 200_000_000;
const FILE: &str = "file";
/// Limit of a download in seconds.
const DOWNLOAD_LIMIT: u64 = 40;
/// Limit of a connection attempt in seconds.
const CONNECT_LIMIT: u64 = 2;

/// The server's programs.
#[derive(Debug)]
pub struct Servers {
    _http: [Process; 2],
    file: PathBuf,
}

impl Servers {
    /// Writes the file and serves it.
    ///
    /// # Errors
    /// [`Failure::Io`], [`Failure::TooLate`] if a server does not answer in its namespace.
    pub fn start(names: Names, folder: &Path, interrupt: &Interrupt) -> Result<Self, Failure> {
        let root = folder.join("www");
        fs::create_dir(&root).map_err(io(format!("cannot create {}", root.display())))?;
        let file = root.join(FILE);
        write_file(&file, FILE_BYTES).map_err(io(format!("cannot write {}", file.display())))?;
        let config = folder.join("httpd.conf");
        fs::write(&config, "").map_err(io(format!("cannot write {}", config.display())))?;
        let serve = |port: u16| {
            let port = port.to_string();
            let httpd =
                ["busybox", "httpd", "-f", "-p", &port, "-c", path_text(&config), "-h", path_text(&root)];
            in_namespace(names, Side::Server, "httpd", &httpd).spawn()
        };
        let servers = Self { _http: [serve(ALLOWED_PORT)?, serve(FORBIDDEN_PORT)?], file };
        for port in [ALLOWED_PORT, FORBIDDEN_PORT] {
            interrupt.wait_for("an answer of httpd in its namespace", Duration::from_secs(5), || {
                Ok((connect(names, Side::Server, port, interrupt)? == Connection::Made).then_some(()))
            })?;
        }
        Ok(servers)
    }

    /// Downloads the file from an address of the server to the client and compares every byte. `progress` gets the
    /// bytes so far.
    ///
    /// # Errors
    /// [`Failure::Interrupted`], [`Failure::Io`]; a failed download is not an error.
    pub fn download(
        &self,
        names: Names,
        address: &str,
        interrupt: &Interrupt,
        mut progress: impl FnMut(u64, Duration),
    ) -> Result<Download, Failure> {
        let url = format!("http://{address}:{ALLOWED_PORT}/{FILE}");
        let limit = DOWNLOAD_LIMIT.to_string();
        let curl = ["curl", "-sS", "--fail", "--noproxy", "*", "--max-time", &limit, &url];
        let mut served =
            BufReader::with_capacity(1 << 16, File::open(&self.file).map_err(io("cannot open the file"))?);
        let start = Instant::now();
        let mut process = in_namespace(names, Side::Client, "curl", &curl).piped().spawn()?;
        let mut out = process
            .stdout()
            .ok_or_else(|| io("cannot read curl's output")(std::io::ErrorKind::BrokenPipe.into()))?;
        let (mut got, mut want) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        let (mut bytes, mut intact) = (0, true);
        loop {
            interrupt.check()?;
            if !readable(&out)? {
                continue;
            }
            let count = out.read(&mut got).map_err(io("cannot read curl's output"))?;
            if count == 0 {
                break;
            }
            if served.read_exact(&mut want[..count]).is_err() || got[..count] != want[..count] {
                intact = false;
                break;
            }
            bytes += count as u64;
            progress(bytes, start.elapsed());
        }
        let seconds = start.elapsed().as_secs_f64();
        let status = interrupt.wait_for("the end of curl", Duration::from_secs(5), || process.ended())?;
        Ok(Download {
            expected_bytes: FILE_BYTES,
            bytes,
            intact: intact && bytes == FILE_BYTES,
            seconds,
            mbit_per_s: bytes as f64 * 8.0 / 1e6 / seconds,
            complaint: (!status.success()).then(|| format!("curl: {status}")),
        })
    }
}

fn in_namespace(names: Names, side: Side, name: &str, words: &[&str]) -> Start {
    let namespace = names.namespace(side);
    let before = ["ip", "netns", "exec", &namespace];
    Start::new(name, "KILL", before.into_iter().chain(words.iter().copied()))
}

/// All paths are below the temporary folder, whose path is UTF-8.
fn path_text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

/// Writes bytes without repetition (splitmix64), so that a comparison finds lost, duplicated and reordered data.
fn write_file(path: &Path, bytes: u64) -> std::io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    for n in 0..bytes / 8 {
        let mut z = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        out.write_all(&(z ^ (z >> 31)).to_le_bytes())?;
    }
    out.flush()
}

/// The result of a download.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Download {
    /// Size of the file.
    pub expected_bytes: u64,
    /// Bytes received, up to the first wrong one.
    pub bytes: u64,
    /// Whether all bytes are right.
    pub intact: bool,
    /// Duration.
    pub seconds: f64,
    /// Payload in megabits per second.
    pub mbit_per_s: f64,
    /// curl's error.
    pub complaint: Option<String>,
}

/// Waits shortly for data or the end of a pipe.
fn readable(pipe: &impl std::os::fd::AsFd) -> Result<bool, Failure> {
    let timeout = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    match poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(io("cannot wait for curl")(error.into())),
    }
}

/// The result of a connection attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Connection {
    /// The server answered.
    Made,
    /// Refused, or no answer in time.
    Failed,
}

/// Sends an HTTP request to the server from either side.
///
/// # Errors
/// [`Failure::Interrupted`], [`Failure::Io`].
pub fn connect(names: Names, from: Side, port: u16, interrupt: &Interrupt) -> Result<Connection, Failure> {
    let url = format!("http://{}:{port}/", Side::Server.address());
    let limit = CONNECT_LIMIT.to_string();
    // Any HTTP status counts.
    let curl = ["curl", "-sS", "--noproxy", "*", "--head", "--max-time", &limit, &url];
    let mut process = in_namespace(names, from, "curl", &curl).spawn()?;
    let status =
        interrupt.wait_for("the end of curl", Duration::from_secs(CONNECT_LIMIT + 3), || process.ended())?;
    Ok(if status.success() { Connection::Made } else { Connection::Failed })
}

/// The result of a ping.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Pings {
    /// Echo requests.
    pub sent: u32,
    /// Replies.
    pub received: u32,
    /// Shortest, mean and longest round trip in milliseconds; `None` without a reply.
    pub rtt_ms: Option<(f64, f64, f64)>,
}

impl Pings {
    /// Parses the statistics of busybox's ping.
    fn parse(output: &str) -> Option<Self> {
        let (counts, times) = output.split_once("ping statistics ---")?.1.trim_start().split_once('\n')?;
        let mut numbers = counts.split(", ").filter_map(|part| part.split_whitespace().next()?.parse().ok());
        let (sent, received) = (numbers.next()?, numbers.next()?);
        let rtt = times.split_once(" = ").and_then(|(_, times)| {
            let mut times = times.trim().trim_end_matches(" ms").split('/').map(|time| time.parse().ok());
            Some((times.next()??, times.next()??, times.next()??))
        });
        Some(Self { sent, received, rtt_ms: rtt })
    }

    /// Requests without a reply.
    pub const fn lost(&self) -> u32 {
        self.sent.saturating_sub(self.received)
    }
}

/// A running ping from the client to the server.
#[derive(Debug)]
pub struct Ping {
    process: Process,
    output: PathBuf,
    limit: Duration,
}

impl Ping {
    /// Starts a ping of `count` requests, one each `interval`.
    ///
    /// # Errors
    /// [`Failure::Io`].
    pub fn start(names: Names, folder: &Path, count: u32, interval: Duration) -> Result<Self, Failure> {
        let output = folder.join("ping.out");
        let (count_text, seconds) = (count.to_string(), format!("{:.3}", interval.as_secs_f64()));
        let ping = ["busybox", "ping", "-c", &count_text, "-i", &seconds, "-W", "1", &Side::Server.address()];
        let process = in_namespace(names, Side::Client, "ping", &ping).into_file(&output)?.spawn()?;
        Ok(Self { process, output, limit: interval * count + Duration::from_secs(10) })
    }

    /// Replies so far.
    ///
    /// # Errors
    /// [`Failure::Io`].
    pub fn replies(&self) -> Result<usize, Failure> {
        let text =
            fs::read_to_string(&self.output).map_err(io(format!("cannot read {}", self.output.display())))?;
        Ok(text.matches("bytes from").count())
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// [`Failure::Interrupted`], [`Failure::Io`], [`Failure::Command`] if its output is not understood.
    pub fn finish(mut self, interrupt: &Interrupt) -> Result<Pings, Failure> {
        interrupt.wait_for("the end of ping", self.limit, || self.process.ended())?;
        let output =
            fs::read_to_string(&self.output).map_err(io(format!("cannot read {}", self.output.display())))?;
        Pings::parse(&output).ok_or(Failure::Command { command: "busybox ping".to_owned(), output })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statistics_of_ping_are_parsed() {
        let good = "PING 10.77.2.2 (10.77.2.2): 56 data bytes\n64 bytes from 10.77.2.2: seq=0 ttl=63 time=0.1 ms\n\n\
            --- 10.77.2.2 ping statistics ---\n50 packets transmitted, 49 packets received, 2% packet loss\n\
            round-trip min/avg/max = 0.020/0.041/0.057 ms\n";
        let pings = Pings::parse(good).unwrap();
        assert_eq!(pings, Pings { sent: 50, received: 49, rtt_ms: Some((0.02, 0.041, 0.057)) });
        assert_eq!(pings.lost(), 1);
        let none =
            "\n--- x ping statistics ---\n3 packets transmitted, 0 packets received, 100% packet loss\n";
        assert_eq!(Pings::parse(none), Some(Pings { sent: 3, received: 0, rtt_ms: None }));
        assert_eq!(Pings::parse("ping: bad address\n"), None);
    }

    #[test]
    fn the_file_has_no_repetition() {
        let path = std::env::temp_dir().join(format!("netvm-demo-test-file-{}", std::process::id()));
        write_file(&path, 80_000).unwrap();
        let bytes = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(bytes.len(), 80_000);
        let words: std::collections::BTreeSet<&[u8]> = bytes.chunks(8).collect();
        assert_eq!(words.len(), 10_000);
    }
}
