// SPDX-License-Identifier: Apache-2.0
//! `[[nat]]`.

use std::mem::take;
use std::net::{IpAddr, SocketAddr};

use netvm_model::{DestinationNat, HealthCheck, Host, NatAction, NatRule, NatTarget, SourceNat};
use netvm_policy::Match;
use netvm_wire::{IpNet, IpProto};
use toml::Value;
use toml::de::DeValue;

use super::nat;
use crate::keys::{action, rule};
use crate::syntax::field::FieldError;
use crate::syntax::finding::Kind;
use crate::syntax::form::{
    Name, Nested, Number, OneOrMore, OnlyTrue, Optional, Spanned, Text, ToRouter, UnlessDefault,
};
use crate::syntax::names;
use crate::syntax::table::{Form, Keys, Numbered, Reader, Table, ValueLocation};

/// The keys of which a rule has one.
const ACTIONS: [&str; 5] = ["snat", "dnat", "redirect", "network", "keep"];
/// Those that translate destinations.
const DESTINATIONS: [&str; 2] = ["dnat", "redirect"];

impl Numbered for NatRule {
    fn numbered(_: usize) -> Self {
        Self { name: String::new(), matches: Match::default(), local_to: None, action: NatAction::Keep }
    }
}

impl Keys for NatRule {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.key("name", &mut self.name, UnlessDefault(Name(names::any)));
        rule::match_keys(&mut self.matches, table);
        table.key("local_to", &mut self.local_to, Optional(ToRouter));
        let mut action = Action::of(take(&mut self.action));
        action.keys(table);
        self.action = action.joined();
        action::exactly_one(
            table,
            &ACTIONS,
            "add `snat = \"masquerade\"`, `dnat = \"10.0.0.2:80\"`, `redirect = 8080`, `network = \"203.0.113.0/28\"` or \
             `keep = true`",
        );
        if let Some(reader) = table.reader() {
            check_side(reader);
            check_match(reader, self);
        }
    }
}

/// The values of the keys.
#[derive(Default)]
struct Action {
    keep: bool,
    snat: Option<SourceNat>,
    dnat: Vec<NatTarget>,
    health: Option<HealthCheck>,
    redirect: Option<Option<u16>>,
    network: Option<IpNet>,
}

impl Action {
    fn of(action: NatAction) -> Self {
        match action {
            NatAction::Keep => Self { keep: true, ..Self::default() },
            NatAction::Source(source) => Self { snat: Some(source), ..Self::default() },
            NatAction::Destination(DestinationNat { targets, health }) => match &targets[..] {
                [NatTarget { address: None, port, .. }] => Self { redirect: Some(*port), ..Self::default() },
                _ => Self { dnat: targets, health, ..Self::default() },
            },
            NatAction::Network(network) => Self { network: Some(network), ..Self::default() },
        }
    }

    fn joined(self) -> NatAction {
        if let Some(source) = self.snat {
            return NatAction::Source(source);
        }
        if !self.dnat.is_empty() {
            return NatAction::Destination(DestinationNat { targets: self.dnat, health: self.health });
        }
        match (self.redirect, self.network) {
            (Some(port), _) => {
                let target = NatTarget { port, ..NatTarget::default() };
                NatAction::Destination(DestinationNat { targets: vec![target], health: None })
            }
            (None, Some(network)) => NatAction::Network(network),
            (None, None) => NatAction::Keep,
        }
    }

    fn keys(&mut self, table: &mut Table<'_>) {
        if table.reader().is_some() {
            *self = Self::default();
        }
        let mut addresses = self.snat.as_ref().map(|source| source.addresses.clone());
        table.key("snat", &mut addresses, Optional(nat::Pool));
        let mut source = self.snat.take().unwrap_or_default();
        if table.has("snat", addresses.is_some()) {
            nat::options(&mut source, table);
        } else {
            table.others("`snat`", |table| nat::options(&mut SourceNat::default(), table));
        }
        self.snat = addresses.map(|addresses| SourceNat { addresses, ..source });
        if let (Some(reader), Some(source)) = (table.reader(), &self.snat) {
            nat::check(source, reader, "snat");
        }
        table.key("dnat", &mut self.dnat, Targets);
        if table.has("dnat", !self.dnat.is_empty()) {
            table.key("health", &mut self.health, Optional(Nested("health")));
        } else {
            table.others("`dnat`", |table| {
                table.key("health", &mut None::<HealthCheck>, Optional(Nested("health")));
            });
        }
        table.key("redirect", &mut self.redirect, Optional(Redirect));
        table.key("network", &mut self.network, Optional(Text(str::parse::<IpNet>, ToString::to_string)));
        table.key("keep", &mut self.keep, OnlyTrue);
    }
}

impl Keys for HealthCheck {
    fn keys(&mut self, table: &mut Table<'_>) {
        table.key("interval", &mut self.interval, Number(1..=3600));
        table.key("failures", &mut self.failures, Number(1..=100));
    }
}

/// Another port of the interface's own address, or `true` for the same one.
struct Redirect;

impl Form<Option<u16>> for Redirect {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<Option<u16>> {
        match value.get_ref() {
            DeValue::Boolean(true) => Some(None),
            DeValue::Integer(_) => Number(1..=u16::MAX.into()).read(at, value).map(Some),
            other => at.wrong_type(other, "a port, or `true` for the packet's port"),
        }
    }

    fn write(&self, _: &Host, item: &mut Option<u16>) -> Option<Value> {
        Some(item.map_or(Value::Boolean(true), |port| Value::Integer(port.into())))
    }
}

/// Targets of one family, each once.
struct Targets;

impl Form<Vec<NatTarget>> for Targets {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<Vec<NatTarget>> {
        let list = value.get_ref().as_array();
        if list.is_some_and(|list| list.is_empty()) {
            at.bad_value("is a list without targets")
                .help("give at least one, such as \"10.0.0.2:80\"")
                .keep();
            return None;
        }
        let targets = OneOrMore(Target).read(at, value)?;
        let is_v4 = |target: &NatTarget| target.address.map(netvm_wire::Address::is_v4);
        let ends = |target: &NatTarget| (target.address, target.port);
        for (n, target) in targets.iter().enumerate() {
            let place =
                list.and_then(|list| list.get(n)).map_or_else(|| at.span.clone(), toml::Spanned::span);
            if targets.first().is_some_and(|first| is_v4(first) != is_v4(target)) {
                at.note(Kind::Conflict, "targets of IPv4 and of IPv6")
                    .at(place, "of another family than the first")
                    .help("write a rule for each family")
                    .keep();
                return None;
            }
            if targets.iter().take(n).any(|before| ends(before) == ends(target)) {
                at.note(Kind::Duplicate, "one target twice")
                    .at(place, "again")
                    .help("remove it, or give the first one a larger `weight`")
                    .keep();
            }
        }
        Some(targets)
    }

    fn write(&self, host: &Host, items: &mut Vec<NatTarget>) -> Option<Value> {
        OneOrMore(Target).write(host, items)
    }
}

/// An address with or without a port, or a table with it and a weight.
struct Target;

impl Form<NatTarget> for Target {
    fn read<'a>(&self, at: &ValueLocation<'a>, value: &'a Spanned<'a>) -> Option<NatTarget> {
        match value.get_ref() {
            DeValue::Table(_) => Nested("a target").read(at, value),
            _ => Text(target, target_text).read(at, value),
        }
    }

    fn write(&self, host: &Host, item: &mut NatTarget) -> Option<Value> {
        match item.weight {
            1 => Some(target_text(item).into()),
            _ => Nested("a target").write(host, item),
        }
    }
}

impl Keys for NatTarget {
    fn keys(&mut self, table: &mut Table<'_>) {
        let mut weight = self.weight;
        let help = "name the target, such as `{ to = \"10.0.0.2:80\", weight = 2 }`";
        table.required("to", help, self, Text(target, target_text));
        table.key("weight", &mut weight, Number(1..=1000));
        self.weight = weight;
    }
}

/// `10.0.0.2:80`, `10.0.0.2`, `[2001:db8::1]:80`, `2001:db8::1`.
fn target(text: &str) -> Result<NatTarget, FieldError> {
    let syntax = FieldError::Syntax(
        "a unicast address with or without a port, such as \"10.0.0.2:80\", \"10.0.0.2\" or \"[2001:db8::2]:80\"",
    );
    let (address, port) = match text.parse::<SocketAddr>() {
        Ok(end) => (end.ip(), Some(end.port())),
        Err(_) => (text.parse::<IpAddr>().map_err(|_| syntax.clone())?, None),
    };
    let is_target = !address.is_unspecified() && !address.is_multicast() && port != Some(0);
    if is_target { Ok(NatTarget { address: Some(address.into()), port, weight: 1 }) } else { Err(syntax) }
}

fn target_text(target: &NatTarget) -> String {
    match (target.address.map(netvm_wire::Address::to_ip), target.port) {
        (Some(address), Some(port)) => SocketAddr::new(address, port).to_string(),
        (Some(address), None) => address.to_string(),
        (None, _) => String::new(),
    }
}

/// Sources are translated where packets leave, destinations where they come in.
fn check_side(reader: &Reader<'_>) {
    let has_to = reader.has("to");
    let place = |key: &str| reader.place.key(key).unwrap_or_default();
    if reader.has("snat") && !has_to {
        reader
            .note(Kind::Conflict, "`snat` in a [[nat]] without `to`")
            .at(place("snat"), "translates sources of packets that leave")
            .help("name the ports by which they leave, such as `to = \"uplink\"`")
            .keep();
    }
    let of_received = DESTINATIONS.into_iter().chain(["local_to"]).find(|key| has_to && reader.has(key));
    if let Some(key) = of_received {
        reader
            .note(Kind::Conflict, format!("`{key}` in a [[nat]] with `to`"))
            .at(place(key), "too late for this")
            .at(place("to"), "matches packets that leave")
            .help("destinations are translated where packets come in: use `from`, or leave both out for all ports")
            .keep();
    }
}

/// What the match and the action say together.
fn check_match(reader: &Reader<'_>, rule: &NatRule) {
    let matches = &rule.matches;
    let place = || reader.place.of("match");
    if !matches.state.is_empty() {
        reader
            .note(Kind::Conflict, "`state` in a [[nat]]")
            .at(place(), "always `\"new\"`")
            .help("leave it out: NAT rules are asked for the first packet of a connection")
            .keep();
    }
    let nets = matches.source.iter().chain(&matches.destination);
    let other = rule.action.is_v4().and_then(|is_v4| nets.into_iter().find(|net| net.is_v4() != is_v4));
    if let Some(other) = other {
        reader
            .note(Kind::Conflict, format!("{other} is of another family than what it is translated to"))
            .at(place(), "never translated")
            .help("write a rule for each family")
            .keep();
    }
    match &rule.action {
        NatAction::Destination(destination) => check_targets(reader, matches, destination),
        NatAction::Network(network) => {
            let (key, nets) = if matches.is_egress() || reader.has("to") {
                ("source", &matches.source)
            } else {
                ("destination", &matches.destination)
            };
            if !matches!(nets[..], [net] if net.length() == network.length()) {
                reader
                    .note(Kind::Conflict, format!("`network` without one `{key}` of the same length"))
                    .at(reader.place.of("network"), format!("each address of it stands for one of `{key}`"))
                    .help(format!("add one network with {} bits to `match` as `{key}`", network.length()))
                    .keep();
            }
        }
        NatAction::Keep | NatAction::Source(_) => {}
    }
}

fn check_targets(reader: &Reader<'_>, matches: &Match, destination: &DestinationNat) {
    let key = if reader.has("dnat") { "dnat" } else { "redirect" };
    let has_ports = |protocol: &IpProto| matches!(*protocol, IpProto::TCP | IpProto::UDP);
    let sets_port = destination.targets.iter().any(|target| target.port.is_some());
    // A value that cannot be read already has a finding.
    let is_unread = matches.protocol.is_empty()
        && reader.place.table("match").is_some_and(|matches| matches.value("protocol").is_some());
    let is_fit = is_unread || (!matches.protocol.is_empty() && matches.protocol.iter().all(has_ports));
    if sets_port && !is_fit {
        reader
            .note(Kind::Conflict, format!("`{key}` with a port, for packets without ports"))
            .at(reader.place.of(key), "only TCP and UDP change ports")
            .help("add `protocol = \"tcp\"`, `\"udp\"`, or both as a list, to `match`")
            .keep();
    }
    if destination.health.is_some() && destination.targets.iter().any(|target| target.port.is_none()) {
        reader
            .note(Kind::Conflict, "`health` of a target without a port")
            .at(reader.place.of("health"), "connects to the target's port")
            .help("give each target a port, such as \"10.0.0.2:80\"")
            .keep();
    }
}
