// SPDX-License-Identifier: Apache-2.0
//! Traces of packets of traffic.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::FilterProgram;

/// Which packets to follow, and for how long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LiveTraceRequest {
    /// The answer ends after so many packets: 1 to [`LiveTraceRequest::MAX_PACKETS`].
    pub packets: u64,
    /// The answer ends after so many seconds: 1 to [`LiveTraceRequest::MAX_SECONDS`].
    pub seconds: u64,
    /// Only packets that this port receives. None: those that any port receives, and those that NFs make.
    pub from: Option<String>,
    /// NFs return packets to the engine after each hop of a chain while the trace runs, and do not pass them on
    /// directly.
    pub each_hop: bool,
    /// Classic BPF: operation, two jumps and a constant for each instruction. None: every packet.
    #[schema(value_type = Vec<Vec<u32>>)]
    pub filter: FilterProgram,
}

impl LiveTraceRequest {
    /// Most packets of a trace.
    pub const MAX_PACKETS: u64 = 100_000;
    /// Longest trace in seconds.
    pub const MAX_SECONDS: u64 = 3600;
}

impl Default for LiveTraceRequest {
    fn default() -> Self {
        Self { packets: 10, seconds: 60, from: None, each_hop: false, filter: FilterProgram::new() }
    }
}

/// What happened to a packet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TracedPacket {
    /// Its number in the trace, from 1.
    pub number: u64,
    /// When its port received it, or the NF that made it returned it, in seconds since 1970.
    pub time: f64,
    /// The worker that received it.
    pub worker: u8,
    /// The port that received it. None: an NF has made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// The role of the NF that has made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nf: Option<String>,
    /// Its length in bytes, without FCS.
    pub length: u32,
    /// What happened, in order.
    pub steps: Vec<TracedStep>,
}

/// A step of a packet. Names and reasons are given where the step has them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TracedStep {
    /// Nanoseconds since its port had received the packet, or the NF that made it had returned it.
    pub after_ns: u64,
    /// The worker that took the step.
    pub worker: u8,
    /// What happened.
    pub step: StepKind,
    /// The port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// The rule, by name or number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<String>,
    /// The NF's role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nf: Option<String>,
    /// The hop of the chain, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hop: Option<u8>,
    /// The NF's verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    /// The virtual router.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub router: Option<String>,
    /// Why it is dropped or punted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The step in one line.
    pub text: String,
}

impl TracedStep {
    /// A step without names.
    #[must_use]
    pub const fn new(step: StepKind, text: String) -> Self {
        Self {
            after_ns: 0,
            worker: 0,
            step,
            port: None,
            rule: None,
            chain: None,
            nf: None,
            hop: None,
            verdict: None,
            router: None,
            reason: None,
            text,
        }
    }
}

/// What happened in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StepKind {
    /// A port received it: from its device, or from another port if it has none.
    Received,
    /// An NF has made it.
    Made,
    /// Rules saw these header fields.
    Fields,
    /// Its headers cannot be parsed.
    Malformed,
    /// This rule matches, and a later one may decide.
    RuleMatches,
    /// This rule decides.
    RuleDecides,
    /// No rule decides: the port's default does.
    Default,
    /// Rates limit it.
    Policed,
    /// Its VLAN tag was changed.
    Retagged,
    /// It gets the VLAN tag of the port that sends it, of kind `vlan`.
    TagPushed,
    /// Its VLAN tag is taken off by the port that receives it, of kind `vlan`.
    TagPopped,
    /// Outer headers were put before it, which lead to a remote VTEP (`vxlan`).
    Encapsulated,
    /// Its outer headers were taken off.
    Decapsulated,
    /// NAT changed its source or destination, by the NAT rule that is given.
    Translated,
    /// A rule chose its queue.
    Queued,
    /// A port got a copy.
    Mirrored,
    /// L2 switching looked up its destination.
    Switched,
    /// L2 switching sends it only to members of its multicast group, and to routers.
    ToGroup,
    /// A copy of it goes to a port of the VLAN.
    Flooded,
    /// It enters a chain.
    Chain,
    /// It would leave its chain, or an NF would choose its port.
    ThroughChain,
    /// It waits for an NF that is starting.
    Waiting,
    /// An NF gets it.
    ToNf,
    /// An NF has returned it.
    FromNf,
    /// A program's port has received a packet of its flow, which is taken for it.
    CameBack,
    /// NFs have changed header fields.
    Rewritten,
    /// It leaves its chain.
    LeftChain,
    /// The kernel's flow table has its flow: the kernel forwards such a packet, and netvm does not see it. Of traffic:
    /// it had the flow until the trace began.
    ByKernel,
    /// It enters a virtual router.
    Router,
    /// The router forwards it.
    Routed,
    /// The router punts it to its kernel.
    Punted,
    /// A port sends it.
    Sent,
    /// Another worker gets it.
    HandedOver,
    /// It was cut into packets.
    Cut,
    /// Its sender gets an answer.
    Answered,
    /// It is dropped.
    Dropped,
    /// It is not followed any longer.
    Lost,
}
