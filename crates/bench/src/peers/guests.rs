//! Guests without a guest: `dpdk-testpmd` with two virtio-user ports, as two guests would have them, and `dpdk-testpmd` with
//! two `net_vhost` ports as the least that a switch between them can do.
//!
//! ```text
//!   net_null + traffic -> virtio-user A -> switch -> virtio-user B -> net_null
//! ```
//!
//! One thread generates and swallows: on two cores, the switch has one to itself. It takes its mbufs in bulk
//! (`peer/bulk.c`), so that the guests are not what is measured. Guest B says one burst first, by which a
//! switch learns where the traffic's destination is.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::cli::Cores;
use crate::error::BenchError;
use crate::harness::Plan;
use crate::machine::huge_pages_are_worthwhile;
use crate::traffic::{PLUGIN, Traffic};
use crate::window::CpuTime;

const NAME: &str = "dpdk-testpmd";
/// How long anything may take that is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
/// What it has before each line that one may type.
const PROMPT: &str = "testpmd> ";
/// What its threads that forward are called, by releases of DPDK.
const THREADS: [&str; 3] = ["lcore-worker", "rte-worker", "dpdk-worker"];
/// The second guest among testpmd's ports.
const SECOND: usize = 2;
/// Descriptors of each ring.
const DESCRIPTORS: u32 = 1024;
/// Descriptors that a guest takes back at once when it sends. Its driver takes 32 if nothing is said: from then on that the
/// ring has been full it sends half of each burst, and drops the other half, which was made for nothing.
const FREED: u32 = DESCRIPTORS / 4;
/// Packets that any testpmd here takes at once, the one that is the floor, too.
const BURST: u32 = 64;

/// How guests lay out their rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Rings {
    /// Packed (VIRTIO 1.1), descriptors used in order, one buffer a packet: what costs both sides least
    Packed,
    /// Split (VIRTIO 1.0), mergeable buffers: what most drivers have
    Split,
}

impl Rings {
    const fn options(self) -> &'static str {
        match self {
            Self::Packed => ",packed_vq=1,in_order=1,mrg_rxbuf=0,vectorized=1",
            Self::Split => "",
        }
    }
}

/// The traffic of two guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Bytes of a frame, without FCS.
    pub bytes: u16,
    /// Its flows.
    pub traffic: Traffic,
    /// The guests' rings.
    pub rings: Rings,
}

/// Where the guests' sockets are in a folder.
#[must_use]
pub fn sockets(folder: &Path) -> [PathBuf; 2] {
    ["p0", "p1"].map(|name| folder.join(name))
}

/// A testpmd at its prompt. Killed when dropped, or when this process goes.
#[derive(Debug)]
struct Testpmd {
    child: Child,
    prompt: ChildStdin,
    output: PathBuf,
}

impl Testpmd {
    /// `name`: of the file for its output. `cores`: of its prompt, and of the thread that forwards.
    fn start(
        folder: &Path,
        name: &str,
        cores: (u32, u32),
        devices: &[String],
        prepare: impl FnOnce(&mut Command),
    ) -> Result<Self, BenchError> {
        let system = || BenchError::system(format!("starting {NAME}"));
        let output = folder.join(format!("{name}.out"));
        let file = File::create(&output).map_err(system())?;
        let errors = file.try_clone().map_err(system())?;
        // Line by line, though it writes to a file.
        let mut command = Command::new("stdbuf");
        command.args(["-oL", NAME]);
        command.arg(format!("--lcores=0@{},1@{}", cores.0, cores.1));
        if huge_pages_are_worthwhile() {
            command.args(["--in-memory", "--single-file-segments"]);
        } else {
            command.args(["--no-huge", "--no-shconf", "-m", "256"]);
        }
        command.args(["--no-pci", "--no-telemetry"]).args(devices);
        prepare(&mut command);
        command.args([
            "--",
            "-i",
            "--forward-mode=io",
            "--port-topology=paired",
            "--nb-cores=1",
            "--total-num-mbufs=16384",
        ]);
        command.arg(format!("--burst={BURST}"));
        command.args([format!("--rxd={DESCRIPTORS}"), format!("--txd={DESCRIPTORS}")]);
        command.arg(format!("--txfreet={FREED}"));
        command.stdin(Stdio::piped()).stdout(file).stderr(errors);
        // SAFETY: between fork and exec only one system call is made; nothing is allocated and no lock is taken.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        let mut child = command.spawn().map_err(system())?;
        let Some(prompt) = child.stdin.take() else {
            return Err(BenchError::Peer { peer: NAME, problem: "has no standard input".to_owned() });
        };
        let mut own = Self { child, prompt, output };
        own.wait_for("its prompt", |text| text.contains(PROMPT))?;
        Ok(own)
    }

    fn text(&self) -> String {
        fs::read(&self.output).map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default()
    }

    fn say(&mut self, line: &str) -> Result<(), BenchError> {
        self.prompt.write_all(line.as_bytes()).map_err(BenchError::system(format!("asking {NAME}")))
    }

    fn wait_for(&mut self, what: &str, is_there: impl Fn(&str) -> bool) -> Result<(), BenchError> {
        let start = Instant::now();
        loop {
            let text = self.text();
            if is_there(&text) {
                return Ok(());
            }
            let ended = self.child.try_wait().ok().flatten();
            if ended.is_some() || start.elapsed() > PATIENCE {
                let last = text.trim().lines().last().unwrap_or("nothing").to_owned();
                return Err(BenchError::Peer {
                    peer: NAME,
                    problem: format!("no {what}; its last words: {last}"),
                });
            }
            sleep(Duration::from_millis(5));
        }
    }

    /// A counter of a port.
    fn count(&mut self, port: usize, name: &str) -> Result<u64, BenchError> {
        let before = self.text().len();
        self.say(&format!("show port stats {port}\n"))?;
        let read = |text: &str| counter(text.get(before..).unwrap_or_default(), name);
        self.wait_for("statistics", |text| read(text).is_some())?;
        Ok(read(&self.text()).unwrap_or(0))
    }

    /// Packets that a port has sent so far, what the thread that forwards has had of its core, and when.
    fn sent(&mut self, port: usize) -> Result<(u64, CpuTime, Instant), BenchError> {
        let sent = self.count(port, "TX-packets:")?;
        Ok((sent, self.cpu(), Instant::now()))
    }

    fn cpu(&self) -> CpuTime {
        let times = THREADS.map(|name| CpuTime::of_threads(self.child.id(), name));
        times.into_iter().max_by_key(|time| time.running).unwrap_or_default()
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        // One that has ended already is no error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The number behind a name in a port's statistics, once they are all there.
fn counter(text: &str, name: &str) -> Option<u64> {
    let (before, _) = text.split_once("Tx-pps:")?;
    before.split_once(name)?.1.split_whitespace().next()?.parse().ok()
}

/// Two guests that are at work.
#[derive(Debug)]
pub struct Guests {
    testpmd: Testpmd,
}

impl Guests {
    /// Starts them on a core; the sockets are there and are served. `folder`: for files of theirs.
    ///
    /// # Errors
    /// [`BenchError::Peer`] with its last words.
    pub fn start(folder: &Path, load: Load, core: u32) -> Result<Self, BenchError> {
        let plugin = folder.join("guests-traffic.so");
        fs::write(&plugin, PLUGIN).map_err(BenchError::system(format!("writing {}", plugin.display())))?;
        let ready = folder.join("guests-ready");
        let _ = fs::remove_file(&ready);
        let [a, b] = sockets(folder);
        let guest = |number: u8, path: &Path, mac: u8| {
            format!(
                "--vdev=net_virtio_user{number},path={},queue_size={DESCRIPTORS},mac=02:00:00:00:00:{mac:02x}{}",
                path.display(),
                load.rings.options()
            )
        };
        let devices = [
            format!("--vdev=net_null0,size={}", load.bytes),
            guest(0, &a, 2),
            guest(1, &b, 1),
            format!("--vdev=net_null1,size={},no-rx=1", load.bytes),
            "-d".to_owned(),
            plugin.display().to_string(),
        ];
        let describe = |command: &mut Command| {
            load.traffic.describe(command, &ready);
            command.env("NETVM_BENCH_BULK", "1");
        };
        let mut testpmd = Testpmd::start(folder, "guests", (core, core), &devices, describe)?;
        testpmd.wait_for("four ports", |text| text.contains("Port 3: "))?;
        testpmd.wait_for("traffic", |_| ready.exists())?;
        testpmd.say("start tx_first 1\n")?;
        Ok(Self { testpmd })
    }
}

impl Guests {
    /// Packets that the second has got so far.
    ///
    /// # Errors
    /// As for [`Guests::start`].
    pub fn received(&mut self) -> Result<u64, BenchError> {
        self.testpmd.count(SECOND, "RX-packets:")
    }
}

/// Forwards between the guests with `net_vhost`; million packets per second in which it had its core.
///
/// # Errors
/// [`BenchError`] when it does not do so.
pub fn floor(folder: &Path, load: Load, cores: Cores, plan: &Plan) -> Result<f64, BenchError> {
    let paths = sockets(folder);
    let devices: Vec<String> = (0..)
        .zip(&paths)
        .map(|(n, path): (u8, _)| format!("--vdev=net_vhost{n},iface={}", path.display()))
        .collect();
    let mut switch = Testpmd::start(folder, "floor", (cores.nf, cores.engine), &devices, |_| ())?;
    switch.say("start\n")?;
    let _guests = Guests::start(folder, load, cores.nf)?;
    sleep(plan.warm_up);
    let (first, cpu, start) = switch.sent(1)?;
    loop {
        sleep(plan.window);
        let (last, now, at) = switch.sent(1)?;
        let elapsed = at.duration_since(start);
        let had = match now.since(cpu).running {
            // The kernel keeps no account.
            0 => elapsed,
            nanos => Duration::from_nanos(nanos),
        };
        if plan.is_over(elapsed, had) {
            let packets = last.saturating_sub(first);
            if packets == 0 {
                return Err(BenchError::Nothing { what: "floor".to_owned(), seconds: elapsed.as_secs_f64() });
            }
            return Ok(packets as f64 / had.as_secs_f64() / 1e6);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_read_once_it_is_whole() {
        let whole = "  RX-packets: 5\n  TX-packets: 12345      TX-errors: 0\n\n  Throughput (since last show)\n  \
                     Rx-pps:  1\n  Tx-pps:  7\n";
        assert_eq!(counter(whole, "TX-packets:"), Some(12345));
        assert_eq!(counter(whole, "RX-packets:"), Some(5));
        assert_eq!(counter("  TX-packets: 12", "TX-packets:"), None);
    }
}
