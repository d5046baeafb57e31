// SPDX-License-Identifier: Apache-2.0
//! Rules and their counters, traces of packets, flows, MAC addresses, multicast groups.

mod multicast;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use multicast::{MulticastDomain, MulticastGroup, MulticastInfo, MulticastMember, MulticastPort};

/// The policy in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PolicyInfo {
    /// The rules, in order.
    pub rules: Vec<RuleInfo>,
    /// Bytes of the compiled rules.
    pub memory: u64,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RuleInfo {
    /// Its number, which never changes.
    pub id: u32,
    /// Its name; empty when it has none.
    pub name: String,
    /// The rule, in one line.
    pub text: String,
    /// Whether it applies now; always, unless it has a `time` or a `load`, or only labels that no port has.
    #[serde(default = "applies")]
    pub active: bool,
    /// The labels that it names and no port has now, a line each, with those that ports have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// Packets that matched it.
    pub packets: u64,
    /// Bytes of the packets that matched the rule, without FCS.
    pub bytes: u64,
}

/// Rules of an older netvmd always apply.
const fn applies() -> bool {
    true
}

/// The position of a new rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Default, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Position {
    /// Before all others.
    #[default]
    First,
    /// After all others.
    Last,
    /// Before the rule of this name or number.
    Before(String),
    /// After the rule of this name or number.
    After(String),
}

/// A rule to add.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AddRule {
    /// The lines of a `[[rule]]`, as in the configuration.
    pub toml: String,
    /// Its position.
    pub position: Position,
}

/// A packet to trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceRequest {
    /// The name of its ingress port.
    pub port: String,
    /// The frame without FCS, in hexadecimal; the headers suffice if `length` is given.
    pub frame: String,
    /// Bytes of the frame; `None`: the length of `frame`.
    pub length: Option<usize>,
    /// What connection tracking finds of it, where ports track: `new`, `established`, `related`, `invalid` or
    /// `untracked`; `None`: `new`.
    #[serde(default)]
    pub state: Option<String>,
}

/// What would happen to a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceReply {
    /// The steps, in order, each in one line.
    pub steps: Vec<String>,
    /// The rule that decides, if one does.
    pub rule: Option<RuleInfo>,
}

/// The flows in the flow caches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Flows {
    /// The flows, those with most packets first.
    pub flows: Vec<FlowInfo>,
    /// The flow cache of each worker.
    pub caches: Vec<CacheInfo>,
    /// For each port of the flows that has labels: these.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub port_labels: BTreeMap<String, BTreeMap<String, String>>,
}

/// One flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FlowInfo {
    /// The worker whose cache has it.
    pub worker: u8,
    /// The ingress port.
    pub port: String,
    /// Its addresses, ports and protocol, or its MAC addresses and EtherType.
    pub flow: String,
    /// The rule that decides; `None`: the port's default.
    pub rule: Option<String>,
    /// Packets since it is in the cache.
    pub packets: u64,
    /// Bytes of the packets of the flow.
    pub bytes: u64,
    /// Seconds since the last packet.
    pub idle_s: f64,
    /// Seconds since it is in the cache.
    pub age_s: f64,
    /// The NFs' verdicts on the whole flow that are in force.
    #[serde(default)]
    pub verdicts: Vec<FlowVerdictInfo>,
    /// The kernel's flow table has it, and no worker's cache: the kernel forwards it.
    #[serde(default)]
    pub by_kernel: bool,
}

/// An NF's verdict on a whole flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FlowVerdictInfo {
    /// The NF's role.
    pub role: String,
    /// What happens to the rest of the flow.
    pub verdict: FlowVerdict,
    /// Where a steered flow goes, such as `chain scrub`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Seconds until it expires if no packet comes.
    pub left_s: f64,
}

/// What happens to the rest of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FlowVerdict {
    /// The engine drops it at the chain's entry.
    Drop,
    /// It bypasses the NF.
    Skip,
    /// It goes elsewhere.
    Steer,
}

/// One worker's flow cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CacheInfo {
    /// The worker.
    pub worker: u8,
    /// Most flows that it holds.
    pub capacity: u64,
    /// Packets whose flow was in the cache.
    pub hits: u64,
    /// Packets whose flow was not in the cache.
    pub misses: u64,
    /// Flows that were evicted.
    pub evicted: u64,
}

/// A MAC address that L2 switching has learned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AddressInfo {
    /// Its VLAN; 0 if ports ignore VLANs.
    pub vlan: u16,
    /// The address.
    pub mac: String,
    /// The port that it was learned from.
    pub port: String,
}
