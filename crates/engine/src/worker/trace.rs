//! What happens to a hypothetical packet, step by step.

use netvm_policy::{QueueId, RuleId};
use netvm_wire::{FlowKey, MacAddr, Malformed, VlanId};

use crate::drop_reason::DropReason;
use crate::ids::{ChainId, PortId, RouterId};
use crate::router::PuntReason;

/// A step of the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The port receives it.
    In(PortId),
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
    /// A rule chooses its queue at the ports that it leaves by.
    Queued(QueueId),
    /// A port gets a copy.
    Mirrored(PortId),
    /// L2 switching looks up its destination: the port, if known.
    Switched(Option<PortId>),
    /// A copy of it, for this port of its VLAN; the steps that follow are the copy's.
    Flooded(PortId),
    /// It enters a chain.
    Chain(ChainId),
    /// It leaves the chain, if every NF passes it on unchanged.
    Passed,
    /// An NF of the chain must choose its port, because the chain has no output.
    NfDecides,
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
    /// Its sender gets a TCP reset or an ICMP error.
    Answered,
    /// It is dropped.
    Dropped(DropReason),
}

/// The steps of a packet so far. The loop of the stages notes them (`graph/record.rs`).
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    pub(crate) steps: Vec<Step>,
}
