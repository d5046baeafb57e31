//! The keys of `[[port]]` about packets, not about the device.

use netvm_policy::{Action, ChainId, Police, PortId, RouterId, Span};
use netvm_wire::{IpNet, MacAddr, VlanId};

use super::action;
use super::engine::MOST_MACS;
use crate::field;
use crate::form::{Maybe, Name, Nested, Number, OneOrMore, Scalar, Sparse, Vlan};
use crate::names;
use crate::table::{Keys, Table};
use crate::words::{Word, words};

/// Where packets of a port go that are allowed, by a rule or by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Forward {
    /// Nowhere: they are dropped, as no rule says more.
    #[default]
    None,
    /// L2 switching by learnt MAC addresses.
    Normal,
    /// Out of a port.
    Port(PortId),
    /// Into a chain.
    Chain(ChainId),
    /// To a virtual router.
    Router(RouterId),
}

/// What happens to packets that no rule decides on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum AclDefault {
    /// They are allowed.
    #[default]
    Allow,
    /// They are dropped.
    Deny,
}
words!(AclDefault: "allow" => Allow, "deny" => Deny);

/// The VLANs of a port in L2 switching (IEEE 802.1Q).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum VlanMode {
    /// Tags mean nothing: all of its packets are in one VLAN of no number, and leave as they came.
    #[default]
    Unaware,
    /// Untagged: its packets are in this VLAN. Tagged ones do not come in.
    Access(VlanId),
    /// Tagged with one of these VLANs.
    Trunk {
        /// The VLANs, each of 1 to 4094.
        vlans: Vec<Span<u16>>,
        /// The VLAN whose packets have no tag; it is one of the port's without being named in `vlans`. `None`: packets
        /// without a tag do not come in.
        native: Option<VlanId>,
    },
}

/// What a guest may send as: its own addresses only.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Guard {
    /// Source MAC addresses that it may have; empty: any.
    pub macs: Vec<MacAddr>,
    /// Source addresses of IP and ARP that it may have; empty: any.
    pub addresses: Vec<IpNet>,
}

/// What a port does with packets besides the rules. It changes live.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PortPolicy {
    /// Where packets go that came in and are allowed.
    pub forward: Forward,
    /// What happens to packets that came in and that no rule decides on.
    pub acl_in: AclDefault,
    /// What happens to packets on their way out that no rule decides on.
    pub acl_out: AclDefault,
    /// VLANs in L2 switching.
    pub vlan: VlanMode,
    /// MAC addresses that are learnt from it.
    pub mac_limit: u32,
    /// Name of its split-horizon group: L2 switching passes nothing between ports of one group.
    pub split_horizon: Option<String>,
    /// Anti-spoofing.
    pub guard: Option<Guard>,
    /// What exceeds this on its way in is dropped.
    pub police_in: Option<Police>,
    /// What exceeds this on its way out is dropped.
    pub police_out: Option<Police>,
}

impl Default for PortPolicy {
    /// Nothing but what rules say.
    fn default() -> Self {
        Self {
            forward: Forward::default(),
            acl_in: AclDefault::default(),
            acl_out: AclDefault::default(),
            vlan: VlanMode::default(),
            mac_limit: 4096,
            split_horizon: None,
            guard: None,
            police_in: None,
            police_out: None,
        }
    }
}

impl Keys for PortPolicy {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.key("forward", &mut self.forward, Sparse(Nested("forward")));
        table.key("acl_in", &mut self.acl_in, Word);
        table.key("acl_out", &mut self.acl_out, Word);
        table.key("vlan", &mut self.vlan, Sparse(Nested("vlan")));
        table.key("mac_limit", &mut self.mac_limit, Number(0..=MOST_MACS));
        table.key("split_horizon", &mut self.split_horizon, Maybe(Name(names::any)));
        table.key("guard", &mut self.guard, Maybe(Nested("guard")));
        table.key("police_in", &mut self.police_in, Maybe(Nested("police")));
        table.key("police_out", &mut self.police_out, Maybe(Nested("police")));
    }
}

impl Keys for Forward {
    fn keys(&mut self, table: &mut Table<'_>) {
        let mut to = match *self {
            Self::None => None,
            Self::Normal => Some(Action::Normal),
            Self::Port(id) => Some(Action::Port(id)),
            Self::Chain(id) => Some(Action::Chain(id)),
            Self::Router(id) => Some(Action::Router(id)),
        };
        let keys = ["chain", "out", "router", "normal"];
        let help =
            "write `{ normal = true }`, `{ chain = \"…\" }`, `{ out = \"…\" }` or `{ router = \"…\" }`";
        action::keys(&mut to, table, &keys);
        action::exactly_one(table, &keys, help);
        *self = match to {
            Some(Action::Normal) => Self::Normal,
            Some(Action::Port(id)) => Self::Port(id),
            Some(Action::Chain(id)) => Self::Chain(id),
            Some(Action::Router(id)) => Self::Router(id),
            _ => Self::None,
        };
    }
}

impl Keys for VlanMode {
    fn keys(&mut self, table: &mut Table<'_>) {
        let mut access = match self {
            Self::Access(vlan) => Some(*vlan),
            _ => None,
        };
        table.key("access", &mut access, Maybe(Vlan));
        if table.has("access", access.is_some()) {
            table.others("ports without `access`", |table| trunk(&mut Vec::new(), &mut None, table));
            *self = access.map_or(Self::Unaware, Self::Access);
            return;
        }
        let (mut vlans, mut native) = match std::mem::take(self) {
            Self::Trunk { vlans, native } => (vlans, native),
            _ => (Vec::new(), None),
        };
        trunk(&mut vlans, &mut native, table);
        *self = Self::Trunk { vlans, native };
    }
}

fn trunk(vlans: &mut Vec<Span<u16>>, native: &mut Option<VlanId>, table: &mut Table<'_>) {
    let help = "write `{ access = 10 }`, or `{ trunk = [10, \"20-30\"] }`";
    table.required(("trunk", help), vlans, OneOrMore(Scalar(field::tagged, field::span_text)));
    table.key("native", native, Maybe(Vlan));
}

impl Keys for Guard {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.key("macs", &mut self.macs, OneOrMore(Scalar(field::card_mac, ToString::to_string)));
        table.key("addresses", &mut self.addresses, OneOrMore(Scalar(str::parse, ToString::to_string)));
        if let Some(reader) = table.reader()
            && reader.given(&["macs", "addresses"]).is_empty()
        {
            reader.missing(
                "macs",
                "list the guest's MAC addresses (`macs`), its IP addresses (`addresses`), or both",
            );
        }
    }
}
