// SPDX-License-Identifier: Apache-2.0
//! The engine as a whole: workers, flow cache, L2 switching, policy memory; and trust groups.

use std::path::PathBuf;

use netvm_flowmon::export::Target;
use netvm_ids::{GroupId, PortId};

use crate::words::words;

mod api;
mod connections;
mod health;
mod multicast;

pub use api::{ApiConfig, Fingerprint, ParseFingerprintError, RemoteApi, RemoteClient, RemoteUser, Role};
pub use connections::{ConnectionLog, ConnectionTimeouts, ConnectionsConfig, LogSubject};
pub use health::HealthConfig;
pub use multicast::{McastRouter, ParseStaticGroupError, PortSnooping, SnoopingConfig, StaticGroup};

/// What workers do without packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Idle {
    /// Spin: lowest latency, a whole core for each worker.
    Poll,
    /// Back off to short sleeps; poll again under load.
    #[default]
    Adaptive,
}
words!(Idle: "adaptive" => Adaptive, "poll" => Poll);

/// The engine as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// The core of each worker; empty: one worker on the first core this process may use.
    pub cores: Vec<u32>,
    /// How idle workers behave.
    pub idle: Idle,
    /// Whether to use huge pages if the machine has them.
    pub huge_pages: bool,
    /// Cores of each NUMA node; empty: the machine's.
    pub nodes: Vec<Vec<u32>>,
    /// Slots of the rings between engine and NFs and between NFs, a power of two.
    pub ring_size: u32,
    /// The flow cache of each worker.
    pub flow_cache: FlowCacheConfig,
    /// The flow monitor of each worker; `None`: flows are not counted.
    pub flow_monitor: Option<FlowMonitorConfig>,
    /// Connection tracking.
    pub connections: ConnectionsConfig,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            cores: Vec::new(),
            idle: Idle::default(),
            huge_pages: true,
            nodes: Vec::new(),
            ring_size: 512,
            flow_cache: FlowCacheConfig::default(),
            flow_monitor: None,
            connections: ConnectionsConfig::default(),
        }
    }
}

impl EngineConfig {
    /// The workers' cores in a process that may use the cores `allowed`.
    #[must_use]
    pub fn workers<'a>(&'a self, allowed: &'a [u32]) -> &'a [u32] {
        if self.cores.is_empty() { &allowed[..allowed.len().min(1)] } else { &self.cores }
    }
}

/// The exact-match cache of flows that each worker has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowCacheConfig {
    /// Capacity in flows.
    pub entries: u32,
    /// Which flow a full cache evicts.
    pub eviction: Eviction,
    /// Seconds without a packet after which the cache removes a flow.
    pub idle: u32,
}

impl Default for FlowCacheConfig {
    /// 131,072 flows by CLOCK, forgotten after 30 s.
    fn default() -> Self {
        Self { entries: 131_072, eviction: Eviction::default(), idle: 30 }
    }
}

/// Which flow a full cache evicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Eviction {
    /// A flow that had no packet since the clock hand last passed it.
    #[default]
    Clock,
    /// The least recently used flow.
    Lru,
}
words!(Eviction: "clock" => Clock, "lru" => Lru);

/// The flow monitor of each worker: counts the flows of received packets, except of ports with `monitor =
/// false`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowMonitorConfig {
    /// The table of flows.
    pub table: MonitorTable,
    /// Minimum capacity in flows.
    pub flows: u32,
    /// Seconds without a packet after which a flow ends.
    pub idle_timeout: u32,
    /// Seconds after which a flow that continues gets a record.
    pub active_timeout: u32,
    /// Counts one packet of this many.
    pub sampling: u32,
    /// Whether to read names from DNS and TLS.
    pub names: bool,
    /// IPFIX collector of the records.
    pub export: Option<Target>,
    /// File to which records and drops are appended as JSON lines.
    pub eve: Option<PathBuf>,
}

impl Default for FlowMonitorConfig {
    /// The defaults of `netvm-monitor`.
    fn default() -> Self {
        Self {
            table: MonitorTable::default(),
            flows: 65_536,
            idle_timeout: 15,
            active_timeout: 60,
            sampling: 1,
            names: true,
            export: None,
            eve: None,
        }
    }
}

/// The table of a flow monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum MonitorTable {
    /// None: reads headers and counts lengths, for measurements.
    Null,
    /// Four subtables, the emptiest bucket.
    DLeft,
    /// Two buckets, found by tags.
    #[default]
    Tagged,
}
words!(MonitorTable: "tagged" => Tagged, "d-left" => DLeft, "null" => Null);

/// L2 switching as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SwitchConfig {
    /// Entries of the forwarding database, for all ports together.
    pub macs: u32,
    /// Seconds after which an entry whose address sent no packet is removed (IEEE 802.1Q, ageing time).
    pub mac_age: u32,
    /// Seconds for which an address that moved to another port stays there, whatever other ports send; 0: none.
    pub mac_hold: u32,
    /// Whether frames to 01:80:c2:00:00:00 to 0f (STP, LACP, LLDP), except PAUSE frames, are flooded.
    pub forward_bpdu: bool,
    /// IGMP and MLD snooping.
    pub multicast: SnoopingConfig,
}

impl Default for SwitchConfig {
    /// 32,768 addresses; 300 s, the default of IEEE 802.1Q (table 8-7); a hold of a second; no snooping.
    fn default() -> Self {
        let multicast = SnoopingConfig::default();
        Self { macs: 32_768, mac_age: 300, mac_hold: 1, forward_bpdu: false, multicast }
    }
}

/// The policy as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PolicyConfig {
    /// MiB that compiled rules may take; rule sets that need more are refused.
    pub memory: u32,
}

impl Default for PolicyConfig {
    /// 256 MiB.
    fn default() -> Self {
        Self { memory: 256 }
    }
}

/// A trust group: NFs that may see each other's packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its number.
    pub id: GroupId,
    /// Its name.
    pub name: String,
    /// Buffers of each of its regions.
    pub buffers: u32,
    /// Bytes of a buffer: headroom, packet and tailroom together.
    pub buffer_size: u32,
    /// Bytes in front of a received packet.
    pub headroom: u16,
    /// Buffers of 64 KiB in each of its regions, for TCP and UDP segments.
    pub large_buffers: u32,
    /// Ports that its NFs may send out of, by number; `None`: the ports whose traffic its chains carry or output to.
    pub may_send_to: Option<Vec<PortId>>,
}

impl Default for Group {
    /// The group of a host that declares none: an Ethernet frame of 1,518 bytes fits a buffer, with a headroom of 256.
    /// Large buffers take 8 MiB.
    fn default() -> Self {
        Self {
            id: GroupId(0),
            name: "default".to_owned(),
            buffers: 16_384,
            buffer_size: 2048,
            headroom: 256,
            large_buffers: 128,
            may_send_to: None,
        }
    }
}
