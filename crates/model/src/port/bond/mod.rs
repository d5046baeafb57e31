// SPDX-License-Identifier: Apache-2.0
//! Ports that join others to one link (bonds).

use netvm_ids::PortId;
use netvm_wire::MacAddr;

use super::keys::{Key, KeyValue};
use crate::words::words;

/// Most members of a bond.
pub const MAX_MEMBERS: usize = 8;

/// Which members of a [`PortKind::Bond`](crate::PortKind::Bond) carry packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BondMode {
    /// The first member whose link is up.
    #[default]
    ActiveBackup,
    /// Those on which the other end agrees (LACP, IEEE 802.1AX); each flow has one of them.
    Lacp,
}

words!(BondMode: "active-backup" => ActiveBackup, "lacp" => Lacp);

/// How often the other end is to speak, and when it is given up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LacpRate {
    /// Each 30 s; after 90 s.
    #[default]
    Slow,
    /// Each second; after 3 s.
    Fast,
}

words!(LacpRate: "slow" => Slow, "fast" => Fast);

/// The keys of a [`PortKind::Bond`](crate::PortKind::Bond).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BondConfig {
    /// Its members, by preference.
    pub members: Vec<PortId>,
    /// Which of them carry packets.
    pub mode: BondMode,
    /// How often the other end is to speak.
    pub lacp_rate: LacpRate,
    /// Whether a bond whose other end does not speak LACP is one of mode [`BondMode::ActiveBackup`].
    pub lacp_fallback: bool,
    /// The link is down with fewer members that carry packets.
    pub min_links: u32,
    /// Milliseconds for which a member's link must be up before it carries packets again.
    pub up_delay: u32,
    /// Its system in LACP; `None`: the host's, the same after each restart.
    pub mac: Option<MacAddr>,
}

impl Default for BondConfig {
    fn default() -> Self {
        Self {
            members: Vec::new(),
            mode: BondMode::default(),
            lacp_rate: LacpRate::default(),
            lacp_fallback: false,
            min_links: 1,
            up_delay: 0,
            mac: None,
        }
    }
}

impl BondConfig {
    pub(super) fn keys(&mut self) -> Vec<Key<'_>> {
        let help = "name the ports that it joins, such as `members = [\"uplink-a\", \"uplink-b\"]`";
        vec![
            Key::required("members", help, KeyValue::Ports(&mut self.members)),
            Key::new("mode", KeyValue::Word(&mut self.mode)),
            Key::new("lacp_rate", KeyValue::SparseWord(&mut self.lacp_rate)),
            Key::new("lacp_fallback", KeyValue::Flag(&mut self.lacp_fallback)),
            Key::new("min_links", KeyValue::Number(&mut self.min_links, 1..=MAX_MEMBERS as u64)),
            Key::new("up_delay", KeyValue::Number(&mut self.up_delay, 0..=60_000)),
            Key::new("mac", KeyValue::Mac(&mut self.mac)),
        ]
    }
}
