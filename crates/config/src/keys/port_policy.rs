// SPDX-License-Identifier: Apache-2.0
//! `[[port]]`: the keys about packets.

use netvm_model::{
    Forward, Guard, Host, Labels, MAX_RESERVED, MAX_TX_QUEUES, PortPolicy, PortSnooping, QosConfig,
    QueueConfig, StormLimits, VlanMode,
};
use netvm_policy::{Action, Span};
use netvm_wire::VlanId;
use toml::Value;
use toml::de::DeValue;

use super::action;
use super::engine::MAX_MACS;
use crate::syntax::field;
use crate::syntax::form::{
    Flag, Items, Name, Nested, Number, OneOrMore, OnlyIf, Optional, Scalar, Spanned, UnlessDefault, Vlan,
    Word, text,
};
use crate::syntax::names;
use crate::syntax::table::{Form, Keys, Numbered, Table, ValueLocation};

impl Keys for PortPolicy {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.key("forward", &mut self.forward, UnlessDefault(Nested("forward")));
        table.key("acl_in", &mut self.acl_in, Word);
        table.key("acl_out", &mut self.acl_out, Word);
        table.key("vlan", &mut self.vlan, UnlessDefault(Nested("vlan")));
        table.key("mac_limit", &mut self.mac_limit, Number(0..=MAX_MACS));
        table.key("storm_control", &mut self.storm_control, UnlessDefault(Nested("storm_control")));
        self.multicast.keys(table);
        table.key("split_horizon", &mut self.split_horizon, Optional(Name(names::any)));
        table.key("guard", &mut self.guard, Optional(Nested("guard")));
        table.key("police_in", &mut self.police_in, Optional(Nested("police")));
        table.key("police_out", &mut self.police_out, Optional(Nested("police")));
        table.key("qos", &mut self.qos, Optional(Nested("qos")));
        table.key("track", &mut self.track, Flag);
        table.key("zone", &mut self.zone, Number(0..=u16::MAX.into()));
        table.key("labels", &mut self.labels, UnlessDefault(LabelTable));
        table.key("monitor", &mut self.monitor, Flag);
        table.key("weight", &mut self.weight, Number(1..=1000));
        table.key("reserve", &mut self.reserve, Number(0..=MAX_RESERVED.into()));
    }
}

/// Labels, each with its value.
struct LabelTable;

impl Form<Labels> for LabelTable {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<Labels> {
        let DeValue::Table(table) = value.get_ref() else {
            return at.wrong_type(value.get_ref(), "a table of strings, such as { app = \"web\" }");
        };
        let mut labels = Labels::default();
        for (key, value) in table {
            let Some(word) = text(&at.element(value.span()), value) else { continue };
            if let Err(error) = labels.insert(key.get_ref(), word) {
                at.element(key.span())
                    .bad_value(&format!("has the label `{}`", key.get_ref()))
                    .help(error.to_string())
                    .keep();
            }
        }
        Some(labels)
    }

    fn write(&self, _: &Host, labels: &mut Labels) -> Option<Value> {
        Some(Value::Table(labels.iter().map(|(key, value)| (key.to_owned(), value.into())).collect()))
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
        table.key("access", &mut access, Optional(Vlan));
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
    table.required("trunk", help, vlans, OneOrMore(Scalar(field::tagged, field::span_text)));
    table.key("native", native, Optional(Vlan));
}

impl Keys for StormLimits {
    fn keys(&mut self, table: &mut Table<'_>) {
        for (key, limit) in [
            ("broadcast", &mut self.broadcast),
            ("multicast", &mut self.multicast),
            ("unknown_unicast", &mut self.unknown_unicast),
        ] {
            table.key(key, limit, Number(0..=MAX_FLOOD_RATE));
        }
    }
}

impl Keys for PortSnooping {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.key("mcast_router", &mut self.router, Word);
        table.key("mcast_fast_leave", &mut self.fast_leave, Flag);
        table.key("mcast_max_groups", &mut self.max_groups, Number(0..=MAX_GROUPS_OF_PORT));
        table.key("mcast_groups", &mut self.groups, OneOrMore(Scalar(str::parse, ToString::to_string)));
    }
}

/// Most groups that the hosts of a port may join.
const MAX_GROUPS_OF_PORT: u64 = 16_384;

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

/// Highest limit of storm control, in frames per second.
const MAX_FLOOD_RATE: u64 = 100_000_000;
/// Slowest and fastest shaper.
const RATES: std::ops::RangeInclusive<u64> = 8_000..=1_000_000_000_000;
/// By default, a shaper's burst is what it sends in 1 / `BURSTS_PER_SECOND` of a second,
const BURSTS_PER_SECOND: u64 = 200;
/// but at least a dozen Ethernet frames.
const MIN_BURST: u64 = 150_000;
/// Packets of a queue: default, and maximum.
const QUEUE_PACKETS: u32 = 1000;
const MAX_QUEUE_PACKETS: u64 = 65_536;
/// RFC 8289 section 4.4.
const CODEL_MS: u32 = 5;

impl Keys for QosConfig {
    fn keys(&mut self, table: &mut Table<'_>) {
        let mut burst = (!matches!(table, Table::Read(_))).then_some(self.bits.burst);
        let help = "give the port's rate in bits a second, such as `bits = 100_000_000`";
        table.required("bits", help, &mut self.bits.per_second, Number(RATES));
        table.key("bit_burst", &mut burst, Optional(Number(1..=*RATES.end())));
        self.bits.burst = burst.unwrap_or_else(|| MIN_BURST.max(self.bits.per_second / BURSTS_PER_SECOND));
        let help = "list the queues, such as `queues = [{ name = \"voice\", dscp = \"ef\", priority = true }, { name = \"rest\" }]`";
        if let Some(at) = table.required("queues", help, &mut self.queues, Items("a queue"))
            && !(1..=MAX_TX_QUEUES).contains(&self.queues.len())
        {
            at.bad_value(&format!("has {} queues", self.queues.len()))
                .help(format!("a port has 1 to {MAX_TX_QUEUES} queues here"))
                .keep();
        }
    }
}

impl Numbered for QueueConfig {
    fn numbered(_: usize) -> Self {
        Self { weight: 1, packets: QUEUE_PACKETS, codel_ms: CODEL_MS, ..Self::default() }
    }
}

impl Keys for QueueConfig {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.name("name", "voice", &mut self.name, Name(names::any));
        if let Some(reader) = table.reader()
            && let Some(id) = reader.file.names.queue(&self.name)
        {
            self.id = id;
        }
        table.key("dscp", &mut self.dscp, OneOrMore(Scalar(field::dscp, field::span_text)));
        table.key("priority", &mut self.priority, UnlessDefault(Flag));
        let shares = !self.priority;
        if let Some(at) = table.key("weight", &mut self.weight, OnlyIf(shares, Number(1..=1000)))
            && !shares
        {
            at.bad_value("has no effect beside `priority`")
                .help("queues without `priority` share what those with it leave: remove one of the two keys")
                .keep();
        }
        table.key("packets", &mut self.packets, Number(1..=MAX_QUEUE_PACKETS));
        table.key("codel_ms", &mut self.codel_ms, Number(0..=10_000));
    }
}
