// SPDX-License-Identifier: Apache-2.0
//! `[[rule]]` and its tables `match`, `load` and `police`.

mod ends;
mod load;

use std::mem::take;

use netvm_model::Host;
use netvm_model::words::nearest;
use netvm_policy::{Actions, Masked, Match, Police, QueueId, Rate, Rule, RuleId, RuleParts, Span, When};
use netvm_wire::{EtherType, IpProto};
use toml::Value;

use super::action;
use load::Load;

use crate::syntax::field;
use crate::syntax::finding::Kind;
use crate::syntax::form::{
    Name, Nested, Number, OneOrMore, OnlyTrue, Optional, Scalar, Spanned, Text, ToPort, UnlessDefault, text,
};
use crate::syntax::names;
use crate::syntax::table::{Form, Keys, Numbered, Reader, Table, ValueLocation};

/// Keys for where packets go.
const TERMINAL: [&str; 7] = ["chain", "out", "router", "allow", "drop", "reject", "normal"];
/// The actions of a rule, for messages.
const ACTIONS: &str = "`chain = \"…\"`, `out = \"…\"` (a port), `router = \"…\"`, `drop = true`, `reject = true`, `allow = true` or `normal = true`";

impl Numbered for Rule {
    fn numbered(number: usize) -> Self {
        Self::from(RuleParts {
            id: RuleId(number as u32),
            name: String::new(),
            matches: Match::default(),
            actions: Actions::default(),
        })
    }
}

impl Keys for Rule {
    fn keys(&mut self, table: &mut Table<'_>) {
        let When { mut times, mut load } = self.when().clone();
        let selection = self.selection().cloned();
        let RuleParts { id: _, name, matches, actions } = &mut **self;
        table.key("name", name, UnlessDefault(Name(names::any)));
        let mut selection = selection.unwrap_or_else(|| ends::named(matches));
        ends::keys(&mut selection, table);
        let (from, to) = (take(&mut matches.from), take(&mut matches.to));
        table.key("match", matches, UnlessDefault(Nested("match")));
        (matches.from, matches.to) = (from, to);
        table.key("time", &mut times, OneOrMore(Text(str::parse, ToString::to_string)));
        table.key("load", &mut load, Optional(Load));
        let mut only_counts = *actions == Actions::default();
        table.key("set_vlan", &mut actions.set_vlan, Optional(Scalar(field::tag, field::tag_text)));
        table.key("queue", &mut actions.queue, Optional(ToQueue { rule: name }));
        table.key("mirror", &mut actions.mirror, Optional(ToPort));
        table.key("police", &mut actions.police, Optional(Nested("police")));
        table.key("syn_proxy", &mut actions.syn_proxy, OnlyTrue);
        action::keys(&mut actions.terminal, table, &TERMINAL);
        table.key("count", &mut only_counts, OnlyTrue);
        if let Some(reader) = table.reader() {
            check_actions(reader);
            self.set_when(When { times, load });
            ends::set(self, selection);
        }
    }
}

/// `from`, `to` and `match` of a rule that names ports only by name.
pub(super) fn match_keys(matches: &mut Match, table: &mut Table<'_>) {
    let (mut from, mut to) = (take(&mut matches.from), take(&mut matches.to));
    table.key("from", &mut from, OneOrMore(ToPort));
    table.key("to", &mut to, OneOrMore(ToPort));
    table.key("match", matches, UnlessDefault(Nested("match")));
    (matches.from, matches.to) = (from, to);
}

/// The name of a queue that some port has; `rule` is the name of the rule.
struct ToQueue<'a> {
    rule: &'a str,
}

impl Form<QueueId> for ToQueue<'_> {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<QueueId> {
        let name = text(at, value)?;
        let found = at.file.names.queue(name);
        // A queue whose name could not be read may be meant.
        if found.is_none()
            && let Some(known) = at.file.names.queues.all()
        {
            let rule = if self.rule.is_empty() { "this [[rule]]" } else { &format!("rule {}", self.rule) };
            let near = nearest(name, known.clone()).map(|near| format!("did you mean `{near}`? "));
            let all: Vec<String> = known.map(|known| format!("`{known}`")).collect();
            let all = if all.is_empty() { "none".to_owned() } else { all.join(", ") };
            at.note(Kind::UnknownName, format!("{rule} names a queue that no port has: `{name}`"))
                .at(at.span.clone(), "no such queue")
                .help(format!(
                    "{}the queues of all ports are {all}: name one, or add the queue to the `qos` of a [[port]]",
                    near.unwrap_or_default()
                ))
                .keep();
        }
        found
    }

    fn write(&self, host: &Host, item: &mut QueueId) -> Option<Value> {
        host.queue(*item).map(|queue| queue.name.as_str().into())
    }
}

/// A rule has at most one terminal action. A rule without any effect is a mistake, unless it has `count =
/// true`.
fn check_actions(reader: &Reader<'_>) {
    let actions = reader.given(&TERMINAL);
    if let [first, second, ..] = actions[..] {
        reader.conflict(first, second).help(format!("keep one of {ACTIONS}")).keep();
    }
    if actions.is_empty() && reader.given(&["set_vlan", "queue", "mirror", "police", "count"]).is_empty() {
        reader
            .note(Kind::MissingKey, "[[rule]] does not say what to do with the packets")
            .at(reader.place.header.clone(), "has no effect")
            .help(format!("add {ACTIONS}; `count = true` for a rule that only counts"))
            .keep();
    }
    if reader.has("syn_proxy") && !reader.has("allow") {
        reader
            .note(Kind::Conflict, "`syn_proxy` without `allow`")
            .at(reader.place.key("syn_proxy").unwrap_or_default(), "proxies nothing")
            .help("add `allow = true`, or remove `syn_proxy`")
            .keep();
    }
    let Some(to) = reader.place.key("to") else { return };
    for key in reader.given(&["chain", "out", "router", "normal", "syn_proxy"]) {
        reader
            .note(Kind::Conflict, format!("`{key}` in a [[rule]] with `to`"))
            .at(reader.place.key(key).unwrap_or_default(), "too late for this")
            .at(to.clone(), "matches packets that leave")
            .help("packets that leave can be allowed, dropped or rejected: leave `to` out, or choose another action")
            .keep();
    }
}

impl Keys for Match {
    fn keys(&mut self, table: &mut Table<'_>) {
        if let Table::Write(..) = table {
            self.tcp_flags.take_if(|flags| *flags == Masked::<u8>::ANY);
            for vlans in [&mut self.vlan, &mut self.inner_vlan] {
                *vlans = vlans.iter().flat_map(split_untagged).collect();
            }
        }
        table.key("protocol", &mut self.protocol, OneOrMore(Scalar(str::parse, ToString::to_string)));
        let protocols = self.protocol.clone();
        let net = || OneOrMore(Scalar(str::parse, ToString::to_string));
        table.key("source", &mut self.source, net());
        let ports = || OneOrMore(Scalar(str::parse, ToString::to_string));
        table.key("source_ports", &mut self.source_ports, ports());
        table.key("destination", &mut self.destination, net());
        table.key("destination_ports", &mut self.destination_ports, ports());
        table.key("tcp_flags", &mut self.tcp_flags, Optional(Scalar(field::flags, field::flags_text)));
        let icmp_type = |text: &str| field::icmp_type(text, &protocols);
        table.key("icmp_type", &mut self.icmp_type, OneOrMore(Scalar(icmp_type, field::span_text)));
        table.key("icmp_code", &mut self.icmp_code, OneOrMore(Scalar(field::byte, field::span_text)));
        table.key("dscp", &mut self.dscp, OneOrMore(Scalar(field::dscp, field::span_text)));
        table.key("fragment", &mut self.fragment, OneOrMore(Scalar(field::fragment, field::fragment_text)));
        table.key("state", &mut self.state, OneOrMore(Scalar(field::state, field::state_text)));
        let vlan = || OneOrMore(Scalar(field::vlan, field::vlan_text));
        table.key("vlan", &mut self.vlan, vlan());
        table.key("inner_vlan", &mut self.inner_vlan, vlan());
        let mac = || OneOrMore(Scalar(field::mac, field::mac_text));
        table.key("source_mac", &mut self.source_mac, mac());
        table.key("destination_mac", &mut self.destination_mac, mac());
        table.key("ether_type", &mut self.ether_type, OneOrMore(Scalar(str::parse, ToString::to_string)));
        table.key("arp_operation", &mut self.arp_operation, OneOrMore(Scalar(field::arp, field::arp_text)));
        if let Some(reader) = table.reader() {
            check_layers(reader, self);
        }
    }
}

/// Splits off VLAN 0, which stands for untagged packets and has its own word in the file.
fn split_untagged(vlans: &Span<u16>) -> impl Iterator<Item = Span<u16>> + use<> {
    let split = match (vlans.first, vlans.last) {
        (0, 1..) => [Some(Span::single(0)), Some(Span { first: 1, last: vlans.last })],
        _ => [Some(*vlans), None],
    };
    split.into_iter().flatten()
}

/// In packets without a field, its value is 0. So a rule that matches such a field must also match the
/// protocol that has it.
fn check_layers(reader: &Reader<'_>, matches: &Match) {
    let needs = |keys: &[&'static str], is_given: bool, what: &str| {
        for key in reader.given(keys).into_iter().filter(|_| !is_given) {
            reader
                .note(Kind::Conflict, format!("`{key}` without `{what}`"))
                .at(reader.place.key(key).unwrap_or_default(), "other packets do not have it")
                .help(format!("add `{what}`, and nothing else of its kind"))
                .keep();
        }
    };
    let protocols = &matches.protocol;
    // A value that cannot be read already has a finding.
    let unread = protocols.is_empty() && reader.has("protocol");
    needs(&["tcp_flags"], unread || *protocols == [IpProto::TCP], "protocol = \"tcp\"");
    let is_icmp = |protocol: &IpProto| matches!(*protocol, IpProto::ICMP | IpProto::ICMPV6);
    let only_icmp = unread || !protocols.is_empty() && protocols.iter().all(is_icmp);
    needs(&["icmp_type", "icmp_code"], only_icmp, "protocol = \"icmp\"` or `protocol = \"icmpv6\"");
    let unread = matches.ether_type.is_empty() && reader.has("ether_type");
    needs(&["arp_operation"], unread || matches.ether_type == [EtherType::ARP], "ether_type = \"arp\"");
}

/// Highest rate and burst, in bits or packets.
const MAX_RATE: u64 = 1_000_000_000_000;
/// By default, a burst is a tenth of a second of the rate,
const BURSTS_PER_SECOND: u64 = 10;
/// but at least two bursts of a worker,
const MIN_PACKET_BURST: u64 = 64;
/// or more than the longest frame and a dozen Ethernet frames.
const MIN_BIT_BURST: u64 = 600_000;

impl Keys for Police {
    fn keys(&mut self, table: &mut Table<'_>) {
        let packets = RateKeys { rate: "packets", burst: "packet_burst", least_burst: MIN_PACKET_BURST };
        rate(&mut self.packets, table, packets);
        let bits = RateKeys { rate: "bits", burst: "bit_burst", least_burst: MIN_BIT_BURST };
        rate(&mut self.bits, table, bits);
        if let Some(reader) = table.reader()
            && reader.given(&["packets", "bits"]).is_empty()
        {
            reader.missing(
                "packets",
                "limit `packets`, `bits`, or both, a second: such as `{ packets = 1000 }`",
            );
        }
    }
}

/// The keys of a rate.
#[derive(Clone, Copy)]
struct RateKeys {
    rate: &'static str,
    burst: &'static str,
    /// The burst by default is no smaller.
    least_burst: u64,
}

fn rate(rate: &mut Option<Rate>, table: &mut Table<'_>, keys: RateKeys) {
    let RateKeys { rate: key, burst: burst_key, least_burst } = keys;
    let (mut per_second, mut burst) = (rate.map(|rate| rate.per_second), rate.map(|rate| rate.burst));
    table.key(key, &mut per_second, Optional(Number(1..=MAX_RATE)));
    table.key(burst_key, &mut burst, Optional(Number(1..=MAX_RATE)));
    if let Some(reader) = table.reader()
        && !reader.has(key)
        && let Some(place) = reader.place.key(burst_key)
    {
        reader
            .note(Kind::Conflict, format!("`{burst_key}` without `{key}`"))
            .at(place, format!("needs `{key}`"))
            .help(format!("add `{key}`, or remove `{burst_key}`"))
            .keep();
    }
    *rate = per_second.map(|per_second| {
        let burst = burst.unwrap_or_else(|| least_burst.max(per_second / BURSTS_PER_SECOND));
        Rate { per_second, burst }
    });
}
