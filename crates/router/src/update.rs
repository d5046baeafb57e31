//! What the control plane says of a table.

use netvm_wire::IpNet;

use crate::next_hop::{NextHop, NextHopId};

/// Changes of one router's tables.
///
/// What is said later of a next hop or a route replaces what was said before; between different ones the order makes no
/// difference, and all of an update holds at once. Saying what holds already does nothing.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Update {
    /// What the next hops are from now on. [`NextHopId::PUNT`] and ids that are not valid cannot be changed and are passed
    /// over.
    pub next_hops: Vec<(NextHopId, NextHop)>,
    /// Where the routes lead from now on; `None`: the route goes. An id that is not valid is [`NextHopId::PUNT`].
    pub routes: Vec<(IpNet, Option<NextHopId>)>,
}

impl Update {
    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.next_hops.is_empty() && self.routes.is_empty()
    }
}
