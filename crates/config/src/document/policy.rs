//! Rules, and what ports do with packets besides.

use std::fmt::Display;

use netvm_policy::{Masked, Span};
use toml::Value;

use super::{ACL, EVICTION, Item, large, number, text, word};
use crate::field::{ArpOperations, Bytes, Dscp, Flags, Fragments, Macs, Tag, Vlans};
use crate::model::{
    ChainId, FlowCacheConfig, Forward, Guard, Host, Match, Police, PortId, PortPolicy, Rate, RouterId, Rule,
    Verdict, VlanMode,
};

type Fields = Vec<(&'static str, Value)>;

pub(super) fn switch(host: &Host) -> Item {
    let switch = &host.switch;
    let fields = vec![("macs", switch.macs.into()), ("mac_age", switch.mac_age.into())];
    Item { name: String::new(), fields }
}

pub(super) fn whole(host: &Host) -> Item {
    Item { name: String::new(), fields: vec![("memory", host.policy.memory.into())] }
}

pub(super) fn flow_cache(cache: &FlowCacheConfig) -> Value {
    table(vec![
        ("entries", cache.entries.into()),
        ("eviction", text(word(EVICTION, &cache.eviction))),
        ("idle", cache.idle.into()),
    ])
}

/// Adds what a port does with packets.
pub(super) fn port_fields(host: &Host, policy: &PortPolicy, fields: &mut Fields) {
    let forward = match policy.forward {
        Forward::None => None,
        Forward::Normal => Some(("normal", Value::Boolean(true))),
        Forward::Port(id) => port(host, id).map(|name| ("out", name)),
        Forward::Chain(id) => chain(host, id).map(|name| ("chain", name)),
        Forward::Router(id) => router(host, id).map(|name| ("router", name)),
    };
    fields.extend(forward.map(|forward| ("forward", table(vec![forward]))));
    fields.push(("acl_in", text(word(ACL, &policy.acl_in))));
    fields.push(("acl_out", text(word(ACL, &policy.acl_out))));
    match &policy.vlan {
        VlanMode::Unaware => {}
        VlanMode::Access(vlan) => fields.push(("vlan", table(vec![("access", number(vlan.get()))]))),
        VlanMode::Trunk { vlans, native } => {
            let mut trunk: Fields = set("trunk", vlans.iter().copied().map(Vlans)).into_iter().collect();
            trunk.extend(native.map(|vlan| ("native", number(vlan.get()))));
            fields.push(("vlan", table(trunk)));
        }
    }
    fields.push(("mac_limit", policy.mac_limit.into()));
    fields.extend(policy.split_horizon.iter().map(|name| ("split_horizon", text(name))));
    if let Some(Guard { macs, addresses }) = &policy.guard {
        fields.push(("guard", table(set("macs", macs).into_iter().chain(set("addresses", addresses)))));
    }
    fields.extend(policy.police_in.map(|limits| ("police_in", police(&limits))));
    fields.extend(policy.police_out.map(|limits| ("police_out", police(&limits))));
}

/// A rule as an item; its name is empty if it has none.
pub(super) fn rule(host: &Host, rule: &Rule) -> Item {
    let mut fields: Fields = Vec::new();
    if !rule.name.is_empty() {
        fields.push(("name", text(&rule.name)));
    }
    let names =
        |ids: &[PortId]| ids.iter().filter_map(|id| host.port(*id)).map(|port| port.name.clone()).collect();
    let (from, to): (Vec<String>, Vec<String>) = (names(&rule.matches.from), names(&rule.matches.to));
    fields.extend(set_of_texts("from", &from));
    fields.extend(set_of_texts("to", &to));
    if !rule.matches.is_any() {
        fields.push(("match", table(match_fields(&rule.matches))));
    }
    let actions = &rule.actions;
    fields.extend(actions.set_vlan.map(|tag| ("set_vlan", scalar(&Tag(tag)))));
    fields.extend(actions.mirror.and_then(|id| port(host, id)).map(|name| ("mirror", name)));
    fields.extend(actions.police.map(|limits| ("police", police(&limits))));
    match actions.verdict {
        Some(Verdict::Chain(id)) => fields.extend(chain(host, id).map(|name| ("chain", name))),
        Some(Verdict::Port(id)) => fields.extend(port(host, id).map(|name| ("out", name))),
        Some(Verdict::Router(id)) => fields.extend(router(host, id).map(|name| ("router", name))),
        Some(Verdict::Allow) => fields.push(("allow", Value::Boolean(true))),
        Some(Verdict::Drop) => fields.push(("drop", Value::Boolean(true))),
        Some(Verdict::Reject) => fields.push(("reject", Value::Boolean(true))),
        Some(Verdict::Normal) => fields.push(("normal", Value::Boolean(true))),
        None if *actions == crate::model::Actions::default() => fields.push(("count", Value::Boolean(true))),
        None => {}
    }
    Item { name: rule.name.clone(), fields }
}

fn match_fields(matches: &Match) -> Fields {
    let flags = matches.tcp_flags.filter(|flags| *flags != Masked::<u8>::ANY);
    let fields = [
        set("protocol", &matches.protocol),
        set("source", &matches.source),
        set("source_ports", &matches.source_ports),
        set("destination", &matches.destination),
        set("destination_ports", &matches.destination_ports),
        flags.map(|flags| ("tcp_flags", text(&Flags(flags).to_string()))),
        set("icmp_type", matches.icmp_type.iter().copied().map(Bytes)),
        set("icmp_code", matches.icmp_code.iter().copied().map(Bytes)),
        set("dscp", matches.dscp.iter().copied().map(Dscp)),
        set("fragment", matches.fragment.iter().copied().map(Fragments)),
        set("vlan", vlans(&matches.vlan)),
        set("inner_vlan", vlans(&matches.inner_vlan)),
        set("source_mac", matches.source_mac.iter().copied().map(Macs)),
        set("destination_mac", matches.destination_mac.iter().copied().map(Macs)),
        set("ether_type", &matches.ether_type),
        set("arp_operation", matches.arp_operation.iter().copied().map(ArpOperations)),
    ];
    fields.into_iter().flatten().collect()
}

/// Packets without a tag have a word of their own.
fn vlans(spans: &[Span<u16>]) -> impl Iterator<Item = Vlans> {
    let split = |span: &Span<u16>| match (span.first, span.last) {
        (0, 1..) => [Some(Span::single(0)), Some(Span { first: 1, last: span.last })],
        _ => [Some(*span), None],
    };
    spans.iter().flat_map(split).flatten().map(Vlans)
}

fn police(limits: &Police) -> Value {
    let rate = |rate: Option<Rate>, keys: [&'static str; 2]| {
        let fields = rate.map(|rate| [(keys[0], large(rate.per_second)), (keys[1], large(rate.burst))]);
        fields.into_iter().flatten()
    };
    table(rate(limits.packets, ["packets", "packet_burst"]).chain(rate(limits.bits, ["bits", "bit_burst"])))
}

fn port(host: &Host, id: PortId) -> Option<Value> {
    host.port(id).map(|port| text(&port.name))
}

fn chain(host: &Host, id: ChainId) -> Option<Value> {
    host.chain(id).map(|chain| text(&chain.name))
}

pub(super) fn router(host: &Host, id: RouterId) -> Option<Value> {
    host.router(id).map(|router| text(&router.name))
}

pub(super) fn table(fields: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    Value::Table(fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

/// A number if it reads as one.
fn scalar(value: &impl Display) -> Value {
    let value = value.to_string();
    value.parse().map_or_else(|_| Value::String(value), Value::Integer)
}

/// One value, or a list of them; `None` if there is none.
fn set<T: Display>(key: &'static str, values: impl IntoIterator<Item = T>) -> Option<(&'static str, Value)> {
    one_or_list(key, values.into_iter().map(|value| scalar(&value)).collect())
}

/// As [`set`], of names, which are never numbers.
fn set_of_texts(key: &'static str, names: &[String]) -> Option<(&'static str, Value)> {
    one_or_list(key, names.iter().map(|name| text(name)).collect())
}

fn one_or_list(key: &'static str, mut list: Vec<Value>) -> Option<(&'static str, Value)> {
    match list.len() {
        0 => None,
        1 => list.pop().map(|value| (key, value)),
        _ => Some((key, Value::Array(list))),
    }
}
