// SPDX-License-Identifier: Apache-2.0
//! IGMP and MLD snooping (RFC 4541): packets to a group go to the ports whose hosts have joined it, and to those of
//! multicast routers.
//!
//! - Workers look at packets to group addresses ([`GroupPacket`]), read messages ([`Message`]), and put what these say
//!   into an [`Inbox`], which has a quota for each port.
//! - The manager's [`Snooper`] keeps memberships, routers and queriers, sends queries if it is to, and makes a
//!   [`GroupTable`] when ports of a group change.
//! - Workers look the ports of a group up in the table.
//!
//! A domain is one of the two protocols in a VLAN. Packets are flooded as without snooping while nobody queries in
//! their domain: memberships would end although hosts still listen. So are those to groups that stay on the link
//! ([`is_group_beyond_link`](netvm_wire::Address::is_group_beyond_link)). Sources that hosts choose are not
//! distinguished.

mod domain;
mod inbox;
mod message;
mod query;
mod settings;
mod snooper;
mod table;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

pub use domain::{DomainView, Membership, QuerierView};
pub use inbox::{ANNOUNCEMENTS_PER_SECOND, Announcement, InVlan, Inbox};
pub use message::{Change, GroupPacket, InvalidMessage, Message, Query, Reports};
pub use query::{MAX_QUERY, QuerierAddresses};
pub use settings::{PortSettings, RouterPort, SnoopSettings};
pub use snooper::{Snooper, ToSend};
pub use table::{Domain, GroupTable, SetNumber};

/// Groups of all ports, VLANs and protocols together.
pub const MAX_GROUPS: usize = 16_384;
