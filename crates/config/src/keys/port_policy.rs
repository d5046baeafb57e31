//! `[[port]]`: the keys about packets.

use netvm_policy::{Action, Span};
use netvm_wire::VlanId;

use super::action;
use super::engine::MOST_MACS;
use crate::model::{Forward, Guard, PortPolicy, VlanMode};
use crate::syntax::field;
use crate::syntax::form::{Maybe, Name, Nested, Number, OneOrMore, Scalar, Sparse, Vlan, Word};
use crate::syntax::names;
use crate::syntax::table::{Keys, Table};

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
        let keys = ["normal", "chain", "out", "router"];
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
