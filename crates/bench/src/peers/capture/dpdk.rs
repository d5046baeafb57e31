//! DPDK's `dpdk-dumpcap` and `dpdk-pdump`: second processes of a `dpdk-testpmd` that forwards from a null port to another
//! on one core. They take copies of its packets from a ring and write them to a file on the other core.
//!
//! Both processes share huge pages, as DPDK has no other memory for that. What keeps them from working otherwise:
//!
//! - A memory pool names its driver by its position in a table of the process, in the order in which the drivers were
//!   loaded. testpmd is linked to some that the others only load on demand, so these are loaded first there (`LD_PRELOAD`).
//! - Both cache buffers by the number of the lcore, so no two may have the same.

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
/// Huge pages for testpmd and the copies, of 2 MB.
const PAGES: u32 = 160;
/// MB of these that it takes.
const MEMORY: &str = "256";
/// Numbers of testpmd's lcores: forwarding, prompt. No machine has that many cores in this benchmark.
const LCORES: (u32, u32) = (126, 127);
/// Until a file has more than its header.
const FIRST: u64 = 4096;
/// Limit for its first packet and for its end.
const PATIENCE: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(5);

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

/// Where testpmd and the others run.
#[derive(Debug)]
pub struct Dpdk {
    folder: PathBuf,
    pages: HugePages,
    cores: Cores,
    /// Drivers that the others load first.
    preload: String,
}

impl Dpdk {
    /// Makes huge pages in the sandbox, and tries each tool for a moment. The error says why that cannot be done here.
    ///
    /// # Errors
    /// No huge pages, or a tool stored nothing.
    pub fn prepare(sandbox: &Path, cores: Cores) -> Result<Self, BenchError> {
        let what = format!("no huge pages for {TESTPMD} and a second process");
        let pages = HugePages::mount(sandbox, PAGES).map_err(BenchError::system(what))?;
        let own = Self { folder: sandbox.to_owned(), pages, cores, preload: linked_mempools() };
        let moment = Duration::from_millis(100);
        let plan = Plan { runs: 1, warm_up: moment, window: moment };
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
        // Left by the run before.
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
        while bytes() < FIRST {
            if start.elapsed() > PATIENCE || process.has_ended() {
                return Err(failed("stored no packet"));
            }
            sleep(TICK);
        }
        sleep(plan.warm_up);
        let (begin, passed, first) = (Instant::now(), testpmd.sent(1)?.0, bytes());
        sleep(plan.window);
        let (passed, last) = (testpmd.sent(1)?.0 - passed, bytes());
        let seconds = begin.elapsed().as_secs_f64();
        process.interrupt();
        let end = Instant::now();
        while !process.has_ended() {
            if end.elapsed() > PATIENCE {
                return Err(failed("does not end"));
            }
            sleep(TICK);
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

    /// A testpmd that forwards from a null port to another, and that other processes can join.
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
        testpmd.say("start\n")?;
        Ok(testpmd)
    }

    /// Where the processes find each other.
    fn share(&self, command: &mut Command) {
        // DPDK puts its sockets and locks below this folder.
        command.env("RUNTIME_DIRECTORY", &self.folder);
    }

    fn start(&self, tool: Tool, file: &Path, output: &Path) -> Result<Running, BenchError> {
        let system = || BenchError::system(tool.name());
        let said = File::create(output).map_err(system())?;
        let errors = said.try_clone().map_err(system())?;
        let mut command = pinned(self.cores.nf, &program(tool.name()));
        match tool {
            Tool::Dumpcap => {
                // Not promiscuous: a null port cannot be.
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
        command.stdin(Stdio::null()).stdout(said).stderr(errors);
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
    // What was cut off at the end does not count.
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
