// SPDX-License-Identifier: Apache-2.0
//! VPP's way of an IPv4 packet, by VPP's own counters: a worker's packet generator sends the traffic of `engine-N` from
//! one of its interfaces, and VPP routes it to another. The time of the generator itself is left out, so that the
//! source costs nothing.
//!
//! Debian has no VPP. `NETVM_BENCH_VPP` names the folder of `vpp` and `vppctl`; without it there is no such case.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use netvm_capture::{CaptureWriter, Precision, Timestamp, WriterOptions};
use netvm_clock as clock;
use netvm_wire::{FrameBuilder, MacAddr};

use super::kill_with_parent;
use crate::error::BenchError;
use crate::machine::Cores;
use crate::measure::harness::Plan;
use crate::setup::routes::{RouteTable, gateway};

/// Its name in errors.
pub const NAME: &str = "VPP";
/// The variable that names the folder of its programs.
const FOLDER: &str = "NETVM_BENCH_VPP";
/// Time limit for VPP to start, and to load a full table.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Bytes of a packet of 64 bytes without FCS.
const FRAME: usize = 60;
/// More packets than any run sends.
const NO_LIMIT: u64 = 1_000_000_000_000;
/// The node whose time does not count, and the one that every forwarded packet passes once.
const GENERATOR: &str = "pg-input";
const REWRITE: &str = "ip4-rewrite";

/// Words in what it prints for a command that fails.
const FAILURES: [&str; 4] = ["error", "unknown", "failed", "invalid"];

/// A running VPP with routes. Killed on drop, or when this process ends.
#[derive(Debug)]
pub struct Vpp {
    child: Child,
    programs: PathBuf,
    files: tempfile::TempDir,
}

impl Vpp {
    /// The folder of its programs, if one is named.
    pub fn find() -> Option<PathBuf> {
        std::env::var_os(FOLDER).map(PathBuf::from)
    }

    /// Starts VPP with the routes, and with traffic to `destinations` (in network order).
    ///
    /// # Errors
    /// [`BenchError::Peer`] with its last output.
    pub fn start(
        programs: PathBuf,
        table: &RouteTable,
        destinations: &[u32],
        cores: Cores,
    ) -> Result<Self, BenchError> {
        let files = tempfile::tempdir().map_err(BenchError::system("cannot make a folder for VPP"))?;
        let path = |name: &str| files.path().join(name);
        let write = |name: &str, text: String| {
            fs::write(path(name), text)
                .map_err(BenchError::system(format!("cannot write {}", path(name).display())))
        };
        let folder = files.path().display();
        write(
            "vpp.conf",
            format!(
                "unix {{ nodaemon cli-listen {folder}/cli runtime-dir {folder} }}\n\
                 cpu {{ main-core {} corelist-workers {} }}\n\
                 memory {{ main-heap-size 2G main-heap-page-size 4K }}\n\
                 buffers {{ buffers-per-numa 16384 page-size 4K }}\n\
                 statseg {{ size 64M page-size 4K }}\n\
                 plugins {{ plugin default {{ disable }} }}\n",
                cores.nf, cores.engine
            ),
        )?;
        write("commands", commands(table))?;
        capture(&path("traffic.pcap"), destinations)?;
        let log = File::create(path("log")).map_err(BenchError::system("cannot write VPP's log"))?;
        let errors = log.try_clone().map_err(BenchError::system("cannot write VPP's log"))?;
        let mut command = Command::new(programs.join("vpp"));
        command.arg("-c").arg(path("vpp.conf")).stdin(Stdio::null()).stdout(log).stderr(errors);
        kill_with_parent(&mut command);
        let what = format!("cannot run vpp in {}, which {FOLDER} names", programs.display());
        let child = command.spawn().map_err(BenchError::system(what))?;
        let mut own = Self { child, programs, files };
        own.wait_for_answer()?;
        own.ask(&format!("exec {}", own.path("commands")))?;
        let traffic = own.path("traffic.pcap");
        own.ask(&format!(
            "packet-generator new {{ name traffic limit {NO_LIMIT} node ethernet-input interface pg0 worker 0 pcap {traffic} }}"
        ))?;
        own.ask("packet-generator enable-stream traffic")?;
        Ok(own)
    }

    fn path(&self, name: &str) -> String {
        self.files.path().join(name).display().to_string()
    }

    fn wait_for_answer(&mut self) -> Result<(), BenchError> {
        let start = Instant::now();
        while self.ask("show version").is_err() {
            let ended = self.child.try_wait().ok().flatten();
            if ended.is_some() || start.elapsed() > TIMEOUT {
                let log = fs::read_to_string(self.path("log")).unwrap_or_default();
                let last = log.trim().lines().next_back().unwrap_or("nothing").to_owned();
                return Err(failed(format!("no answer; last output: {last}")));
            }
            sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// What VPP prints for a command. It has no exit status for a command that fails, but prints why.
    fn ask(&self, words: &str) -> Result<String, BenchError> {
        let mut command = Command::new(self.programs.join("vppctl"));
        command.arg("-s").arg(self.path("cli")).arg(words).stdin(Stdio::null());
        let output = command.output().map_err(BenchError::system("cannot run vppctl"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let has_failed = !words.starts_with("show") && FAILURES.iter().any(|word| text.contains(word));
        if !output.status.success() || has_failed {
            return Err(failed(format!("vppctl {words}: {}", text.trim())));
        }
        Ok(text)
    }

    /// Cycles of the worker per packet, without those of the generator.
    ///
    /// # Errors
    /// [`BenchError::Nothing`] if no packet was forwarded.
    pub fn measure(&self, plan: &Plan) -> Result<f64, BenchError> {
        sleep(plan.warm_up);
        self.ask("clear runtime")?;
        sleep(plan.window);
        cycles_of(&self.ask("show runtime")?)
            .ok_or(BenchError::Nothing { what: NAME.to_owned(), seconds: plan.window.as_secs_f64() })
    }
}

/// The rate of a worker that takes so many cycles for a packet, in millions a second.
pub fn rate_of(cycles: f64) -> f64 {
    clock::cycles_per_second() as f64 / cycles / 1e6
}

impl Drop for Vpp {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const ROUTER: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const SENDER: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

/// The interfaces, the next hops and the routes.
fn commands(table: &RouteTable) -> String {
    let mut text =
        "create packet-generator interface pg0\ncreate packet-generator interface pg1\n".to_owned();
    let _ = writeln!(text, "set interface mac address pg0 {ROUTER}");
    text += "set interface state pg0 up\nset interface state pg1 up\n\
             set interface ip address pg0 10.101.0.1/24\nset interface ip address pg1 10.102.0.1/16\n";
    for id in table.next_hops() {
        let _ = writeln!(text, "ip neighbor pg1 {} 02:00:00:00:02:{:02x}", gateway(id), id.0 as u8);
    }
    for (net, id) in table.possible() {
        let _ = writeln!(text, "ip route add {net} via {} pg1", gateway(*id));
    }
    text
}

/// Writes the packets that the generator repeats.
fn capture(path: &Path, destinations: &[u32]) -> Result<(), BenchError> {
    let failed = |error: String| failed(format!("cannot write {}: {error}", path.display()));
    // VPP reads no others.
    let options = WriterOptions { precision: Precision::Micro, ..WriterOptions::default() };
    let mut out = CaptureWriter::create(path, options).map_err(|e| failed(e.to_string()))?;
    for to in destinations {
        let frame = FrameBuilder::new(SENDER, ROUTER)
            .ip(Ipv4Addr::new(10, 0, 0, 1).into(), Ipv4Addr::from(to.to_ne_bytes()).into())
            .udp(1000, 9)
            .frame_len(FRAME)
            .to_vec()
            .map_err(|e| failed(e.to_string()))?;
        out.write(Timestamp::default(), FRAME as u32, &frame).map_err(|e| failed(e.to_string()))?;
    }
    out.finish().map_err(|e| failed(e.to_string()))
}

fn failed(problem: String) -> BenchError {
    BenchError::Peer { peer: NAME, problem }
}

/// Cycles per forwarded packet of all nodes but the generator, in what `show runtime` prints: name, state, calls,
/// packets, suspensions, cycles for each packet, packets of a call. A state may have blanks, so the columns are counted
/// from the end.
fn cycles_of(text: &str) -> Option<f64> {
    let (mut cycles, mut forwarded) = (0.0, 0.0);
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, .., packets, _, each, _] = words[..] else { continue };
        let (Ok(packets), Ok(each)) = (packets.parse::<f64>(), each.parse::<f64>()) else { continue };
        if name != GENERATOR {
            cycles += packets * each;
        }
        if name == REWRITE {
            forwarded += packets;
        }
    }
    (forwarded > 0.0).then(|| cycles / forwarded)
}

#[cfg(test)]
mod tests {
    use super::cycles_of;

    #[test]
    fn the_cycles_of_all_nodes_but_the_generator_are_summed() {
        let text = "Thread 1 vpp_wk_0 (lcore 1)\n\
            Time 2.0, 10.000000 sec internal node vector rate 256.00 loops/sec 30012.71\n\
             \u{20}            Name                 State         Calls          Vectors        Suspends      Packet-Clocks   Vectors/Call\n\
            ip4-input                        active                 10            1000               0          3.95e1          100.00\n\
            ip4-rewrite                      active                 10            1000               0          2.05e1          100.00\n\
            error-drop                       active                  1             100               0          1.00e1          100.00\n\
            fib-walk                       \"any wait\"                0               0               1          2.12e4            0.00\n\
            pg-input                         polling                10            1000               0          1.11e2          100.00\n";
        assert_eq!(cycles_of(text), Some(61.0));
        assert_eq!(cycles_of("nothing\n"), None);
    }
}
