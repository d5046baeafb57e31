// SPDX-License-Identifier: Apache-2.0
//! What happens to a packet, hypothetical or real, step by step.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use netvm_model::{Host, SteerTo};
use netvm_policy::{QueueId, RuleId};
use netvm_ring::VerdictKind;
use netvm_wire::{Address, FlowKey, MacAddr, Malformed, VlanId};

use crate::drop_reason::DropReason;
use crate::ids::{ChainId, PortId, RoleId, RouterId, WorkerId};
use crate::router::PuntReason;

/// Where a packet comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// This port has received it.
    Port(PortId),
    /// An NF of this role has made it.
    Nf(RoleId),
}

/// What happened to a packet of traffic.
#[derive(Clone, Debug)]
pub struct TracedPacket {
    /// The worker that received it, or to which an NF returned it.
    pub worker: WorkerId,
    /// When its port received it, or the NF that made it returned it.
    pub at: SystemTime,
    /// Where it comes from.
    pub from: Origin,
    /// Its length in bytes, without FCS.
    pub bytes: u32,
    /// What happened.
    pub steps: Vec<TimedStep>,
}

/// A step of a packet of traffic.
#[derive(Clone, Debug)]
pub struct TimedStep {
    /// When, since then.
    pub after: Duration,
    /// The worker that took it.
    pub worker: WorkerId,
    /// The step.
    pub step: Step,
    /// The configuration in force at that moment, for names.
    pub host: Arc<Host>,
}

/// A step of the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The port receives it.
    In(PortId),
    /// An NF has made it, at a hop.
    Made {
        /// The NF's role.
        role: RoleId,
        /// Position in the chain, from 0.
        hop: u8,
    },
    /// The fields of the lookup.
    Key(Box<FlowKey>),
    /// Its headers cannot be parsed.
    Malformed(Malformed),
    /// These rules match, in order; the last one decides if `decided`.
    Rules {
        /// The rules.
        rules: Vec<RuleId>,
        /// Whether the last one has a terminal action.
        decided: bool,
    },
    /// No rule decides; the port's default applies.
    Default {
        /// Whether such packets are allowed.
        allowed: bool,
    },
    /// This many token buckets meter it and may drop it.
    Policed(usize),
    /// A rule changes its outer tag.
    Retagged,
    /// It gets a tag: the port that sends it is one for this tag of another port.
    TagPushed(VlanId),
    /// Its tag is taken off: the port that receives it is one for this tag of another port.
    TagPopped(VlanId),
    /// Outer headers are put before it, which lead to a remote VTEP.
    Encapsulated {
        /// The network (VNI).
        vni: u32,
        /// The VTEP.
        remote: Address,
    },
    /// Its outer headers are taken off.
    Decapsulated {
        /// The network (VNI).
        vni: u32,
        /// The VTEP that has sent it.
        remote: Address,
    },
    /// NAT changes its ends.
    Translated(Translated),
    /// A rule chooses its queue at the ports that it leaves by.
    Queued(QueueId),
    /// A port gets a copy.
    Mirrored(PortId),
    /// L2 switching looks up its destination: the port, if known.
    Switched(Option<PortId>),
    /// It goes only to the members of this group, and to multicast routers.
    ToGroup(Address),
    /// A copy of it, for this port of its VLAN; the steps that follow are the copy's.
    Flooded(PortId),
    /// It enters a chain.
    Chain(ChainId),
    /// It leaves the chain, if every NF passes it on unchanged.
    Passed,
    /// An NF of the chain must choose its port, because the chain has no output.
    NfDecides,
    /// It waits for an NF of this role, which is starting.
    Waiting(RoleId),
    /// An NF gets it.
    ToNf {
        /// The NF's role.
        role: RoleId,
        /// Position in the chain, from 0.
        hop: u8,
    },
    /// An NF has returned it. NFs of one trust group pass packets on to each other, so this may be a later one.
    FromNf {
        /// The NF's role.
        role: RoleId,
        /// Position in the chain, from 0.
        hop: u8,
        /// Its verdict.
        verdict: NfVerdict,
    },
    /// A program's port receives a packet of its flow, which is taken for it.
    CameBack(PortId),
    /// NFs have changed these fields since the engine last had it.
    Rewritten(Box<FlowKey>),
    /// It leaves the chain.
    Left,
    /// The kernel's flow table has its flow: the kernel forwards such a packet, and netvm does not see it.
    ByKernel,
    /// The kernel's flow table had its flow until the trace began.
    WasByKernel,
    /// It goes to a virtual router.
    Router(RouterId),
    /// The router sends it on, rewritten.
    NextHop {
        /// The port that it leaves by.
        port: PortId,
        /// With this tag.
        vlan: Option<VlanId>,
        /// To this neighbour.
        mac: MacAddr,
    },
    /// The router punts it to its kernel.
    Punted(PuntReason),
    /// It leaves by a port.
    Out(PortId),
    /// Another worker gets it: the one that has the tx queue of its port, or its flow.
    HandedOver(WorkerId),
    /// It is cut into so many packets; the steps that follow are the first one's.
    Cut(usize),
    /// Its sender gets a TCP reset or an ICMP error, unless workers have sent too many.
    Answered,
    /// It is dropped.
    Dropped(DropReason),
    /// What becomes of it is not known.
    Lost(Lost),
}

/// What NAT makes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translated {
    /// Its source and destination.
    pub before: [NatEnd; 2],
    /// What they become.
    pub after: [NatEnd; 2],
    /// It goes to the other family.
    pub is_nat64: bool,
    /// The number of the NAT rule in the configuration; `None`: the connection has its translation from elsewhere, such
    /// as the mapping of another one, or from a rule that has gone.
    pub rule: Option<u16>,
}

/// An address, and its port or the identifier of an ICMP query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatEnd {
    /// The address.
    pub address: Address,
    /// The port.
    pub port: u16,
}

/// An NF's verdict on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NfVerdict {
    /// To the next hop, or out of the chain.
    Next,
    /// Out of a port.
    Port(PortId),
    /// To an NF of a role.
    Role(RoleId),
    /// Drop it.
    Drop,
    /// Drop it and the rest of its flow.
    DropFlow,
    /// To the next hop; the rest of its flow skips this NF.
    SkipFlow,
    /// The NF holds it, and sends it later.
    Hold,
    /// To the next hop; the rest of its flow goes there.
    Steer(SteerTo),
    /// To the next hop; the rest of its flow goes on as if no NF had steered it.
    SteerBack,
    /// No verdict has this number.
    Invalid(u8),
}

impl NfVerdict {
    /// The verdict of a descriptor.
    pub(crate) fn of(kind: u8, argument: u16) -> Self {
        match VerdictKind::from_raw(kind) {
            Some(VerdictKind::Next) => Self::Next,
            Some(VerdictKind::Port) => Self::Port(PortId(argument)),
            Some(VerdictKind::Role) => Self::Role(RoleId(argument)),
            Some(VerdictKind::Drop) => Self::Drop,
            Some(VerdictKind::DropFlow) => Self::DropFlow,
            Some(VerdictKind::SkipFlow) => Self::SkipFlow,
            Some(VerdictKind::Hold) => Self::Hold,
            Some(VerdictKind::SteerChain) => Self::Steer(SteerTo::Chain(ChainId(argument))),
            Some(VerdictKind::SteerRole) => Self::Steer(SteerTo::Role(RoleId(argument))),
            Some(VerdictKind::SteerPort) => Self::Steer(SteerTo::Port(PortId(argument))),
            Some(VerdictKind::SteerBack) => Self::SteerBack,
            None => Self::Invalid(kind),
        }
    }
}

/// Why a trace ends before its packet does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// It has stayed where it is for 5 s.
    Held,
    /// It has gone into a program, and no packet of its flow has come back within 1 s.
    InProgram,
    /// It was freed without a drop, as by an NF that has ended.
    Freed,
    /// It took more steps than a trace can have.
    TooLong,
    /// Another worker has it, and there was no record for that.
    Elsewhere,
    /// The configuration has changed too often since.
    Forgotten,
}
