// SPDX-License-Identifier: Apache-2.0
//! Rules as in the configuration.

mod label;
mod when;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

use netvm_ids::{ChainId, PortId, QueueId, RouterId, RuleId};
use netvm_wire::VlanId;

use crate::cubes::{Cube, TooManyCubes};
use crate::matching::Match;
use label::NO_PORT;

pub use label::{Ends, LABEL_BYTES, Label, LabelError, Labels, MAX_LABELS, Selection};
pub use when::{Bound, Clocks, LoadLimit, ParseWindowError, WeekMinute, When, Window};

/// One rule. Of an ordered list, the first that matches and has a terminal action decides; those before it that match
/// and have none do what they say besides, and are counted.
///
/// A rule that does not apply now ([`Rule::is_active`]) matches nothing. Rules are equal whether or not they apply.
///
/// A rule that names ports by label has in its match those that have the label ([`Rule::select`]). While there are
/// none, it matches nothing.
///
/// Clones share the parts and the computed cubes, so cloning and comparing long lists is cheap.
#[derive(Clone)]
pub struct Rule(Arc<Shared>);

#[derive(Clone)]
struct Shared {
    parts: RuleParts,
    when: When,
    /// Whether `when` says that it applies now.
    is_active: bool,
    /// Its ports as its author names them, if some by label.
    selection: Option<Box<Selection>>,
    /// The cubes of `parts`, computed on demand.
    cubes: OnceLock<Result<Arc<[Cube]>, TooManyCubes>>,
}

/// The parts of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleParts {
    /// The id.
    pub id: RuleId,
    /// The name; empty if unnamed.
    pub name: String,
    /// The match.
    pub matches: Match,
    /// The actions.
    pub actions: Actions,
}

impl Rule {
    /// The cubes of its match, as [`Match::cubes`]; computed once.
    ///
    /// # Errors
    /// [`TooManyCubes`].
    pub fn cubes(&self) -> Result<&Arc<[Cube]>, TooManyCubes> {
        self.0.cubes.get_or_init(|| self.matches.cubes().map(Arc::from)).as_ref().map_err(|why| *why)
    }

    /// When it applies.
    #[must_use]
    pub fn when(&self) -> &When {
        &self.0.when
    }

    /// Sets when it applies. Unless that is always, it does not apply until [`Rule::set_active`] says so.
    pub fn set_when(&mut self, when: When) {
        let shared = Arc::make_mut(&mut self.0);
        shared.is_active = when.is_always();
        shared.when = when;
    }

    /// Whether it applies now.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.0.is_active && !self.selects_none()
    }

    /// Whether its times and loads say that it applies now.
    #[must_use]
    pub fn is_in_time(&self) -> bool {
        self.0.is_active
    }

    /// Says whether it applies now. If that is new, it is no longer a clone of what it was.
    pub fn set_active(&mut self, is_active: bool) {
        if self.0.is_active != is_active {
            Arc::make_mut(&mut self.0).is_active = is_active;
        }
    }

    /// Its ports as its author names them, if some by label.
    #[must_use]
    pub fn selection(&self) -> Option<&Selection> {
        self.0.selection.as_deref()
    }

    /// Sets its ports as its author names them. [`Rule::select`] finds those that it matches.
    pub fn set_selection(&mut self, selection: Selection) {
        Arc::make_mut(&mut self.0).selection = Some(Box::new(selection));
        self.select(&[]);
    }

    /// Whether it names ports by label, and no port has it.
    #[must_use]
    pub fn selects_none(&self) -> bool {
        [&self.matches.from, &self.matches.to].iter().any(|ports| ports[..] == [NO_PORT])
    }

    /// Has it match the ports that have its labels now. If those are others, it is no longer a clone of what it was.
    pub fn select(&mut self, ports: &[(PortId, &Labels)]) {
        let Some(selection) = self.selection() else { return };
        let [from, to] = selection.sides().map(|ends| ends.select(ports));
        if self.matches.from != from || self.matches.to != to {
            (self.matches.from, self.matches.to) = (from, to);
        }
    }

    /// The numbers of the ports that it names, not those by label; of the others [`Rule::select`] knows.
    pub fn selected_ports_mut(&mut self) -> impl Iterator<Item = &mut PortId> {
        Arc::make_mut(&mut self.0).selection.iter_mut().flat_map(|selection| selection.ports_mut())
    }

    /// Whether it applies whenever another one does.
    #[must_use]
    pub fn applies_with(&self, other: &Self) -> bool {
        self.when().is_always() || self.when() == other.when()
    }

    /// Whether both are clones of the same rule, and therefore equal.
    #[must_use]
    pub fn is_clone_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl From<RuleParts> for Rule {
    fn from(parts: RuleParts) -> Self {
        let when = When::default();
        let (selection, cubes) = (None, OnceLock::new());
        Self(Arc::new(Shared { parts, when, is_active: true, selection, cubes }))
    }
}

impl Deref for Rule {
    type Target = RuleParts;

    fn deref(&self) -> &RuleParts {
        &self.0.parts
    }
}

/// Copies shared parts on write.
impl DerefMut for Rule {
    fn deref_mut(&mut self) -> &mut RuleParts {
        let shared = Arc::make_mut(&mut self.0);
        shared.cubes.take();
        &mut shared.parts
    }
}

impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        self.is_clone_of(other)
            || (**self == **other && self.when() == other.when() && self.selection() == other.selection())
    }
}

impl Eq for Rule {}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { parts: RuleParts { id, name, matches, actions }, when, is_active, .. } = &*self.0;
        let mut text = f.debug_struct("Rule");
        text.field("id", id).field("name", name).field("matches", matches).field("actions", actions);
        if !when.is_always() {
            text.field("when", when).field("is_active", is_active);
        }
        if let Some(selection) = self.selection() {
            text.field("selection", selection);
        }
        text.finish()
    }
}

/// What is done with packets that match. All parts are done: police, set the VLAN and the queue, mirror, then the
/// terminal action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
pub struct Actions {
    /// Where packets go; `None`: later rules say so.
    pub terminal: Option<Action>,
    /// Change of the outer VLAN tag.
    pub set_vlan: Option<SetVlan>,
    /// Queue at the ports that packets leave by, if a port has it.
    pub queue: Option<QueueId>,
    /// Port that gets a copy.
    pub mirror: Option<PortId>,
    /// Policer; drops packets beyond its rates.
    pub police: Option<Police>,
    /// A TCP connection begins only after its client has acknowledged a SYN cookie. Beside [`Action::Allow`] only.
    pub syn_proxy: bool,
}

/// Where packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// What the ingress port's `forward` says; on the way out of a port: out.
    Allow,
    /// Nowhere.
    Drop,
    /// Nowhere, with an answer to the sender: TCP reset, else ICMP or ICMPv6 administratively prohibited.
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

/// Change of the outer VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SetVlan {
    /// Set this VLAN: change the outer tag, or push one.
    Tag(VlanId),
    /// Pop the outer tag.
    Strip,
}

/// Token buckets for all matching packets; both rates apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
pub struct Police {
    /// Packet rate.
    pub packets: Option<Rate>,
    /// Bit rate of frames without FCS.
    pub bits: Option<Rate>,
}

/// A rate and a burst size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Units per second.
    pub per_second: u64,
    /// Size of the bucket in units.
    pub burst: u64,
}
