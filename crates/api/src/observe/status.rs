// SPDX-License-Identifier: Apache-2.0
//! The state of netvmd and its workers.

use std::path::PathBuf;

use netvm_counters::{WORKER, shown};
use netvm_model::Idle;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Drift, RevisionInfo};

/// The state of netvmd, and what it runs on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Version of netvmd.
    pub version: String,
    /// The version of DPDK, such as `DPDK 22.11.7`.
    pub dpdk: String,
    /// Its PID.
    pub pid: u32,
    /// The configuration file that it was started with.
    #[schema(value_type = Option<String>)]
    pub config: Option<PathBuf>,
    /// How that file differs from what runs.
    #[serde(default)]
    pub drift: Drift,
    /// What runs: the configuration that came into force last, apart from rules that were added or deleted since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<RevisionInfo>,
    /// Seconds that are left to confirm the last change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm_within_s: Option<u64>,
    /// Seconds since it started.
    pub uptime_s: f64,
    /// Frequency of the clock that counts cycles, in Hz.
    pub clock_hz: u64,
    /// Whether packet memory is in huge pages.
    pub huge_pages: HugePages,
    /// The engine's workers.
    pub workers: Vec<WorkerInfo>,
    /// How many ports there are.
    pub ports: u32,
    /// How many NF instances receive packets.
    pub nfs: u32,
    /// How many chains there are.
    pub chains: u32,
    /// Packets dropped since netvmd started, each counted once.
    #[serde(default)]
    pub dropped: u64,
    /// Problems, a sentence each; empty: none.
    pub problems: Vec<String>,
}

/// The pages of packet memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HugePages {
    /// All regions are in huge pages.
    All,
    /// Some are.
    Some,
    /// None is.
    None,
}

netvm_counters::worker! { shown! {
    /// One worker.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
    pub struct WorkerInfo: WORKER {
        /// Its number.
        pub id: u8,
        /// Its core.
        pub core: u32,
        /// The NUMA node of that core.
        pub node: u32,
        /// What it does without packets.
        #[schema(value_type = String)]
        pub idle: Idle,
        /// Receive queues that it has, without those of sinks and of virtual routers' interfaces.
        #[serde(default)]
        pub queues: u32,
        /// Share of the last second spent on packets, in percent.
        pub busy_percent: f64,
    } {}
} }
