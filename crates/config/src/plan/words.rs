// SPDX-License-Identifier: Apache-2.0
//! Items and values in a few words.

use toml::{Table, Value};

use super::ItemKind;

/// How a key differs, without what tables within its two tables have in common.
pub(super) fn difference(key: &str, old: Option<&Value>, new: Option<&Value>) -> String {
    let (mut old, mut new) = (old.cloned(), new.cloned());
    if let (Some(Value::Table(old)), Some(Value::Table(new))) = (&mut old, &mut new) {
        for (inner, before) in old.iter_mut() {
            if let (Value::Table(before), Some(Value::Table(after))) = (before, new.get_mut(inner)) {
                let all = before.clone();
                before.retain(|name, value| after.get(name) != Some(value));
                after.retain(|name, value| all.get(name) != Some(value));
            }
        }
        let is_left = |_: &str, value: &mut Value| value.as_table().is_none_or(|table| !table.is_empty());
        old.retain(is_left);
        new.retain(is_left);
    }
    format!("{key} {} → {}", value(key, old.as_ref()), value(key, new.as_ref()))
}

/// A value without its punctuation: lists with commas, commands with spaces, an empty one as `none`, no value as
/// `unset`.
pub(super) fn value(key: &str, value: Option<&Value>) -> String {
    let text = match value {
        None => return "unset".to_owned(),
        // Plans are shown, logged and pasted.
        Some(_) if key == "secret" => return "***".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(list)) => {
            let separator = if key == "command" { " " } else { "," };
            let parts: Vec<String> = list.iter().map(|part| element(key, part)).collect();
            parts.join(separator)
        }
        Some(Value::Table(table)) => {
            let parts: Vec<String> =
                table.iter().map(|(name, part)| format!("{name}={}", element(key, part))).collect();
            parts.join(" ")
        }
        Some(other) => other.to_string(),
    };
    if text.is_empty() { "none".to_owned() } else { text }
}

fn element(key: &str, part: &Value) -> String {
    match part {
        Value::Array(_) | Value::Table(_) => format!("[{}]", value(key, Some(part))),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// An item in a few words.
pub(super) fn summary(kind: ItemKind, item: &Table) -> String {
    let word = |key| value(key, item.get(key));
    match kind {
        ItemKind::Engine | ItemKind::Api | ItemKind::Health | ItemKind::Switch | ItemKind::Policy => {
            String::new()
        }
        ItemKind::Group => format!("{} buffers of {} bytes", word("buffers"), word("buffer_size")),
        ItemKind::Port => {
            let what = ["interface", "address", "input", "output", "path", "size"]
                .into_iter()
                .find_map(|key| item.get(key));
            match what {
                Some(what) => format!("{} {}", word("kind"), value("", Some(what))),
                None => word("kind"),
            }
        }
        ItemKind::Nf if item.get("command").is_some() => word("command"),
        ItemKind::Nf => "attaches by itself".to_owned(),
        ItemKind::Vm => {
            let what = ["role", "ports"].into_iter().find(|key| item.contains_key(*key)).unwrap_or("ports");
            format!("{what} {}, {} MiB, {} cpus", word(what), word("memory"), word("cpus"))
        }
        ItemKind::Router => {
            let interfaces = item.get("interface").and_then(Value::as_array).into_iter().flatten();
            let words: Vec<String> = interfaces
                .map(|interface| {
                    let word = |key| value(key, interface.get(key));
                    let vlan = interface.get("vlan").map(|vlan| format!(" VLAN {vlan}"));
                    format!("{} on {}{}", word("name"), word("port"), vlan.unwrap_or_default())
                })
                .collect();
            words.join(", ")
        }
        ItemKind::Chain => match item.get("output") {
            Some(_) => format!("{} → {}", word("hops"), word("output")),
            None => word("hops"),
        },
        ItemKind::Rule => rule(item),
        ItemKind::Nat => nat(item),
    }
}

/// A NAT rule, such as `to uplink source=10.0.0.0/8 → snat masquerade`.
fn nat(item: &Table) -> String {
    let actions = ["snat", "dnat", "redirect", "network"].into_iter();
    let action = actions.filter_map(|key| Some(format!("{key} {}", value(key, Some(item.get(key)?))))).next();
    format!("{} → {}", matched(item), action.unwrap_or_else(|| "keep".to_owned()))
}

/// Ports and match of a rule.
fn matched(item: &Table) -> String {
    let word = |key| item.get(key).map(|found| value(key, Some(found)));
    let mut parts = Vec::new();
    parts.extend(word("from").map(|ports| format!("from {ports}")));
    parts.extend(word("to").map(|ports| format!("to {ports}")));
    parts.push(word("match").unwrap_or_else(|| "everything".to_owned()));
    parts.extend(word("time").map(|time| format!("at {time}")));
    parts.extend(word("load").map(|load| format!("while {load}")));
    parts.join(" ")
}

/// A rule, such as `from client protocol=tcp destination_ports=80 → chain web`.
fn rule(item: &Table) -> String {
    let word = |key| item.get(key).map(|found| value(key, Some(found)));
    let mut actions = Vec::new();
    actions.extend(word("set_vlan").map(|tag| format!("VLAN {tag}")));
    actions.extend(word("queue").map(|queue| format!("queue {queue}")));
    actions.extend(word("mirror").map(|port| format!("mirror {port}")));
    actions.extend(word("police").map(|limits| format!("police {limits}")));
    actions.extend(word("chain").map(|chain| format!("chain {chain}")));
    actions.extend(word("out").map(|port| format!("port {port}")));
    actions.extend(word("router").map(|router| format!("router {router}")));
    actions.extend(word("syn_proxy").map(|_| "SYN proxy".to_owned()));
    let plain = ["allow", "drop", "reject", "normal", "count"];
    actions.extend(plain.into_iter().filter(|key| item.contains_key(*key)).map(str::to_owned));
    format!("{} → {}", matched(item), actions.join(", "))
}
