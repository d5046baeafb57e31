//! Rules as people write them.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

use netvm_wire::VlanId;
use serde::{Deserialize, Serialize};

use crate::cube::Cube;
use crate::ids::{ChainId, PortId, RouterId, RuleId};
use crate::lower::TooManyCubes;
use crate::matching::Match;

/// One rule. Of an ordered list, the first that matches and has a terminal action decides; those before it that match and have
/// none do what they say besides, and are counted.
///
/// Clones share what it says, and its cubes once they are known: long lists are cloned and compared soon.
#[derive(Clone)]
pub struct Rule(Arc<Shared>);

#[derive(Clone)]
struct Shared {
    parts: RuleParts,
    /// Of `parts`, once somebody has asked.
    cubes: OnceLock<Result<Arc<[Cube]>, TooManyCubes>>,
}

/// What a rule says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleParts {
    /// Its number.
    pub id: RuleId,
    /// What people call it; empty: by its number.
    pub name: String,
    /// Which packets.
    pub matches: Match,
    /// What is done.
    pub actions: Actions,
}

impl Rule {
    /// The cubes of its match, as [`Match::cubes`]; made once.
    ///
    /// # Errors
    /// [`TooManyCubes`].
    pub fn cubes(&self) -> Result<&Arc<[Cube]>, TooManyCubes> {
        self.0.cubes.get_or_init(|| self.matches.cubes().map(Arc::from)).as_ref().map_err(|why| *why)
    }

    /// Whether it is a clone of the other, or the other way round: it says the same then.
    #[must_use]
    pub fn is_clone_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl From<RuleParts> for Rule {
    fn from(parts: RuleParts) -> Self {
        Self(Arc::new(Shared { parts, cubes: OnceLock::new() }))
    }
}

impl Deref for Rule {
    type Target = RuleParts;

    fn deref(&self) -> &RuleParts {
        &self.0.parts
    }
}

/// What is changed is no longer shared.
impl DerefMut for Rule {
    fn deref_mut(&mut self) -> &mut RuleParts {
        let shared = Arc::make_mut(&mut self.0);
        shared.cubes.take();
        &mut shared.parts
    }
}

impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        self.is_clone_of(other) || **self == **other
    }
}

impl Eq for Rule {}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.parts.fmt(f)
    }
}

/// What is done with packets that match. All parts are done: police, set the VLAN, mirror, then the terminal action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
pub struct Actions {
    /// Where packets go; `None`: later rules say so.
    pub terminal: Option<Action>,
    /// The outer tag that packets get.
    pub set_vlan: Option<SetVlan>,
    /// A port that gets a copy.
    pub mirror: Option<PortId>,
    /// What exceeds this is dropped.
    pub police: Option<Police>,
}

/// Where packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
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
