// SPDX-License-Identifier: Apache-2.0
//! Simulated guests: a `dpdk-testpmd` with two virtio-user ports stands for two guests. A second `dpdk-testpmd` with
//! two `net_vhost` ports shows the minimum work of a switch between them.
//!
//! ```text
//!   net_null + traffic -> virtio-user A -> switch -> virtio-user B -> net_null
//! ```
//!
//! A single thread generates and drops packets, so that on two cores the switch has a core to itself. The thread
//! allocates mbufs in bulk (`peer/traffic/bulk.c`), so that the guests are not the bottleneck. Guest B first sends a
//! burst, from which a switch learns the traffic's destination.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use clap::ValueEnum;

use crate::error::BenchError;
use crate::machine::Cores;
use crate::machine::huge_pages_are_worthwhile;
use crate::measure::harness::{Measured, Plan};
use crate::peers::testpmd::Testpmd;
use crate::peers::timing::Timing;
use crate::setup::traffic::{PLUGIN, Traffic};

/// Number of the second guest's port.
const SECOND: usize = 2;
/// Descriptors of each ring.
const DESCRIPTORS: u32 = 1024;
/// The guests' `tx_free_thresh`. With the driver's default of 32, a guest whose ring has once been full sends only half
/// of each burst and drops the other half.
const TX_FREE_THRESHOLD: u32 = DESCRIPTORS / 4;
/// Burst size of every testpmd here, `floor` included.
const BURST: u32 = 64;

/// Layout of the guests' rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Rings {
    /// Packed (VIRTIO 1.1), in order, one buffer per packet: the cheapest for both sides
    Packed,
    /// Split (VIRTIO 1.0) with mergeable buffers: the most common
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

/// By what the guests are connected to the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cards {
    /// virtio-user, to vhost-user sockets.
    VirtioUser,
    /// `net_memif` as client.
    Memif,
}

/// The kernel's devices of guests that are on none of a switch's sockets ([`Guests::on_taps`]).
pub const TAPS: [&str; 2] = ["guest0", "guest1"];

impl Cards {
    /// A testpmd's device on a socket.
    fn device(self, number: u8, path: &Path, rings: Rings) -> String {
        // The switch learns that the first guest has the second address, and the other way round.
        let (path, mac) = (path.display(), 2 - number);
        match self {
            Self::VirtioUser => format!(
                "--vdev=net_virtio_user{number},path={path},queue_size={DESCRIPTORS},mac=02:00:00:00:00:{mac:02x}{}",
                rings.options()
            ),
            Self::Memif => format!(
                "--vdev=net_memif{number},role=client,socket={path},socket-abstract=no,rsize={},\
                 mac=02:00:00:00:00:{mac:02x}",
                DESCRIPTORS.ilog2()
            ),
        }
    }
}

/// The guests' traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Frame size in bytes, without FCS.
    pub bytes: u16,
    /// Its flows.
    pub traffic: Traffic,
    /// The guests' rings.
    pub rings: Rings,
    /// Packets are offered at intervals and timed ([`Guests::timing`]).
    pub is_timed: bool,
}

/// Paths of the guests' sockets in a folder.
#[must_use]
pub fn sockets(folder: &Path) -> [PathBuf; 2] {
    ["p0", "p1"].map(|name| folder.join(name))
}

/// The cores of a testpmd's threads.
#[derive(Clone, Copy)]
struct TestpmdCores {
    prompt: u32,
    forwarding: u32,
}

/// Starts a testpmd that forwards between its devices.
fn start(
    output: PathBuf,
    cores: TestpmdCores,
    devices: &[String],
    prepare: impl FnOnce(&mut Command),
) -> Result<Testpmd, BenchError> {
    let mut eal = vec![format!("--lcores=0@{},1@{}", cores.prompt, cores.forwarding)];
    let memory: &[&str] = if huge_pages_are_worthwhile() {
        &["--in-memory", "--single-file-segments"]
    } else {
        &["--no-huge", "--no-shconf", "-m", "256"]
    };
    eal.extend(memory.iter().chain(&["--no-pci", "--no-telemetry"]).map(|&word| word.to_owned()));
    eal.extend_from_slice(devices);
    let own = [
        "--forward-mode=io".to_owned(),
        "--port-topology=paired".to_owned(),
        "--nb-cores=1".to_owned(),
        "--total-num-mbufs=16384".to_owned(),
        format!("--burst={BURST}"),
        format!("--rxd={DESCRIPTORS}"),
        format!("--txd={DESCRIPTORS}"),
        format!("--txfreet={TX_FREE_THRESHOLD}"),
    ];
    Testpmd::start(output, &eal, &own, prepare)
}

/// Two running guests.
#[derive(Debug)]
pub struct Guests {
    testpmd: Testpmd,
    timing: Option<Timing>,
}

impl Guests {
    /// Starts the guests on a core; the switch must already serve the sockets. `folder`: for the guests' files.
    ///
    /// # Errors
    /// [`BenchError::Peer`] with its last output.
    pub fn start(folder: &Path, load: Load, core: u32) -> Result<Self, BenchError> {
        Self::start_by(Cards::VirtioUser, folder, load, core)
    }

    /// The same, connected by other cards.
    ///
    /// # Errors
    /// As for [`Guests::start`].
    pub fn start_by(cards: Cards, folder: &Path, load: Load, core: u32) -> Result<Self, BenchError> {
        let [a, b] = sockets(folder);
        Self::with([cards.device(0, &a, load.rings), cards.device(1, &b, load.rings)], folder, load, core)
    }

    /// The same, on the TAP devices [`TAPS`], which they make.
    ///
    /// # Errors
    /// As for [`Guests::start`].
    pub fn on_taps(folder: &Path, load: Load, core: u32) -> Result<Self, BenchError> {
        // Not the addresses of the traffic, which the kernel would take for its own.
        let device = |n: usize| format!("--vdev=net_tap{n},iface={},mac=02:00:00:00:ff:{n:02x}", TAPS[n]);
        Self::with([device(0), device(1)], folder, load, core)
    }

    fn with(cards: [String; 2], folder: &Path, load: Load, core: u32) -> Result<Self, BenchError> {
        let plugin = folder.join("guests-traffic.so");
        fs::write(&plugin, PLUGIN)
            .map_err(BenchError::system(format!("cannot write {}", plugin.display())))?;
        let ready = folder.join("guests-ready");
        let _ = fs::remove_file(&ready);
        let [first, second] = cards;
        let devices = [
            format!("--vdev=net_null0,size={}", load.bytes),
            first,
            second,
            format!("--vdev=net_null1,size={},no-rx=1", load.bytes),
            "-d".to_owned(),
            plugin.display().to_string(),
        ];
        let timing = load.is_timed.then(|| Timing::create(folder)).transpose()?;
        let describe = |command: &mut Command| {
            load.traffic.describe(command, &ready);
            command.env("NETVM_BENCH_BULK", "1");
            if let Some(timing) = &timing {
                command.env("NETVM_BENCH_TIMING", timing.path());
            }
        };
        let cores = TestpmdCores { prompt: core, forwarding: core };
        let mut testpmd = start(folder.join("guests.out"), cores, &devices, describe)?;
        testpmd.wait_for("four ports", |text| text.contains("Port 3: "))?;
        testpmd.wait_for("traffic", |_| ready.exists())?;
        testpmd.type_line("start tx_first 1\n")?;
        Ok(Self { testpmd, timing })
    }
}

impl Guests {
    /// Packets received by the second guest so far.
    ///
    /// # Errors
    /// As for [`Guests::start`].
    pub fn received(&mut self) -> Result<u64, BenchError> {
        self.testpmd.count(SECOND, "RX-packets:")
    }

    /// Sets the rate and reads the times of packets, if the load is timed.
    #[must_use]
    pub const fn timing(&self) -> Option<&Timing> {
        self.timing.as_ref()
    }
}

/// A testpmd that returns what it gets from a memif server.
///
/// # Errors
/// As for [`Guests::start`].
pub fn returner(folder: &Path, socket: &Path, core: u32) -> Result<Testpmd, BenchError> {
    let cores = TestpmdCores { prompt: core, forwarding: core };
    let devices = [Cards::Memif.device(0, socket, Rings::Packed)];
    let mut program = start(folder.join("returner.out"), cores, &devices, |_| ())?;
    // A single port is paired with itself.
    program.type_line("start\n")?;
    Ok(program)
}

/// Starts a testpmd that forwards between two memif sockets.
///
/// # Errors
/// As for [`Guests::start`].
pub fn forwarder(folder: &Path, sockets: &[PathBuf; 2], core: u32) -> Result<Testpmd, BenchError> {
    let cores = TestpmdCores { prompt: core, forwarding: core };
    let devices = [0, 1].map(|n| Cards::Memif.device(n, &sockets[usize::from(n)], Rings::Packed));
    let mut program = start(folder.join("forwarder.out"), cores, &devices, |_| ())?;
    program.type_line("start\n")?;
    Ok(program)
}

/// A testpmd that forwards between the guests by `net_vhost`, before they start.
fn start_floor(folder: &Path, cores: Cores) -> Result<Testpmd, BenchError> {
    let paths = sockets(folder);
    let devices: Vec<String> = (0..)
        .zip(&paths)
        .map(|(n, path): (u8, _)| format!("--vdev=net_vhost{n},iface={}", path.display()))
        .collect();
    let cores = TestpmdCores { prompt: cores.nf, forwarding: cores.engine };
    let mut switch = start(folder.join("floor.out"), cores, &devices, |_| ())?;
    switch.type_line("start\n")?;
    Ok(switch)
}

/// Runs `work` with guests between which testpmd forwards by `net_vhost`.
///
/// # Errors
/// [`BenchError`] if testpmd or `work` fails.
pub fn over_floor(
    folder: &Path,
    load: Load,
    cores: Cores,
    work: impl FnOnce(&Guests) -> Measured,
) -> Measured {
    let _switch = start_floor(folder, cores)?;
    work(&Guests::start(folder, load, cores.nf)?)
}

/// Forwards between the guests by `net_vhost`; returns million packets per second of CPU time.
///
/// # Errors
/// [`BenchError`] if it fails.
pub fn floor(folder: &Path, load: Load, cores: Cores, plan: &Plan) -> Result<f64, BenchError> {
    let mut switch = start_floor(folder, cores)?;
    let _guests = Guests::start(folder, load, cores.nf)?;
    sleep(plan.warm_up);
    let (first, cpu, start) = switch.sent(1)?;
    loop {
        sleep(plan.window);
        let (last, now, at) = switch.sent(1)?;
        let elapsed = at.duration_since(start);
        let cpu_time = match now.since(cpu).running {
            // The kernel has no scheduler statistics.
            0 => elapsed,
            nanos => Duration::from_nanos(nanos),
        };
        if plan.is_over(elapsed, cpu_time) {
            let packets = last.saturating_sub(first);
            if packets == 0 {
                return Err(BenchError::Nothing { what: "floor".to_owned(), seconds: elapsed.as_secs_f64() });
            }
            return Ok(packets as f64 / cpu_time.as_secs_f64() / 1e6);
        }
    }
}
