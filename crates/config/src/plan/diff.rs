// SPDX-License-Identifier: Apache-2.0
//! Items that were added, removed or changed.

use std::collections::HashMap;

use toml::{Table, Value};

use super::{Change, ChangeKind, ItemKind, words};

/// All changes, without their effects.
pub(super) fn changes(old: &Table, new: &Table) -> Vec<Change> {
    let mut changes = Vec::new();
    for kind in ItemKind::TABLES {
        let table = |host: &Table| host.get(kind.key()).and_then(Value::as_table).cloned();
        changes.extend(fields(kind, &table(old).unwrap_or_default(), &table(new).unwrap_or_default()));
    }
    for kind in ItemKind::NAMED {
        named(kind, &items(old, kind), &items(new, kind), &mut changes);
    }
    for kind in [ItemKind::Rule, ItemKind::Nat] {
        rules(kind, &items(old, kind), &items(new, kind), &mut changes);
    }
    changes
}

fn items(host: &Table, kind: ItemKind) -> Vec<&Table> {
    let list = host.get(kind.key()).and_then(Value::as_array).into_iter().flatten();
    list.filter_map(Value::as_table).collect()
}

/// The name of an item; empty if it has none.
fn name(item: &Table) -> &str {
    item.get("name").or_else(|| item.get("role")).and_then(Value::as_str).unwrap_or_default()
}

fn change(action: ChangeKind, item: ItemKind, name: &str, text: String) -> Change {
    Change { action, item, name: name.to_owned(), text, effects: Vec::new() }
}

/// An item that was added or removed.
fn whole(action: ChangeKind, kind: ItemKind, item: &Table) -> Change {
    change(action, kind, name(item), words::summary(kind, item))
}

fn named(kind: ItemKind, old: &[&Table], new: &[&Table], changes: &mut Vec<Change>) {
    let find = |list: &[&Table], wanted: &str| list.iter().position(|item| name(item) == wanted);
    for item in old.iter().filter(|item| find(new, name(item)).is_none()) {
        changes.push(whole(ChangeKind::Remove, kind, item));
    }
    for item in new {
        match find(old, name(item)).and_then(|place| old.get(place)) {
            None => changes.push(whole(ChangeKind::Add, kind, item)),
            Some(before) => changes.extend(fields(kind, before, item)),
        }
    }
}

/// The fields of one item that differ, if any.
pub(super) fn fields(kind: ItemKind, old: &Table, new: &Table) -> Option<Change> {
    if kind == ItemKind::Nf && old.contains_key("command") != new.contains_key("command") {
        let text = format!("{} → {}", words::summary(kind, old), words::summary(kind, new));
        return Some(change(ChangeKind::Change, kind, name(new), text));
    }
    let gone = old.keys().filter(|key| !new.contains_key(*key));
    let keys = new.keys().chain(gone);
    let texts: Vec<String> = keys
        .filter(|key| old.get(*key) != new.get(*key))
        .map(|key| words::difference(key, old.get(key), new.get(key)))
        .collect();
    (!texts.is_empty()).then(|| change(ChangeKind::Change, kind, name(new), texts.join("; ")))
}

/// Compares rules with a name by it, others by content; then the order of the rules that stay.
fn rules(kind: ItemKind, old: &[&Table], new: &[&Table], changes: &mut Vec<Change>) {
    let (before, after) = (identities(old), identities(new));
    let places: HashMap<&str, usize> = before.iter().enumerate().map(|(n, key)| (key.as_str(), n)).collect();
    let kept: Vec<Option<usize>> = after.iter().map(|key| places.get(key.as_str()).copied()).collect();
    let mut stays = vec![false; old.len()];
    kept.iter().flatten().for_each(|place| stays[*place] = true);
    let removed = old.iter().zip(&stays).filter(|(_, stays)| !**stays);
    changes.extend(removed.map(|(item, _)| whole(ChangeKind::Remove, kind, item)));
    for (item, place) in new.iter().zip(&kept) {
        match place.and_then(|place| old.get(place)) {
            None => changes.push(whole(ChangeKind::Add, kind, item)),
            Some(before) => changes.extend(fields(kind, before, item)),
        }
    }
    if !kept.iter().flatten().is_sorted() {
        let kind = if kind == ItemKind::Rule { ItemKind::Policy } else { kind };
        changes.push(change(ChangeKind::Change, kind, "", "the order of the rules".to_owned()));
    }
}

/// What identifies each rule: its name, else its content and the number of equal rules before it.
fn identities(rules: &[&Table]) -> Vec<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut identity = |item: &&Table| {
        let name = name(item);
        if !name.is_empty() {
            return name.to_owned();
        }
        // A name has no blanks.
        let text = format!(" {item}");
        let count = seen.entry(text.clone()).or_default();
        *count += 1;
        format!("{count}{text}")
    };
    rules.iter().map(&mut identity).collect()
}
