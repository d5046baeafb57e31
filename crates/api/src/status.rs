//! The daemon as a whole.

use std::path::PathBuf;

use netvm_config::model::Idle;
use serde::{Deserialize, Serialize};

/// What netvmd is and on what it runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of netvmd.
    pub version: String,
    /// Version of DPDK that it runs with, such as `DPDK 22.11.7`.
    pub dpdk: String,
    /// Its process number.
    pub pid: u32,
    /// The configuration file it was started with.
    pub config: Option<PathBuf>,
    /// Seconds since it started.
    pub uptime_s: f64,
    /// Frequency of the clock in which cycles are counted, in Hz.
    pub clock_hz: u64,
    /// Whether packets lie in huge pages.
    pub huge_pages: HugePages,
    /// The engine's workers.
    pub workers: Vec<WorkerInfo>,
    /// How many ports there are.
    pub ports: u32,
    /// How many NF instances take packets.
    pub nfs: u32,
    /// How many chains there are.
    pub chains: u32,
    /// What is not as it should be, a sentence each; empty: all is well.
    pub problems: Vec<String>,
}

/// What the memory of packets is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HugePages {
    /// All regions are in huge pages.
    All,
    /// Some are.
    Some,
    /// None is.
    None,
}

/// One worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerInfo {
    /// Its number.
    pub id: u8,
    /// Its core.
    pub core: u32,
    /// The NUMA node of that core.
    pub node: u32,
    /// How it behaves when idle.
    pub idle: Idle,
    /// Share of the last second that it spent on packets, in percent.
    pub busy_percent: f64,
    /// How often it slept.
    pub sleeps: u64,
    /// Packets that it copied from one trust group's memory to another's.
    pub copies: u64,
    /// Bytes of these.
    pub copied_bytes: u64,
    /// Longest turn of its loop, sleep excluded, in microseconds.
    pub longest_turn_us: f64,
}
