// SPDX-License-Identifier: Apache-2.0
//! What a configuration says of snooping.

use std::time::Duration;

use netvm_wire::Address;

use super::query::{QuerierAddresses, ROBUSTNESS};

/// Of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnoopSettings {
    /// Send queries from these addresses, unless a querier with a lower one does.
    pub querier: Option<QuerierAddresses>,
    /// Interval of general queries.
    pub query_interval: Duration,
    /// The time that hosts have to answer general queries.
    pub response: Duration,
    /// The interval of queries for a group that a host has left, and the time to answer them.
    pub last_member_interval: Duration,
    /// Whether groups that nobody has joined are flooded; otherwise, only routers get them.
    pub floods_unregistered: bool,
}

impl SnoopSettings {
    /// How long a querier counts as present after its last query (RFC 3376 section 8.5).
    pub(super) fn querier_lives(&self) -> Duration {
        self.query_interval * ROBUSTNESS + self.response / 2
    }
}

/// Whether there is a multicast router behind a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum RouterPort {
    /// If queries or hellos of PIM come from there.
    #[default]
    Auto,
    /// Never; queries from there are refused.
    Never,
    /// Always.
    Always,
}

/// Of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSettings {
    /// Whether a group ends with the first host that leaves it: there is only one.
    pub has_fast_leave: bool,
    /// Whether there is a router.
    pub router: RouterPort,
    /// Most groups that its hosts may join.
    pub max_groups: u32,
    /// Groups that the port is always a member of, and their VLANs.
    pub groups: Vec<(u16, Address)>,
}
