//! Ports, NFs, chains, groups, and what they count.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortInfo {
    /// Its number.
    pub id: u16,
    /// Its name.
    pub name: String,
    /// Its kind, as in the configuration.
    pub kind: String,
    /// The driver, and the mode it works in: such as `af_xdp native, zero-copy`, `net_af_packet`.
    pub driver_mode: String,
    /// Whether the link is up.
    pub link: bool,
    /// Receive and transmit queues.
    pub queues: u16,
    /// Longest frame in bytes without FCS, minus 14.
    pub mtu: u16,
    /// The trust group in whose memory its packets land; `None`: memory of the engine's own.
    pub group: Option<String>,
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes of these, without FCS.
    pub rx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes of these.
    pub tx_bytes: u64,
    /// Packets that the device or the kernel dropped for want of room before the engine saw them, as far as it tells; of a
    /// source with a rate, those that were due and not made in time. Since the port was opened.
    pub rx_dropped: u64,
    /// Packets that could not be sent.
    pub tx_dropped: u64,
}

/// Where an NF instance is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NfState {
    /// Started or attaching, not ready yet.
    Starting,
    /// Takes packets.
    Running,
    /// Ready to take a dead one's place.
    Standby,
    /// Ended; netvmd waits before it starts it again.
    Backoff,
    /// Stopped, or stopping.
    Stopped,
    /// Not started by netvmd, and nobody has attached as it.
    External,
}

/// One instance of an NF: a process that runs, or that should.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NfInfo {
    /// Its role.
    pub role: String,
    /// Which instance of that role, from 0; a restarted process keeps the number.
    pub instance: u32,
    /// Its process number; `None` while there is no process, or when it is not known.
    pub pid: Option<u32>,
    /// Where it is in its life.
    pub state: NfState,
    /// Whether netvmd starts it.
    pub managed: bool,
    /// Its trust group.
    pub group: String,
    /// Its threads.
    pub threads: Vec<ThreadInfo>,
    /// How often it was started again.
    pub restarts: u64,
    /// How it ended last, such as `killed by signal 9` or `exit status 1`.
    pub last_exit: Option<String>,
    /// Seconds since it attached.
    pub uptime_s: Option<f64>,
    /// The NF's own counters by name, all threads together.
    pub counters: BTreeMap<String, u64>,
    /// What no honest NF does, by name.
    pub violations: BTreeMap<String, u64>,
}

/// One thread of an NF.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThreadInfo {
    /// Its NF thread number in the trust group.
    pub nf_thread: u8,
    /// Packets it took.
    pub received: u64,
    /// Packets it passed to the next hop.
    pub next: u64,
    /// Packets it dropped.
    pub dropped: u64,
    /// Packets it sent out of a port.
    pub port: u64,
    /// Packets it sent to a role.
    pub role: u64,
    /// Of all these, packets that found the ring after them full and went by the engine.
    pub detoured: u64,
    /// Packets with which it decided about the rest of their flows (drop, or skip me).
    pub flows_decided: u64,
    /// Packets for which the engine refused its verdict: it may not decide, or the engine no longer knew the flow.
    pub flows_refused: u64,
    /// Cycles per packet, the NF's own code and netlib's.
    pub cycles_per_packet: f64,
    /// Cycles per packet of the NF's own code alone.
    pub nf_cycles_per_packet: f64,
    /// Bursts it took.
    pub bursts: u64,
    /// How often it slept.
    pub sleeps: u64,
}

/// What all instances of a role have counted since netvmd started, those that are gone included: it never goes back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleInfo {
    /// The role.
    pub role: String,
    /// Packets they took.
    pub received: u64,
    /// Packets they passed to the next hop.
    pub next: u64,
    /// Packets they dropped.
    pub dropped: u64,
    /// Packets they sent out of a port.
    pub port: u64,
    /// Packets they sent to a role.
    pub to_role: u64,
    /// Of all these, packets that found the ring after them full and went by the engine.
    pub detoured: u64,
    /// Packets with which they decided about the rest of their flows.
    pub flows_decided: u64,
    /// Packets whose per-flow verdict the engine refused.
    pub flows_refused: u64,
    /// Their own counters by name.
    pub counters: BTreeMap<String, u64>,
    /// What no honest NF does, by name.
    pub violations: BTreeMap<String, u64>,
}

/// Whether a chain's traffic goes its whole way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChainState {
    /// Every hop has an NF.
    Up,
    /// A hop without an NF is left out.
    Bypassed,
    /// A hop has no NF: dropped at the entry.
    Down,
}

/// One chain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChainInfo {
    /// Its number.
    pub id: u16,
    /// Its name.
    pub name: String,
    /// The roles it passes.
    pub hops: Vec<String>,
    /// Where its packets go in the end: a port, `ingress`, or nowhere.
    pub output: Option<String>,
    /// Whether its traffic goes its whole way.
    pub state: ChainState,
    /// Packets that entered.
    pub entered: u64,
    /// Packets that left by a port.
    pub left: u64,
    /// Packets dropped at the entry, before any NF had them.
    pub dropped_at_entry: u64,
    /// Packets dropped later.
    pub dropped_inside: u64,
}

/// One trust group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupInfo {
    /// Its number.
    pub id: u16,
    /// Its name.
    pub name: String,
    /// Its memory, one region for each NUMA node.
    pub regions: Vec<RegionInfo>,
    /// NF instances that have attached.
    pub instances: u32,
    /// Buffers taken back from NFs that died or left, since netvmd started.
    pub reclaimed_total: u64,
    /// The longest that taking them back took, in milliseconds.
    pub longest_reclaim_ms: f64,
}

/// The memory of a trust group on one NUMA node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegionInfo {
    /// The node.
    pub node: u32,
    /// What it is made of, such as `2 MiB pages`.
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

/// Dropped packets by where and why. Reasons that never occurred are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drops {
    /// By port: dropped before they entered a chain, or when they were to go out.
    pub ports: BTreeMap<String, Reasons>,
    /// By chain.
    pub chains: BTreeMap<String, Reasons>,
    /// By role.
    pub nfs: BTreeMap<String, Reasons>,
}

impl Drops {
    /// All dropped packets.
    #[must_use]
    pub fn total(&self) -> u64 {
        [&self.ports, &self.chains, &self.nfs]
            .into_iter()
            .flat_map(BTreeMap::values)
            .flat_map(BTreeMap::values)
            .sum()
    }
}

/// What one stage of the packet path costs (NetVM, NSDI 2014, Table 1).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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

/// Everything that is counted, read in one pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Seconds since netvmd started: the difference of two of these is the time between them.
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
}
