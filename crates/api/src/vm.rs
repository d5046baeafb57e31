//! Virtual machines.

use std::path::PathBuf;

use netvm_config::model::VmAccel;
use serde::{Deserialize, Serialize};

/// Where a virtual machine is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VmState {
    /// Its QEMU was started, and does not answer yet.
    Starting,
    /// It runs.
    Running,
    /// Its processors stand still.
    Paused,
    /// It is to end.
    Stopping,
    /// It has ended, and is started again after a pause.
    Backoff,
    /// It does not run.
    Stopped,
    /// Others start it, and have not.
    Awaited,
}

/// A virtual machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmInfo {
    /// Its name.
    pub name: String,
    /// Where it is in its life.
    pub state: VmState,
    /// The role of a network function; absent for an ordinary guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The ports of an ordinary guest, in its order.
    #[serde(default)]
    pub ports: Vec<String>,
    /// The addresses of its network cards, in the same order.
    #[serde(default)]
    pub macs: Vec<String>,
    /// MiB of memory.
    pub memory: u32,
    /// Virtual processors.
    pub cpus: u16,
    /// Who runs its instructions.
    pub accel: VmAccel,
    /// QEMU's process.
    pub pid: Option<u32>,
    /// Seconds since this netvmd has started it, or taken it over.
    pub uptime_s: Option<f64>,
    /// How often it was started again by itself.
    pub restarts: u64,
    /// How often its guest has reset, as far as this netvmd knows.
    pub resets: u64,
    /// How it ended last.
    pub last_exit: Option<String>,
    /// What is wrong with what runs, and what helps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Whether an earlier netvmd has started it.
    pub adopted: bool,
    /// Whether it runs otherwise than it is configured now.
    pub outdated: bool,
    /// The Unix socket of its serial console.
    pub console: PathBuf,
}

/// How to run a virtual machine without netvmd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmByHand {
    /// QEMU's program and arguments.
    pub command: Vec<String>,
    /// The same as one line for a shell.
    pub shell: String,
    /// The domain that `virsh define` takes.
    pub libvirt_xml: String,
}

/// How a virtual machine is stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopVm {
    /// Without asking its guest first.
    #[serde(default)]
    pub force: bool,
}
