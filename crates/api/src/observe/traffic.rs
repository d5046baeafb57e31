// SPDX-License-Identifier: Apache-2.0
//! NFs, chains and groups, with their counters.

use std::collections::BTreeMap;

use netvm_counters::{CHAIN, GROUP, NF, THREAD, shown, summed};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::port::PortInfo;

/// The state of an NF instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NfState {
    /// Started or attaching, but not ready.
    Starting,
    /// Receives packets.
    Running,
    /// Ready to replace one that dies.
    Standby,
    /// Makes no progress although packets wait for it; it gets no new ones.
    Hung,
    /// Gets packets but no core: others use it, or the limit of its cgroup is reached.
    Starved,
    /// Gets no new flows, and ends when those that it has have ended.
    Draining,
    /// Ended; netvmd will restart it after a pause.
    Backoff,
    /// Stopped, or stopping.
    Stopped,
    /// Not started by netvmd, and not attached.
    External,
}

impl NfState {
    /// Whether its chains pass packets to it.
    #[must_use]
    pub const fn gets_packets(self) -> bool {
        matches!(self, Self::Running | Self::Starved | Self::Draining)
    }
}

/// One instance of an NF: a process that runs, or that should run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NfInfo {
    /// Its role.
    pub role: String,
    /// Its number in that role, from 0; a restarted process keeps it.
    pub instance: u32,
    /// Its PID; `None` if there is no process, or if the PID is unknown.
    pub pid: Option<u32>,
    /// Its state.
    pub state: NfState,
    /// Whether netvmd starts it.
    pub managed: bool,
    /// Its trust group.
    pub group: String,
    /// Its threads.
    pub threads: Vec<ThreadInfo>,
    /// How often netvmd restarted it.
    pub restarts: u64,
    /// How it ended last, such as `killed by signal 9` or `exit status 1`.
    pub last_exit: Option<String>,
    /// Seconds since it attached.
    pub uptime_s: Option<f64>,
    /// The NF's own counters by name, over all threads.
    pub counters: BTreeMap<String, u64>,
    /// Protocol violations by name.
    pub violations: BTreeMap<String, u64>,
}

netvm_counters::nf! { shown! {
    /// What NF threads did with packets.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    pub struct NfPackets: NF {} {}
} }

netvm_counters::nf! { summed! { NfPackets } }

netvm_counters::thread! { shown! {
    /// One thread of an NF.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
    pub struct ThreadInfo: THREAD {
        /// Its NF thread number in the trust group.
        pub nf_thread: u8,
        /// What it did with packets.
        #[serde(flatten)]
        pub packets: NfPackets,
    } {}
} }

/// A role, over all its instances since netvmd started, those that have gone included: no count ever goes down.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RoleInfo {
    /// The role.
    pub role: String,
    /// What its threads did with packets.
    #[serde(flatten)]
    pub packets: NfPackets,
    /// The NF's own counters by name.
    pub counters: BTreeMap<String, u64>,
    /// Protocol violations by name.
    pub violations: BTreeMap<String, u64>,
}

/// The state of a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChainState {
    /// Every hop has an NF.
    Up,
    /// Packets skip a hop that has no NF.
    Bypassed,
    /// A hop has no NF: packets are dropped at the entry.
    #[default]
    Down,
}

netvm_counters::chain! { shown! {
    /// One chain.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
    pub struct ChainInfo: CHAIN {
        /// Its number.
        pub id: u16,
        /// Its name.
        pub name: String,
        /// The roles of its hops.
        pub hops: Vec<String>,
        /// Where its packets go after the last hop: a port, `ingress`, or nowhere.
        pub output: Option<String>,
        /// Its state.
        pub state: ChainState,
    } {}
} }

netvm_counters::group! { shown! {
    /// One trust group.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
    pub struct GroupInfo: GROUP {
        /// Its number.
        pub id: u16,
        /// Its name.
        pub name: String,
        /// Its memory, one region for each NUMA node.
        pub regions: Vec<RegionInfo>,
        /// Attached NF instances.
        pub instances: u32,
    } {}
} }

/// The memory of a trust group on one NUMA node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RegionInfo {
    /// The node.
    pub node: u32,
    /// Its pages, such as `2 MiB pages`.
    pub pages: String,
    /// Size of the whole region in bytes.
    pub bytes: u64,
    /// Number of buffers.
    pub buffers: u32,
    /// Bytes of a buffer.
    pub buffer_size: u32,
    /// Buffers with the engine: in its queues, caches and devices.
    pub in_engine: u32,
    /// Buffers with NFs.
    pub in_nfs: u32,
    /// Buffers that are free.
    pub free: u32,
}

/// Counts by reason.
pub type Reasons = BTreeMap<String, u64>;

/// Dropped packets by place and reason. Reasons that never occurred are left out. Packets that an NF's verdict drops
/// are in `nfs` and in `chains`, so the sum of all is not the number of dropped packets; `total` is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Drops {
    /// All dropped packets, each counted once.
    #[serde(default)]
    pub total: u64,
    /// By port: dropped before they entered a chain, or when they should have left.
    #[schema(value_type = BTreeMap<String, BTreeMap<String, u64>>)]
    pub ports: BTreeMap<String, Reasons>,
    /// By chain.
    #[schema(value_type = BTreeMap<String, BTreeMap<String, u64>>)]
    pub chains: BTreeMap<String, Reasons>,
    /// By role: dropped because of an NF's verdict.
    #[schema(value_type = BTreeMap<String, BTreeMap<String, u64>>)]
    pub nfs: BTreeMap<String, Reasons>,
}

impl Drops {
    /// Reasons of [`Drops::nfs`] that no chain counts: the packet's chain is unknown.
    pub const IN_NO_CHAIN: [&str; 2] = ["bad-chain", "bad-span"];

    /// The sum of all places in which each packet is counted once.
    #[must_use]
    pub fn sum(&self) -> u64 {
        let all =
            |places: &BTreeMap<String, Reasons>| places.values().flat_map(BTreeMap::values).sum::<u64>();
        let is_only_here = |reason: &str| Self::IN_NO_CHAIN.contains(&reason);
        let of_nfs = self.nfs.values().flatten().filter(|(reason, _)| is_only_here(reason));
        all(&self.ports) + all(&self.chains) + of_nfs.map(|(_, count)| count).sum::<u64>()
    }
}

/// The cost of one stage of the packet path (NetVM, NSDI 2014, Table 1).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StageInfo {
    /// The stage, such as `engine to NF`.
    pub stage: String,
    /// Packets that were timed.
    pub packets: u64,
    /// Cycles per packet.
    pub cycles_per_packet: f64,
    /// Nanoseconds per packet.
    pub ns_per_packet: f64,
}

/// All counters, read in one pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Stats {
    /// Seconds since netvmd started; two readings tell the time between them.
    pub uptime_s: f64,
    /// Ports.
    pub ports: Vec<PortInfo>,
    /// NF instances.
    pub nfs: Vec<NfInfo>,
    /// Roles, over all their instances.
    #[serde(default)]
    pub roles: Vec<RoleInfo>,
    /// Chains.
    pub chains: Vec<ChainInfo>,
    /// Trust groups.
    pub groups: Vec<GroupInfo>,
    /// Workers.
    pub workers: Vec<crate::WorkerInfo>,
    /// Drops.
    pub drops: Drops,
    /// Stages of the packet path.
    pub stages: Vec<StageInfo>,
    /// The engine's flow monitor, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_monitor: Option<crate::FlowMonitorInfo>,
    /// Tracked connections, if a port tracks them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<crate::ConnectionCounts>,
    /// Targets of NAT rules with `health`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nat_targets: Vec<crate::NatTargetInfo>,
}

/// Latencies of packets between two places, since they are measured: from the first request on, until a minute after
/// the last. Each worker measures one packet at a time, at most 50,000 a second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LatencyInfo {
    /// `port`: from reception by a port until a port's device had the packet; `nf`: the same of packets that an NF has
    /// made, from its ring; `chain`: from its first NF's ring until it left the chain; `hop`: from an NF's ring until
    /// the NF, or the last of several that pass packets on directly, returned it.
    pub of: String,
    /// Name: `lan > uplink`, `dns > lan`, `out`, `out: firewall > monitor`.
    pub name: String,
    /// Packets measured.
    pub samples: u64,
    /// Mean in microseconds.
    pub mean_us: f64,
    /// Half of them took no longer, in microseconds.
    pub p50_us: f64,
    /// 99 % of them took no longer.
    pub p99_us: f64,
    /// 99.9 % of them took no longer.
    pub p999_us: f64,
    /// The longest, to two digits.
    pub max_us: f64,
}
