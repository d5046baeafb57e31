// SPDX-License-Identifier: Apache-2.0
//! The machine that runs a benchmark: its description for the report, and its cores.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::thread::CpuSet;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::error::BenchError;

/// Huge pages are used only if this much is free: the memory of DPDK and the largest benchmark.
const WORTHWHILE_HUGE_BYTES: u64 = 1 << 30;

/// This program's file. The first call stores the path, because in another mount namespace `/proc/self/exe` may be
/// relative to the root of its file system.
///
/// # Errors
/// The kernel cannot name the file.
pub fn own_program() -> Result<&'static Path, BenchError> {
    static OWN: OnceLock<PathBuf> = OnceLock::new();
    match OWN.get() {
        Some(own) => Ok(own),
        None => {
            let own = std::env::current_exe().map_err(BenchError::system("cannot find this program"))?;
            Ok(OWN.get_or_init(|| own))
        }
    }
}

/// The two cores of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    /// The engine's.
    pub engine: u32,
    /// The NFs'.
    pub nf: u32,
}

/// The machine's description in a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Model of the processor, and the level of instructions in use.
    pub cpu: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Release of DPDK.
    pub dpdk: String,
    /// Commit of the source tree, with `-dirty` for uncommitted changes.
    pub revision: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Huge pages of the default size.
    pub huge_pages: u64,
}

impl Machine {
    /// Describes this machine.
    pub fn inspect() -> Self {
        Self {
            cpu: cpu(),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            dpdk: dpdk::version().to_owned(),
            revision: revision().unwrap_or_else(|| "unknown".to_owned()),
            cores: allowed_cores().len(),
            huge_pages: meminfo("HugePages_Total:"),
        }
    }
}

fn cpu() -> String {
    let model = cpu_model(&read("/proc/cpuinfo")).unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    format!("{model} ({})", netvm_cpu::Level::current())
}

/// The cores that this process may use, in ascending order.
pub fn allowed_cores() -> Vec<u32> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).map(|core| core as u32).collect()
}

/// Pins the calling thread to a core.
///
/// # Errors
/// The core does not exist, or this process may not use it.
pub fn pin(core: u32) -> std::io::Result<()> {
    let mut set = CpuSet::new();
    if (core as usize) < CpuSet::MAX_CPU {
        set.set(core as usize);
    }
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// CPU time of the calling thread.
pub fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Whether all sides use huge pages: all or none, so that no side has an advantage. Decided once: DPDK starts once, and
/// the first run may leave too few pages for the next.
pub fn huge_pages_are_worthwhile() -> bool {
    static DECISION: OnceLock<bool> = OnceLock::new();
    *DECISION.get_or_init(enough_huge_pages_are_free)
}

fn enough_huge_pages_are_free() -> bool {
    meminfo("HugePages_Free:") * meminfo("Hugepagesize:") * 1024 >= WORTHWHILE_HUGE_BYTES
}

/// A number of `/proc/meminfo`, by its name with the colon; 0 without it.
pub fn meminfo(name: &str) -> u64 {
    field(&read("/proc/meminfo"), name).unwrap_or(0)
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn cpu_model(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The number after a name in a file of `/proc`.
fn field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

fn revision() -> Option<String> {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR"));
    let describe = ["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"];
    let output = Command::new("git").arg("-C").arg(tree).args(describe).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_read() {
        assert_eq!(
            field("HugePages_Total:       3\nHugepagesize:    2048 kB\n", "Hugepagesize:"),
            Some(2048)
        );
        assert_eq!(field("", "Hugepagesize:"), None);
        assert_eq!(cpu_model("processor\t: 0\nmodel name\t: AMD EPYC\n").as_deref(), Some("AMD EPYC"));
    }

    #[test]
    fn this_machine_has_a_name_and_a_core() {
        let machine = Machine::inspect();
        assert!(machine.cores > 0 && !machine.cpu.is_empty() && !machine.kernel.is_empty());
        assert!(machine.dpdk.starts_with("DPDK"), "{}", machine.dpdk);
    }
}
