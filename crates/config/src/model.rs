//! The model: what the engine and the manager work by. A [`Host`] that came through [`crate::load`] is consistent: names
//! are unique, every name that is used exists, limits hold.
//!
//! # Numbers
//!
//! Groups, ports, NFs and chains carry their number (`id`) and are referred to by it; **their place in a `Vec` means
//! nothing** but the order in which people wrote them. Look an item up with [`Host::group`], [`Host::port`],
//! [`Host::nf`] or [`Host::chain`]. [`crate::load`] numbers from 0 in the order of the file. Before a new host is applied
//! to a running one, [`crate::assign_ids`] gives every item that both have by name the number that it has already, and
//! new items numbers that the running host does not use (as long as there are any), so that:
//!
//! - nothing that did not change changes its number in shared tables, descriptors or statistics;
//! - numbers may have holes, and every number is below its limit ([`MAX_PORTS`] and so on): index an array of that
//!   size by it, or keep a map;
//! - an item that is renamed is a removed one and a new one.

use std::fmt;
use std::path::PathBuf;

use netvm_wire::{IpNet, IpProto, PortRange, VlanId};
use serde::{Deserialize, Serialize};

/// Chains that a host can have; chain numbers are below it.
pub const MAX_CHAINS: usize = 256;
/// Hops that a chain can have.
pub const MAX_HOPS: usize = 16;
/// Roles that a host can have; role numbers are below it.
pub const MAX_ROLES: usize = 128;
/// Ports that a host can have; port numbers are below it.
pub const MAX_PORTS: usize = 256;
/// Trust groups that a host can have; group numbers are below it.
pub const MAX_GROUPS: usize = 64;
/// Workers that an engine can have.
pub const MAX_WORKERS: usize = 32;
/// NUMA nodes that an engine can be spread over.
pub const MAX_NODES: usize = 4;
/// Threads that an NF process can have.
pub const MAX_THREADS: usize = 16;
/// NF threads that a hop chooses from: replicas times threads.
pub const MAX_REPLICAS: usize = 8;
/// NF threads that a trust group can have, standby replicas included.
pub const MAX_GROUP_THREADS: usize = 63;
/// Bytes that a name can have.
pub const NAME_BYTES: usize = 32;

/// Number of a trust group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GroupId(pub u16);

/// Number of a port: the one in descriptors, verdicts and counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PortId(pub u16);

/// Number of a role: the one in descriptors, verdicts and counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RoleId(pub u16);

/// Number of a chain: the one in descriptors and counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ChainId(pub u16);

macro_rules! number {
    ($($name:ident),*) => {$(
        impl $name {
            /// The number as an index into an array that has a place for every possible one.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}
number!(GroupId, PortId, RoleId, ChainId);

/// Everything that one netvm runs.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Host {
    /// Cores, idling, memory pages.
    pub engine: EngineConfig,
    /// Trust groups, in the order of the file.
    pub groups: Vec<Group>,
    /// Ports, in the order of the file.
    pub ports: Vec<PortConfig>,
    /// Network functions, in the order of the file.
    pub nfs: Vec<NfConfig>,
    /// Chains, in the order of the file.
    pub chains: Vec<Chain>,
    /// Which traffic takes which way; the first rule that matches decides.
    pub steering: Vec<Steer>,
}

impl Host {
    /// The trust group of that number.
    #[must_use]
    pub fn group(&self, id: GroupId) -> Option<&Group> {
        self.groups.iter().find(|group| group.id == id)
    }

    /// The port of that number.
    #[must_use]
    pub fn port(&self, id: PortId) -> Option<&PortConfig> {
        self.ports.iter().find(|port| port.id == id)
    }

    /// The NF whose role has that number.
    #[must_use]
    pub fn nf(&self, id: RoleId) -> Option<&NfConfig> {
        self.nfs.iter().find(|nf| nf.id == id)
    }

    /// The chain of that number.
    #[must_use]
    pub fn chain(&self, id: ChainId) -> Option<&Chain> {
        self.chains.iter().find(|chain| chain.id == id)
    }

    /// The trust group of that name.
    #[must_use]
    pub fn group_named(&self, name: &str) -> Option<&Group> {
        self.groups.iter().find(|group| group.name == name)
    }

    /// The port of that name.
    #[must_use]
    pub fn port_named(&self, name: &str) -> Option<&PortConfig> {
        self.ports.iter().find(|port| port.name == name)
    }

    /// The NF of that role.
    #[must_use]
    pub fn nf_named(&self, role: &str) -> Option<&NfConfig> {
        self.nfs.iter().find(|nf| nf.role == role)
    }

    /// The chain of that name.
    #[must_use]
    pub fn chain_named(&self, name: &str) -> Option<&Chain> {
        self.chains.iter().find(|chain| chain.name == name)
    }

    /// The group in whose memory received packets of a port land: the port's own, else that of the first hop of the
    /// first chain it is steered to that has a hop; `None`: one of the engine's own.
    #[must_use]
    pub fn landing_group(&self, port: &PortConfig) -> Option<GroupId> {
        port.group.or_else(|| {
            self.steering.iter().filter(|rule| rule.port == port.id).find_map(|rule| match rule.action {
                SteerAction::Chain(chain) => self.nf(*self.chain(chain)?.hops.first()?).map(|nf| nf.group),
                SteerAction::Port(_) | SteerAction::Drop => None,
            })
        })
    }
}

/// How idle workers behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Idle {
    /// Spin: lowest latency, a whole core each.
    Poll,
    /// Back off to short sleeps, return to polling under load.
    #[default]
    Adaptive,
}

/// The engine as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// The core of each worker; empty: one worker on the first core this process may use.
    pub cores: Vec<u32>,
    /// How idle workers behave.
    pub idle: Idle,
    /// Whether huge pages are used when there are any.
    pub huge_pages: bool,
    /// Cores of each NUMA node; empty: as the machine says.
    pub nodes: Vec<Vec<u32>>,
    /// Slots of the rings between engine and NFs and between NFs, a power of two.
    pub ring_size: u32,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self { cores: Vec::new(), idle: Idle::default(), huge_pages: true, nodes: Vec::new(), ring_size: 512 }
    }
}

/// A trust group: NFs that may see each other's packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its number.
    pub id: GroupId,
    /// Its name.
    pub name: String,
    /// Cells of each of its regions.
    pub cells: u32,
    /// Bytes of a cell: headroom, packet and tailroom together.
    pub cell_size: u32,
    /// Bytes before a received packet.
    pub headroom: u16,
    /// Ports that its NFs may send out of, by number; `None`: the ports whose traffic its chains carry or output to.
    pub may_send_to: Option<Vec<PortId>>,
}

impl Default for Group {
    /// The group of a host that declares none: an Ethernet frame of 1,518 bytes fits a cell, with a headroom of 256.
    fn default() -> Self {
        Self {
            id: GroupId(0),
            name: "default".to_owned(),
            cells: 16_384,
            cell_size: 2048,
            headroom: 256,
            may_send_to: None,
        }
    }
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Its number.
    pub id: PortId,
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: PortKind,
    /// Receive and transmit queues; spread over the workers.
    pub queues: u16,
    /// Longest frame in bytes without FCS, minus 14.
    pub mtu: u16,
    /// The group in whose memory received packets land, by number; `None`: that of the first chain it is steered to,
    /// else a group of the engine's own.
    pub group: Option<GroupId>,
}

/// The kinds of port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// A physical NIC by PCI address, driven by DPDK.
    Pci {
        /// Such as `0000:3b:00.0`.
        address: String,
    },
    /// A kernel interface by AF_XDP, packets landing in the region itself.
    AfXdp {
        /// Name of the interface.
        interface: String,
        /// Generic (skb) mode even where the driver could do better.
        generic: bool,
    },
    /// A kernel interface by AF_PACKET (DPDK).
    AfPacket {
        /// Name of the interface.
        interface: String,
    },
    /// A TAP interface that the port makes (DPDK).
    Tap {
        /// Name of the interface.
        interface: String,
    },
    /// A capture is read, a capture is written.
    Pcap {
        /// The capture to read; `None`: nothing comes in.
        input: Option<PathBuf>,
        /// The capture to write; `None`: what goes out is discarded.
        output: Option<PathBuf>,
        /// Keep the capture's own pace (by its time stamps) in place of as fast as possible.
        paced: bool,
    },
    /// DPDK's null device: packets from nowhere to nowhere, as fast as possible.
    Null {
        /// Length of received frames in bytes.
        size: u16,
    },
    /// Built-in traffic source; what goes out is discarded.
    Source(SourceConfig),
    /// Built-in sink: nothing comes in, what goes out is counted and discarded.
    Sink,
}

impl PortKind {
    /// The word that the configuration has for it.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Pci { .. } => "pci",
            Self::AfXdp { .. } => "af_xdp",
            Self::AfPacket { .. } => "af_packet",
            Self::Tap { .. } => "tap",
            Self::Pcap { .. } => "pcap",
            Self::Null { .. } => "null",
            Self::Source(_) => "source",
            Self::Sink => "sink",
        }
    }
}

/// The traffic of a [`PortKind::Source`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceConfig {
    /// Length of the frames in bytes, without FCS (64-byte Ethernet frames: 60).
    pub size: u16,
    /// How many flows (UDP 5-tuples).
    pub flows: u32,
    /// Packets per second; `None`: flat out.
    pub rate: Option<u64>,
    /// Wait for room at the chain's entry instead of overrunning it.
    pub lossless: bool,
    /// Stop after so many packets.
    pub count: Option<u64>,
}

impl Default for SourceConfig {
    /// The shortest Ethernet frames, one flow, flat out.
    fn default() -> Self {
        Self { size: 60, flows: 1, rate: None, lossless: false, count: None }
    }
}

/// Who starts an NF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NfStart {
    /// netvmd: program and arguments, restarted with back-off when it ends.
    Managed {
        /// Program and arguments.
        command: Vec<String>,
        /// The user it runs as when netvmd is root, by name or number.
        user: String,
        /// Replicas that take packets.
        replicas: u16,
        /// Replicas that are attached and wait to take a dead one's place.
        standby: u16,
        /// Cores that its threads may use; empty: all that no worker has, or all.
        cores: Vec<u32>,
        /// Environment variables, in order.
        environment: Vec<(String, String)>,
        /// Threads, each with rings of its own.
        threads: u16,
    },
    /// It attaches by itself.
    External {
        /// Users that may attach it besides root, by name or number.
        users: Vec<String>,
    },
}

/// A network function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfConfig {
    /// The number of its role.
    pub id: RoleId,
    /// The role under which its instances answer.
    pub role: String,
    /// Its trust group, by number.
    pub group: GroupId,
    /// How replicas are chosen.
    pub balance: Balance,
    /// Who starts it.
    pub start: NfStart,
}

/// How one of several replicas is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Balance {
    /// The one with the emptiest ring.
    #[default]
    LeastOccupied,
    /// By the flow's hash.
    FlowHash,
}

/// What happens to a chain's traffic while a hop has no NF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// Dropped at the chain's entry.
    #[default]
    Drop,
    /// The hop is left out.
    Bypass,
    /// A standby replica takes over; dropped at the entry when there is none.
    Standby,
}

/// Where a chain's packets go after the last hop's "next".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Out of a port, by number.
    Port(PortId),
    /// Out of the port they came in by.
    Ingress,
    /// Nowhere: the last NF must name a port; what it does not is dropped and counted.
    None,
}

/// A chain: the ordered roles that a class of traffic passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its number.
    pub id: ChainId,
    /// Its name.
    pub name: String,
    /// NFs, by number.
    pub hops: Vec<RoleId>,
    /// What happens while a hop has no NF.
    pub on_failure: OnFailure,
    /// Where its packets go in the end.
    pub output: Output,
}

/// What is done with packets that match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SteerAction {
    /// Into a chain, by number.
    Chain(ChainId),
    /// Straight out of a port, by number.
    Port(PortId),
    /// Discard.
    Drop,
}

/// One rule of static steering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steer {
    /// Ingress port, by number.
    pub port: PortId,
    /// What must match besides; nothing: everything does.
    pub matches: Match,
    /// What is done.
    pub action: SteerAction,
}

/// Fields that must match; `None` matches everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Match {
    /// Outer VLAN.
    pub vlan: Option<VlanId>,
    /// Source address.
    pub source: Option<IpNet>,
    /// Destination address.
    pub destination: Option<IpNet>,
    /// IP protocol.
    pub protocol: Option<IpProto>,
    /// Source ports (TCP, UDP, SCTP).
    pub source_ports: Option<PortRange>,
    /// Destination ports (TCP, UDP, SCTP).
    pub destination_ports: Option<PortRange>,
}

impl Match {
    /// Whether everything matches.
    #[must_use]
    pub fn is_any(&self) -> bool {
        *self == Self::default()
    }
}
