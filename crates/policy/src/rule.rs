//! Rules as people write them.

use netvm_wire::VlanId;
use serde::{Deserialize, Serialize};

use crate::ids::{ChainId, PortId, RouterId, RuleId};
use crate::matching::Match;

/// One rule. Of an ordered list, the first that matches and has a verdict decides; those before it that match and have
/// none do what they say besides, and are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its number.
    pub id: RuleId,
    /// What people call it; empty: by its number.
    pub name: String,
    /// Which packets.
    pub matches: Match,
    /// What is done.
    pub actions: Actions,
}

/// What is done with packets that match. All parts are done: police, set the VLAN, mirror, then the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
pub struct Actions {
    /// Where packets go; `None`: later rules say so.
    pub verdict: Option<Verdict>,
    /// The outer tag that packets get.
    pub set_vlan: Option<SetVlan>,
    /// A port that gets a copy.
    pub mirror: Option<PortId>,
    /// What exceeds this is dropped.
    pub police: Option<Police>,
}

/// Where packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// What the ingress port's `forward` says; on the way out of a port: out.
    Allow,
    /// Nowhere.
    Drop,
    /// Nowhere, and the sender is told: TCP reset, else ICMP or ICMPv6 administratively prohibited.
    Reject,
    /// Out of a port.
    Port(PortId),
    /// Into a chain.
    Chain(ChainId),
    /// L2 switching by learnt MAC addresses.
    Normal,
    /// To a virtual router, as if it were at the other end of the port's wire.
    Router(RouterId),
}

/// The outer VLAN tag that packets get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SetVlan {
    /// This VLAN: the outer tag is changed, or put in front where there is none.
    Tag(VlanId),
    /// None: the outer tag is taken off.
    Strip,
}

/// A token bucket for all packets that match; both rates hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
pub struct Police {
    /// Packets.
    pub packets: Option<Rate>,
    /// Bits of frames without FCS.
    pub bits: Option<Rate>,
}

/// A rate and how much may come at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rate {
    /// Units a second.
    pub per_second: u64,
    /// Units that a full bucket holds.
    pub burst: u64,
}
