// SPDX-License-Identifier: Apache-2.0
//! Virtual machines.

use std::path::PathBuf;

use netvm_model::VmAccel;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The state of a virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VmState {
    /// QEMU has been started, but does not answer yet.
    Starting,
    /// It runs.
    Running,
    /// Its virtual processors are stopped.
    Paused,
    /// It is shutting down.
    Stopping,
    /// It has ended; netvmd will restart it after a pause.
    Backoff,
    /// It does not run.
    Stopped,
    /// It must be started by hand, and has not been.
    Awaited,
}

/// A virtual machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VmInfo {
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: VmState,
    /// Its role as an NF; absent for an ordinary guest.
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
    /// What runs its instructions.
    #[schema(value_type = String)]
    pub accel: VmAccel,
    /// The PID of QEMU.
    pub pid: Option<u32>,
    /// Seconds since this netvmd started or adopted it.
    pub uptime_s: Option<f64>,
    /// How often netvmd restarted it.
    pub restarts: u64,
    /// How often its guest has reset, since this netvmd watches it.
    pub resets: u64,
    /// How it ended last.
    pub last_exit: Option<String>,
    /// What is wrong with it, and the remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Whether an earlier netvmd started it.
    pub adopted: bool,
    /// Whether it runs with an older configuration.
    pub outdated: bool,
    /// The Unix socket of its serial console.
    #[schema(value_type = String)]
    pub console: PathBuf,
}

/// How to run a virtual machine without netvmd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VmManualStart {
    /// QEMU's program and arguments.
    pub command: Vec<String>,
    /// The same as one line for a shell.
    pub shell: String,
    /// The domain that `virsh define` takes.
    pub libvirt_xml: String,
}

/// How a virtual machine is stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StopVm {
    /// Without asking its guest first.
    #[serde(default)]
    pub force: bool,
}
