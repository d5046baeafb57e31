// SPDX-License-Identifier: Apache-2.0
//! Network functions, and the chains that lead through them.

use std::path::PathBuf;

use netvm_ids::{ChainId, GroupId, PortId, RoleId, RouterId};

use crate::words::words;

mod pair;

pub use pair::{Attach, AttachInfo, HOP_SOCKETS, PairConfig, PairEnd, PairSide, WhileStarting};

/// What starts an NF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NfStart {
    /// netvmd: program and arguments, restarted with back-off when it ends.
    Managed {
        /// Program and arguments.
        command: Vec<String>,
        /// The user it runs as when netvmd is root, by name or number.
        user: String,
        /// Replicas that process packets: with `scale`, the fewest.
        replicas: u16,
        /// With it, their number follows their load.
        scale: Option<Scale>,
        /// Replicas that are attached and wait to replace one that dies.
        standby: u16,
        /// Cores that its threads may use; empty: all without a worker, else all.
        cores: Vec<u32>,
        /// Environment variables, in order.
        environment: Vec<(String, String)>,
        /// Threads, each with rings of its own.
        threads: u16,
        /// Resource limits of each process.
        limits: NfLimits,
    },
    /// It attaches by itself.
    External {
        /// Users that may attach it besides root, by name or number.
        users: Vec<String>,
    },
    /// It knows nothing of netvm: its packets pass a pair of ports.
    Ports(PairConfig),
}

/// How the number of replicas follows their load: the mean of how full their fullest rings are, in percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// The most replicas.
    pub most: u16,
    /// One more starts when the load is above this,
    pub grow_above: u8,
    /// and one ends when it is below this,
    pub shrink_below: u8,
    /// each for so many seconds.
    pub seconds: u16,
    /// Seconds that live flows of a replica keep it before it ends.
    pub drain: u16,
}

/// Resource limits of a process of an NF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfLimits {
    /// MiB of memory, besides the packet memory.
    pub memory: u32,
    /// Tasks: processes and threads.
    pub tasks: u32,
    /// Its share of contended cores, relative to other processes; 100 is the default of Linux.
    pub cpu_weight: u32,
    /// Folders in which it may create and change files; it may read all that its user may read.
    pub writable: Vec<PathBuf>,
}

impl Default for NfLimits {
    fn default() -> Self {
        Self { memory: 1024, tasks: 128, cpu_weight: 100, writable: Vec::new() }
    }
}

/// A network function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfConfig {
    /// The number of its role.
    pub id: RoleId,
    /// The role that its instances attach as.
    pub role: String,
    /// Its trust group, by number.
    pub group: GroupId,
    /// How replicas are chosen.
    pub balance: Balance,
    /// Idle seconds after which its verdict on a whole flow (drop the rest, bypass this NF) expires; 0: it
    /// may not give such verdicts.
    pub flow_verdicts: u16,
    /// Where it may steer the rest of a flow.
    pub steer: Vec<SteerTo>,
    /// Seconds without progress after which it counts as hung; 0: never. Time in which it waits for a core does not
    /// count.
    pub hang_timeout: u16,
    /// Most buffers for packets of its own that each of its threads has of each worker.
    pub allocate: u16,
    /// Most packets that each of its threads holds.
    pub hold: u16,
    /// What starts it.
    pub start: NfStart,
}

impl NfConfig {
    /// The program and its ports, if its packets pass a pair of ports.
    #[must_use]
    pub const fn pair(&self) -> Option<&PairConfig> {
        match &self.start {
            NfStart::Ports(pair) => Some(pair),
            _ => None,
        }
    }

    /// Whether the number of its replicas follows their load.
    #[must_use]
    pub const fn scales(&self) -> bool {
        matches!(self.start, NfStart::Managed { scale: Some(_), .. })
    }
}

/// The default of [`NfConfig::hang_timeout`]. A busy disk or short memory can hold up a thread for a second or two.
pub const DEFAULT_HANG_TIMEOUT: u16 = 5;

/// The default of [`NfConfig::allocate`]. Buffers are taken only by NFs that make packets.
pub const DEFAULT_ALLOCATE: u16 = 256;

/// Where an NF may send the rest of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SteerTo {
    /// Into a chain, by number.
    Chain(ChainId),
    /// To a role, by number: of its chain, or of its trust group.
    Role(RoleId),
    /// Out of a port, by number.
    Port(PortId),
}

/// How one of several replicas is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Balance {
    /// The one with the emptiest ring.
    #[default]
    LeastOccupied,
    /// By the flow's hash.
    FlowHash,
    /// The one with the emptiest ring at the flow's first packet, and the same one for the rest of the flow.
    Sticky,
}
words!(Balance: "least-occupied" => LeastOccupied, "flow-hash" => FlowHash, "sticky" => Sticky);

/// What happens to a chain's traffic while a hop has no NF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// Dropped at the chain's entry.
    #[default]
    Drop,
    /// Packets skip the hop.
    Bypass,
    /// A standby replica takes over; dropped at the entry when there is none.
    Standby,
}
words!(OnFailure: "drop" => Drop, "bypass" => Bypass, "standby" => Standby);

/// Where a chain's packets go if the last hop's verdict is "next".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Output {
    /// Out of a port, by number.
    Port(PortId),
    /// Out of their ingress port.
    Ingress,
    /// To L2 switching, as if their ingress port had just received them.
    Normal,
    /// To a virtual router, likewise.
    Router(RouterId),
    /// Nowhere: the last NF must name a port; other packets are dropped and counted.
    #[default]
    None,
}

/// A chain: the ordered roles that a class of traffic passes through.
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
    /// Where its packets go after the last hop.
    pub output: Output,
    /// The chain whose other direction it is: its packets pass programs from the right port to the left one.
    pub reverse: Option<ChainId>,
}
