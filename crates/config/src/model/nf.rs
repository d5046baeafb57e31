//! Network functions, and the chains that lead through them.

use netvm_policy::{ChainId, PortId, RouterId};
use serde::{Deserialize, Serialize};

use super::{GroupId, RoleId};

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
    /// Seconds without a packet for which its word about a flow (drop the rest, skip me) holds at most; 0: it has no say in flows.
    pub flow_verdicts: u16,
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
    /// The one with the emptiest ring at the flow's first packet, and that one from then on.
    Sticky,
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
    /// To L2 switching, as if they had come in just now by the port they came in by.
    Normal,
    /// To a virtual router, likewise.
    Router(RouterId),
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
