// SPDX-License-Identifier: Apache-2.0
//! IGMP and MLD snooping: the switch as a whole, and what ports differ in.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use netvm_wire::{Address, VlanId};

use crate::words::words;

/// IGMP and MLD snooping of L2 switching (RFC 4541).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SnoopingConfig {
    /// Whether packets to a group go only to its members.
    pub snooping: bool,
    /// Whether to send queries, unless another querier does.
    pub querier: bool,
    /// The source of queries of IGMP; 0.0.0.0: none, such a querier yields to every other.
    pub querier_address: Ipv4Addr,
    /// Seconds between general queries.
    pub query_interval: u32,
    /// Seconds that hosts have to answer them.
    pub query_response_interval: u32,
    /// Seconds after which a query for a group that a host has left is repeated, and then the group ends.
    pub last_member_interval: u32,
    /// Whether packets to groups that no host has joined are flooded; otherwise they go to routers only.
    pub flood_unregistered: bool,
}

impl Default for SnoopingConfig {
    /// Off; the intervals of RFC 3376 section 8.
    fn default() -> Self {
        Self {
            snooping: false,
            querier: false,
            querier_address: Ipv4Addr::UNSPECIFIED,
            query_interval: 125,
            query_response_interval: 10,
            last_member_interval: 1,
            flood_unregistered: true,
        }
    }
}

/// Whether multicast routers are behind a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum McastRouter {
    /// If queries or hellos of PIM come from there.
    #[default]
    Auto,
    /// Never: queries from there are dropped.
    Off,
    /// Always.
    On,
}
words!(McastRouter: "auto" => Auto, "off" => Off, "on" => On);

/// Snooping at a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PortSnooping {
    /// Whether multicast routers are behind it.
    pub router: McastRouter,
    /// Whether a group ends with the first host that leaves it, without a query.
    pub fast_leave: bool,
    /// Most groups that its hosts may join.
    pub max_groups: u32,
    /// Groups that it is always a member of.
    pub groups: Vec<StaticGroup>,
}

impl Default for PortSnooping {
    fn default() -> Self {
        Self { router: McastRouter::Auto, fast_leave: false, max_groups: 128, groups: Vec::new() }
    }
}

/// A group in a VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StaticGroup {
    /// The group.
    pub group: IpAddr,
    /// The VLAN; `None`: that of the port's untagged packets.
    pub vlan: Option<VlanId>,
}

/// Not a group in a VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseStaticGroupError {
    /// The text.
    #[error(
        "write a group, such as \"239.1.2.3\" or \"ff15::1\", with its VLAN if it is tagged: \"239.1.2.3 vlan 20\""
    )]
    Syntax,
    /// The address.
    #[error(
        "{0} is no group beyond the link: unicast is not snooped, and 224.0.0.0/24 and ff02::/16 are always flooded"
    )]
    Group(IpAddr),
}

impl FromStr for StaticGroup {
    type Err = ParseStaticGroupError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut words = text.split_whitespace();
        let group: IpAddr =
            words.next().and_then(|word| word.parse().ok()).ok_or(ParseStaticGroupError::Syntax)?;
        let vlan = match (words.next(), words.next(), words.next()) {
            (None, ..) => None,
            (Some("vlan"), Some(number), None) => {
                let number = number.parse().ok().and_then(|number| VlanId::new(number).ok());
                Some(number.ok_or(ParseStaticGroupError::Syntax)?)
            }
            _ => return Err(ParseStaticGroupError::Syntax),
        };
        match Address::from(group).is_group_beyond_link() {
            true => Ok(Self { group, vlan }),
            false => Err(ParseStaticGroupError::Group(group)),
        }
    }
}

impl fmt::Display for StaticGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.vlan {
            Some(vlan) => write!(f, "{} vlan {vlan}", self.group),
            None => write!(f, "{}", self.group),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_a_text_form() {
        for text in ["239.1.2.3", "ff15::1 vlan 20", "224.0.1.1 vlan 1"] {
            assert_eq!(text.parse::<StaticGroup>().unwrap().to_string(), text);
        }
        for bad in ["", "239.1.2", "239.1.2.3 20", "239.1.2.3 vlan", "239.1.2.3 vlan 0", "ff15::1 vlan 2 3"] {
            assert_eq!(bad.parse::<StaticGroup>(), Err(ParseStaticGroupError::Syntax), "{bad}");
        }
        for other in ["224.0.0.5", "10.0.0.1", "ff02::1", "2001:db8::1"] {
            assert_eq!(
                other.parse::<StaticGroup>(),
                Err(ParseStaticGroupError::Group(other.parse().unwrap()))
            );
        }
    }
}
