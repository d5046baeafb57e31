// SPDX-License-Identifier: Apache-2.0
//! DPDK's `dpdk-dumpcap` and `dpdk-pdump`: second processes of a `dpdk-testpmd` that forwards from a null port to
//! another on one core. They take copies of its packets from a ring and write them to a file on the other core.
//!
//! Both processes share huge pages, the only memory that DPDK can share. Two precautions are necessary:
//!
//! - A memory pool refers to its driver by index in a table of the process, whose order is that of loading. testpmd is
//!   linked to drivers that the other programs load on demand, so `LD_PRELOAD` loads these first in the other programs.
//! - Both processes cache mbufs by lcore id, so their lcore ids must differ.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use netvm_capture::CaptureReader;

use super::huge_pages::HugePages;
use super::{Running, Stored, program};
use crate::error::BenchError;
use crate::machine::Cores;
use crate::measure::harness::Plan;
use crate::peers::testpmd::{NAME as TESTPMD, Testpmd};
use crate::setup::guest::pinned;

/// Bytes of a frame of the null port.
const PACKET: u16 = 64;
/// Number of huge pages (2 MB each) for testpmd and the copies.
const PAGES: u32 = 160;
/// Of these, the memory of testpmd in MB.
const MEMORY: &str = "256";
/// Ids of testpmd's lcores, for forwarding and for the prompt. They are too high to collide with ids of the other
/// process.
const LCORES: (u32, u32) = (126, 127);
/// Once its file is this long, a tool has stored packets.
const FIRST_FILE_BYTES: u64 = 4096;
/// Time limit for a tool to store its first packet, and to end.
const TOOL_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A program that captures beside testpmd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// `dpdk-dumpcap`
    Dumpcap,
    /// `dpdk-pdump`
    Pdump,
}

impl Tool {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dumpcap => "dpdk-dumpcap",
            Self::Pdump => "dpdk-pdump",
        }
    }
}

/// The cores and files of testpmd and the tools.
#[derive(Debug)]
pub struct Dpdk {
    folder: PathBuf,
    pages: HugePages,
    cores: Cores,
    /// Drivers that the tools load first.
    preload: String,
}

impl Dpdk {
    /// Mounts huge pages in the sandbox, and tries each tool briefly. The error says why this machine cannot run them.
    ///
    /// # Errors
    /// No huge pages, or a tool stored nothing.
    pub fn prepare(sandbox: &Path, cores: Cores) -> Result<Self, BenchError> {
        let what = format!("no huge pages for {TESTPMD} and a second process");
        let pages = HugePages::mount(sandbox, PAGES).map_err(BenchError::system(what))?;
        let own = Self { folder: sandbox.to_owned(), pages, cores, preload: linked_mempools() };
        let window = Duration::from_millis(100);
        let plan = Plan { runs: 1, warm_up: window, window, limit: None };
        own.measure(Tool::Dumpcap, &plan)?;
        own.measure(Tool::Pdump, &plan)?;
        Ok(own)
    }

    /// Forwards at full rate, and counts what the tool stores in the plan's window.
    ///
    /// # Errors
    /// [`BenchError::Peer`] with its last output.
    pub fn measure(&self, tool: Tool, plan: &Plan) -> Result<Stored, BenchError> {
        let mut testpmd = self.forward()?;
        let file = self.folder.join("dpdk.pcapng");
        // An earlier run may have left it.
        let _ = fs::remove_file(&file);
        let output = self.folder.join(format!("{}.out", tool.name()));
        let mut process = self.start(tool, &file, &output)?;
        let failed = |problem: &str| {
            let text = fs::read(&output).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).replace('\r', "\n");
            let last = text.trim().lines().last().unwrap_or("nothing").to_owned();
            BenchError::Peer { peer: tool.name(), problem: format!("{problem}; last output: {last}") }
        };
        let bytes = || fs::metadata(&file).map_or(0, |data| data.len());
        let start = Instant::now();
        while bytes() < FIRST_FILE_BYTES {
            if start.elapsed() > TOOL_TIMEOUT || process.has_ended() {
                return Err(failed("stored no packet"));
            }
            sleep(POLL_INTERVAL);
        }
        sleep(plan.warm_up);
        let (begin, passed, first) = (Instant::now(), testpmd.sent(1)?.0, bytes());
        sleep(plan.window);
        let (passed, last) = (testpmd.sent(1)?.0 - passed, bytes());
        let seconds = begin.elapsed().as_secs_f64();
        process.interrupt();
        let end = Instant::now();
        while !process.has_ended() {
            if end.elapsed() > TOOL_TIMEOUT {
                return Err(failed("does not end"));
            }
            sleep(POLL_INTERVAL);
        }
        // All its records have the same length.
        let share = (last - first) as f64 / bytes().max(1) as f64;
        let packets = (count(&file) as f64 * share) as u64;
        if packets == 0 {
            return Err(failed("stored no packet"));
        }
        let _ = fs::remove_file(&file);
        Ok(Stored { offered: passed, packets, seconds })
    }

    /// A testpmd that forwards from one null port to another, as DPDK's primary process.
    fn forward(&self) -> Result<Testpmd, BenchError> {
        let Cores { engine, nf } = self.cores;
        let (work, prompt) = LCORES;
        let huge = self.pages.folder().display();
        let eal = [
            format!("--lcores={work}@{engine},{prompt}@{nf}"),
            format!("--main-lcore={prompt}"),
            format!("--huge-dir={huge}"),
            "-m".to_owned(),
            MEMORY.to_owned(),
            "--no-pci".to_owned(),
            "--no-telemetry".to_owned(),
            format!("--vdev=net_null0,size={PACKET}"),
            format!("--vdev=net_null1,size={PACKET},no-rx=1"),
        ];
        let own = ["--forward-mode=io", "--port-topology=paired", "--nb-cores=1", "--total-num-mbufs=16384"];
        let own = own.map(str::to_owned);
        let output = self.folder.join("testpmd.out");
        let mut testpmd = Testpmd::start(output, &eal, &own, |command| self.share(command))?;
        testpmd.type_line("start\n")?;
        Ok(testpmd)
    }

    /// Sets the folder through which the processes find each other.
    fn share(&self, command: &mut Command) {
        // DPDK puts its sockets and locks below this folder.
        command.env("RUNTIME_DIRECTORY", &self.folder);
    }

    fn start(&self, tool: Tool, file: &Path, output: &Path) -> Result<Running, BenchError> {
        let system = || BenchError::system(tool.name());
        let log = File::create(output).map_err(system())?;
        let errors = log.try_clone().map_err(system())?;
        let mut command = pinned(self.cores.nf, &program(tool.name()));
        match tool {
            Tool::Dumpcap => {
                // `-p` turns promiscuous mode off, which a null port does not support.
                command.args(["-i", "0", "-p", "-q", "-w"]).arg(file);
            }
            Tool::Pdump => {
                command.args([
                    "-l",
                    &self.cores.nf.to_string(),
                    "--no-pci",
                    "--no-telemetry",
                    "--",
                    "--pdump",
                ]);
                let (file, ring) = (file.display(), "ring-size=16384,total-num-mbufs=32767");
                command.arg(format!("port=0,queue=*,rx-dev={file},{ring}"));
            }
        }
        self.share(&mut command);
        command.env("LD_PRELOAD", &self.preload);
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        Ok(Running(command.spawn().map_err(system())?))
    }
}

/// The drivers of memory pools that testpmd is linked to, for `LD_PRELOAD`.
fn linked_mempools() -> String {
    let output = Command::new("ldd").arg(program(TESTPMD)).stdin(Stdio::null()).output();
    output.map_or_else(|_| String::new(), |output| mempools(&String::from_utf8_lossy(&output.stdout)))
}

fn mempools(text: &str) -> String {
    let name = |line: &str| Some(line.split_whitespace().next()?.to_owned());
    let names = text.lines().filter_map(name).filter(|name| name.starts_with("librte_mempool_"));
    names.collect::<Vec<_>>().join(" ")
}

/// Packets in a file.
fn count(file: &Path) -> u64 {
    let Ok(mut reader) = CaptureReader::open(file) else { return 0 };
    let mut packets = 0;
    // A truncated record at the end does not count.
    while let Ok(Some(_)) = reader.next_frame() {
        packets += 1;
    }
    packets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linked_drivers_are_found() {
        let text = "\tlinux-vdso.so.1 (0x1)\n\tlibrte_mempool.so.23 => /lib/librte_mempool.so.23 (0x2)\n\
                    \tlibrte_mempool_dpaa.so.23 => /lib/librte_mempool_dpaa.so.23 (0x3)\n\tlibc.so.6 => /lib/libc.so.6\n";
        assert_eq!(mempools(text), "librte_mempool_dpaa.so.23");
    }
}
