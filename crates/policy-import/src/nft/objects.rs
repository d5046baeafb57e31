// SPDX-License-Identifier: Apache-2.0
//! Collects the tables, chains, sets and limits of a ruleset.

use std::collections::{HashMap, HashSet};

use netvm_wire::EtherType;
use serde_json::Value;

use super::{Location, NftError, single};
use crate::chains::{Base, Before, Chain, Program, Side};
use crate::{Effect, Interfaces, Note, NoteReason};
use netvm_policy::Match;
use netvm_policy::PortId;

/// Family, table and name.
pub(super) type Name<'a> = (&'a str, &'a str, &'a str);

/// Objects by their names.
#[derive(Default)]
pub(super) struct Objects<'a> {
    pub(super) chains: HashMap<Name<'a>, usize>,
    /// Sets and maps.
    pub(super) sets: HashMap<Name<'a>, &'a Value>,
    /// Sets that rules add to.
    pub(super) dynamic: HashSet<Name<'a>>,
    pub(super) limits: HashMap<Name<'a>, &'a Value>,
    /// Tables whose rules have no effect: family and name.
    pub(super) dormant: HashSet<(&'a str, &'a str)>,
    /// Tables with chains that packets pass before their connections are looked up: family and name.
    pub(super) ingress: HashSet<(&'a str, &'a str)>,
    /// Rules translate destinations.
    pub(super) has_destinations: bool,
    listed: Vec<Listed<'a>>,
    bases: Vec<Hooked>,
    /// By priority.
    before: Vec<(i64, Before)>,
    pub(super) notes: Vec<Note>,
}

/// The priority at which connections are looked up (`NF_IP_PRI_CONNTRACK`).
const CONNTRACK: i64 = -200;

/// A chain.
struct Listed<'a> {
    line: u32,
    name: &'a str,
    unreached: Option<NoteReason>,
    /// See [`Chain`].
    bypassed: Option<bool>,
}

/// A base chain and its order on the packet path: ingress, bridge, IP; then by priority.
struct Hooked {
    stage: Stage,
    priority: i64,
    base: Base,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Ingress,
    Bridge,
    Ip,
}

impl<'a> Objects<'a> {
    /// Collects all objects except rules.
    pub(super) fn collect(objects: &'a [(u32, Value)], interfaces: &Interfaces) -> Result<Self, NftError> {
        let mut all = Self::default();
        for (line, object) in objects {
            let place = Location { line: *line, name: "object" };
            let Some((kind, inner)) = single(object) else {
                return Err(place.error("an object with one member", object));
            };
            match kind {
                "metainfo" => version(*line, inner)?,
                "table" => all.table(&place, inner)?,
                "chain" => all.chain(*line, inner, interfaces)?,
                "set" | "map" => {
                    let name = place.name_of(inner, "name")?;
                    all.sets.insert(name, inner);
                }
                "limit" => {
                    let name = place.name_of(inner, "name")?;
                    all.limits.insert(name, inner);
                }
                "rule" => all.additions(&place, inner)?,
                // Only rules that use these are noted.
                "counter" | "quota" | "flowtable" | "ct helper" | "ct timeout" | "ct expectation"
                | "secmark" | "synproxy" | "meter" | "element" => {}
                "add" | "replace" | "create" | "insert" | "delete" | "destroy" | "list" | "reset"
                | "flush" | "rename" => {
                    return Err(NftError::Command { line: *line, command: kind.to_owned() });
                }
                _ => all.notes.push(Note::new(*line, kind, NoteReason::Object)),
            }
        }
        all.notes.extend(all.bridge_and_ip());
        Ok(all)
    }

    /// The chains, without their rules, and the base chains in their order.
    pub(super) fn program(&mut self) -> Program {
        let chains = self.listed.iter();
        let chain = |listed: &Listed<'_>| {
            let Listed { line, name, unreached, bypassed } = *listed;
            Chain { bypassed, ..Chain::new(name, line, unreached) }
        };
        let chains = chains.map(chain).collect();
        let mut bases = std::mem::take(&mut self.bases);
        bases.sort_by_key(|hooked| (hooked.stage, hooked.priority));
        let mut before = std::mem::take(&mut self.before);
        before.sort_by_key(|(priority, _)| *priority);
        let before = before.into_iter().map(|(_, before)| before).collect();
        Program { chains, bases: bases.into_iter().map(|hooked| hooked.base).collect(), before }
    }

    fn table(&mut self, place: &Location<'_>, table: &'a Value) -> Result<(), NftError> {
        let family = place.text(table, "family", "a table with a family")?;
        let name = place.text(table, "name", "a table with a name")?;
        // One flag is a string, several are an array.
        let is_dormant = |flags: &Value| {
            let listed = flags.as_array().is_some_and(|flags| flags.iter().any(|flag| flag == "dormant"));
            flags == "dormant" || listed
        };
        if table.get("flags").is_some_and(is_dormant) {
            self.dormant.insert((family, name));
            self.notes.push(Note::new(place.line, format!("table {family} {name}"), NoteReason::Dormant));
        }
        Ok(())
    }

    fn chain(&mut self, line: u32, chain: &'a Value, interfaces: &Interfaces) -> Result<(), NftError> {
        let place = Location { line, name: "chain" };
        let (family, table, name) = place.name_of(chain, "name")?;
        if self.dormant.contains(&(family, table)) {
            return Ok(());
        }
        let index = self.listed.len();
        if self.chains.insert((family, table, name), index).is_some() {
            return Err(NftError::Twice { line, chain: format!("{family} {table} {name}") });
        }
        let (mut unreached, mut bypassed) = (Some(NoteReason::Unreached), None);
        if let Some(hook) = chain.get("hook") {
            unreached = Some(NoteReason::Hook);
            let priority = chain.get("prio").and_then(Value::as_i64).unwrap_or_default();
            let accepts = match chain.get("policy").map(|policy| (policy.as_str(), policy)) {
                None | Some((Some("accept"), _)) => true,
                Some((Some("drop"), _)) => false,
                Some((_, policy)) => return Err(place.error("policy accept or drop", policy)),
            };
            let kinds = match family {
                "ip" => vec![EtherType::IPV4],
                "ip6" => vec![EtherType::IPV6],
                "inet" => vec![EtherType::IPV4, EtherType::IPV6],
                _ => vec![],
            };
            let mut scope = Match { ether_type: kinds, ..Match::default() };
            let stage = match (hook.as_str(), family) {
                (Some("forward"), "ip" | "ip6" | "inet") => Some(Stage::Ip),
                (Some("forward"), "bridge") => Some(Stage::Bridge),
                (Some("ingress"), "inet" | "netdev") if chain.get("dev").is_some() => {
                    // The note for the device reports it.
                    unreached = None;
                    scope.from = self.devices(&place, chain, interfaces)?;
                    if scope.from.is_empty() { None } else { Some(Stage::Ingress) }
                }
                (Some(hook), _) => {
                    unreached = match hook {
                        "input" | "output" => unreached,
                        // nftables 1.0.6 does not print the device.
                        "ingress" => Some(NoteReason::Device),
                        _ => Some(NoteReason::OtherHook),
                    };
                    bypassed = (!matches!(hook, "input" | "output")).then_some(accepts);
                    None
                }
                (None, _) => None,
            };
            if hook == "ingress" {
                self.ingress.insert((family, table));
            }
            let translates = match (chain.get("type").and_then(Value::as_str), hook.as_str()) {
                (Some("nat"), Some("prerouting")) => Some(Side::Destination),
                (Some("nat"), Some("postrouting")) => Some(Side::Source),
                _ => None,
            };
            let stage = stage.or(translates.map(|_| Stage::Ip));
            if translates.is_some() {
                scope = Side::scope(scope);
            } else if hook == "prerouting" {
                let before = Before { chain: index, scope: scope.clone(), raw: priority < CONNTRACK };
                self.before.push((priority, before));
            }
            if let Some(stage) = stage {
                let base = Base { chain: index, line, scope, accepts, translates };
                self.bases.push(Hooked { stage, priority, base });
            }
        }
        self.listed.push(Listed { line, name, unreached, bypassed });
        Ok(())
    }

    /// The ports of a chain's devices.
    fn devices(
        &mut self,
        place: &Location<'_>,
        chain: &Value,
        interfaces: &Interfaces,
    ) -> Result<Vec<PortId>, NftError> {
        let (family, table, name) = place.name_of(chain, "name")?;
        let effect = if interfaces.is_complete() { Effect::Same } else { Effect::Wider };
        let devices = match chain.get("dev") {
            Some(Value::Array(devices)) => &devices[..],
            Some(device) => std::slice::from_ref(device),
            None => &[],
        };
        let mut ports = vec![];
        for device in devices {
            let Some(device) = device.as_str() else {
                return Err(place.error("the name of a device", device));
            };
            let named = interfaces.named(device, '*');
            if named.is_empty() {
                let what = format!("chain {family} {table} {name}, device {device}");
                self.notes.push(Note::new(place.line, what, NoteReason::NoDevice).with(effect));
            }
            ports.extend(named);
        }
        ports.sort_unstable();
        ports.dedup();
        Ok(ports)
    }

    /// Records the sets that a rule adds to, and whether it translates destinations.
    fn additions(&mut self, place: &Location<'_>, rule: &'a Value) -> Result<(), NftError> {
        let (family, table, _) = place.name_of(rule, "chain")?;
        let statements = rule.get("expr").and_then(Value::as_array).into_iter().flatten();
        for statement in statements {
            let kind = statement.as_str().or_else(|| single(statement).map(|(kind, _)| kind));
            self.has_destinations |= matches!(kind, Some("dnat" | "redirect"));
            let set = single(statement).filter(|(kind, _)| matches!(*kind, "set" | "map"));
            let name = set.and_then(|(_, set)| set.get("set").or_else(|| set.get("map"))?.as_str());
            if let Some(name) = name {
                self.dynamic.insert((family, table, name.strip_prefix('@').unwrap_or(name)));
            }
        }
        Ok(())
    }

    fn bridge_and_ip(&self) -> Option<Note> {
        let filters = self.bases.iter().filter(|hooked| hooked.base.translates.is_none());
        let of = |stage| filters.clone().find(|hooked| hooked.stage == stage);
        let (bridge, _) = (of(Stage::Bridge)?, of(Stage::Ip)?);
        let what = format!("chain {}", self.listed[bridge.base.chain].name);
        Some(Note::new(bridge.base.line, what, NoteReason::BridgeAndIp).with(Effect::Stricter))
    }
}

fn version(line: u32, metainfo: &Value) -> Result<(), NftError> {
    match metainfo.get("json_schema_version").and_then(Value::as_u64) {
        Some(version) if version != 1 => Err(NftError::Version { line, version }),
        _ => Ok(()),
    }
}
