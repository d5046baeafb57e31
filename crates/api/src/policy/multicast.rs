// SPDX-License-Identifier: Apache-2.0
//! IGMP and MLD snooping.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// IGMP and MLD snooping of L2 switching.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MulticastInfo {
    /// By VLAN and protocol.
    pub domains: Vec<MulticastDomain>,
    /// The ports of L2 switching.
    pub ports: Vec<MulticastPort>,
}

/// One protocol in a VLAN.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MulticastDomain {
    /// The VLAN; 0 if ports ignore VLANs.
    pub vlan: u16,
    /// `igmp` or `mld`.
    pub protocol: String,
    /// The address of the querier; `null` if it has none, or if nobody asks.
    pub querier: Option<String>,
    /// The port that it is behind; `null`: netvm asks, or nobody does.
    pub querier_port: Option<String>,
    /// Whether somebody asks hosts for their groups.
    pub has_querier: bool,
    /// Whether packets go to members and routers only; otherwise they are flooded.
    pub pruned: bool,
    /// Ports of multicast routers.
    pub routers: Vec<MulticastMember>,
    /// Groups that hosts have joined, or that the configuration names.
    pub groups: Vec<MulticastGroup>,
}

/// A group and its ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MulticastGroup {
    /// Its address.
    pub group: String,
    /// The ports of its members.
    pub ports: Vec<MulticastMember>,
}

/// A port behind which there are members of a group, or a router.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MulticastMember {
    /// The port.
    pub port: String,
    /// Seconds until it ends if nothing more is heard; `null`: the configuration says so.
    pub left_s: Option<u64>,
}

/// A port's part in snooping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MulticastPort {
    /// The port.
    pub port: String,
    /// Groups that its hosts have joined.
    pub groups: u32,
    /// Messages of IGMP and MLD that it has received.
    pub messages: u64,
    /// Messages that were dropped: more than a port may announce in a second, or queries at a port without routers.
    pub refused: u64,
    /// Reports that changed nothing, since its hosts had joined as many groups as they may.
    pub over_limit: u64,
}
