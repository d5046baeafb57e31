//! Rules, what they decided, and what would become of a packet.

use serde::{Deserialize, Serialize};

/// The policy in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PolicyInfo {
    /// The rules, in order.
    pub rules: Vec<RuleInfo>,
    /// Bytes that compiled rules take.
    pub memory: u64,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleInfo {
    /// Its number, which it keeps while it is there.
    pub id: u32,
    /// Its name; empty when it has none.
    pub name: String,
    /// What it says, in one line.
    pub text: String,
    /// Packets that matched it.
    pub packets: u64,
    /// Bytes of these, without FCS.
    pub bytes: u64,
}

/// Where a new rule goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Position {
    /// Before all others.
    #[default]
    First,
    /// Behind all others.
    Last,
    /// Before the rule of this name or number.
    Before(String),
    /// Behind the rule of this name or number.
    After(String),
}

/// A rule to be added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddRule {
    /// The lines of a `[[rule]]`, as in the configuration.
    pub toml: String,
    /// Where it goes.
    pub position: Position,
}

/// A packet to be traced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceRequest {
    /// The port that it comes in by, by name.
    pub port: String,
    /// The frame without FCS, in hexadecimal; its beginning suffices, if `length` says how long it is.
    pub frame: String,
    /// Bytes of the frame; `None`: those of `frame`.
    pub length: Option<usize>,
}

/// What would become of a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceReply {
    /// The steps, in order, each in one line.
    pub steps: Vec<String>,
    /// The rule that decides; `None` when none does.
    pub rule: Option<RuleInfo>,
}

/// Flows that workers know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Flows {
    /// The flows, those with most packets first.
    pub flows: Vec<FlowInfo>,
    /// How each worker's cache does.
    pub caches: Vec<CacheInfo>,
}

/// One flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowInfo {
    /// The worker that knows it.
    pub worker: u8,
    /// The port that its packets come in by.
    pub port: String,
    /// Its addresses, ports and protocol, or its MAC addresses and EtherType.
    pub flow: String,
    /// The rule that decides; `None`: the port's default.
    pub rule: Option<String>,
    /// Packets since it is known.
    pub packets: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Seconds since the last packet.
    pub idle_s: f64,
    /// Seconds since it is known.
    pub age_s: f64,
    /// What NFs have said of the whole flow, as far as it holds.
    #[serde(default)]
    pub verdicts: Vec<FlowVerdictInfo>,
}

/// What an NF has said of a whole flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowVerdictInfo {
    /// The NF's role.
    pub role: String,
    /// What is done with the rest of the flow.
    pub verdict: FlowVerdict,
    /// Seconds for which it holds if no packet comes.
    pub left_s: f64,
}

/// What is done with the rest of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlowVerdict {
    /// It is dropped at the chain's entry.
    Drop,
    /// It passes the NF by.
    Skip,
}

/// How one worker's flow cache does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheInfo {
    /// The worker.
    pub worker: u8,
    /// Flows that it has room for.
    pub capacity: u64,
    /// Packets whose flow was known.
    pub hits: u64,
    /// Packets whose flow was not.
    pub misses: u64,
    /// Flows that made room for others.
    pub evicted: u64,
}

/// A MAC address that L2 switching knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressInfo {
    /// Its VLAN; 0 where ports are not aware of any.
    pub vlan: u16,
    /// The address.
    pub mac: String,
    /// The port behind which it is.
    pub port: String,
}
