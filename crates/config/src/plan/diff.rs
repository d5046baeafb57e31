//! Which items came, went, or differ.

use std::collections::HashMap;

use super::{Action, Change, ItemKind, words};
use crate::document::{Document, Item};

/// All changes, without what they disturb.
pub(super) fn changes(old: &Document, new: &Document) -> Vec<Change> {
    let mut changes = Vec::new();
    changes.extend(fields(ItemKind::Engine, &old.engine, &new.engine));
    changes.extend(fields(ItemKind::Switch, &old.switch, &new.switch));
    changes.extend(fields(ItemKind::Policy, &old.policy, &new.policy));
    named(ItemKind::Group, &old.groups, &new.groups, &mut changes);
    named(ItemKind::Port, &old.ports, &new.ports, &mut changes);
    named(ItemKind::Nf, &old.nfs, &new.nfs, &mut changes);
    named(ItemKind::Vm, &old.vms, &new.vms, &mut changes);
    named(ItemKind::Router, &old.routers, &new.routers, &mut changes);
    named(ItemKind::Chain, &old.chains, &new.chains, &mut changes);
    rules(&old.rules, &new.rules, &mut changes);
    changes
}

fn change(action: Action, item: ItemKind, name: &str, text: String) -> Change {
    Change { action, item, name: name.to_owned(), text, effects: Vec::new() }
}

fn named(kind: ItemKind, old: &[Item], new: &[Item], changes: &mut Vec<Change>) {
    let find = |list: &[Item], name: &str| list.iter().position(|item| item.name == name);
    for item in old.iter().filter(|item| find(new, &item.name).is_none()) {
        changes.push(change(Action::Remove, kind, &item.name, words::summary(kind, item)));
    }
    for item in new {
        match find(old, &item.name).and_then(|place| old.get(place)) {
            None => changes.push(change(Action::Add, kind, &item.name, words::summary(kind, item))),
            Some(before) => changes.extend(fields(kind, before, item)),
        }
    }
}

/// The fields of one item that differ, if any.
pub(super) fn fields(kind: ItemKind, old: &Item, new: &Item) -> Option<Change> {
    if kind == ItemKind::Nf && old.get("command").is_some() != new.get("command").is_some() {
        let text = format!("{} → {}", words::summary(kind, old), words::summary(kind, new));
        return Some(change(Action::Change, kind, &new.name, text));
    }
    let gone = old.fields.iter().map(|(key, _)| *key).filter(|key| new.get(key).is_none());
    let keys = new.fields.iter().map(|(key, _)| *key).chain(gone);
    let texts: Vec<String> = keys
        .filter(|key| old.get(key) != new.get(key))
        .map(|key| format!("{key} {} → {}", words::value(key, old.get(key)), words::value(key, new.get(key))))
        .collect();
    (!texts.is_empty()).then(|| change(Action::Change, kind, &new.name, texts.join("; ")))
}

/// Rules with a name are compared by it, others by what they say; and so is their order.
fn rules(old: &[Item], new: &[Item], changes: &mut Vec<Change>) {
    let (before, after) = (identities(old), identities(new));
    let places: HashMap<&str, usize> = before.iter().enumerate().map(|(n, key)| (key.as_str(), n)).collect();
    let kept: Vec<Option<usize>> = after.iter().map(|key| places.get(key.as_str()).copied()).collect();
    let mut stays = vec![false; old.len()];
    kept.iter().flatten().for_each(|place| stays[*place] = true);
    for (item, _) in old.iter().zip(&stays).filter(|(_, stays)| !**stays) {
        changes.push(change(
            Action::Remove,
            ItemKind::Rule,
            &item.name,
            words::summary(ItemKind::Rule, item),
        ));
    }
    for (item, place) in new.iter().zip(&kept) {
        match place.and_then(|place| old.get(place)) {
            None => changes.push(change(
                Action::Add,
                ItemKind::Rule,
                &item.name,
                words::summary(ItemKind::Rule, item),
            )),
            Some(before) => changes.extend(fields(ItemKind::Rule, before, item)),
        }
    }
    if !kept.iter().flatten().is_sorted() {
        changes.push(change(Action::Change, ItemKind::Policy, "", "the order of the rules".to_owned()));
    }
}

/// What each rule is known by: its name, else what it says and which of those that say the same it is.
fn identities(rules: &[Item]) -> Vec<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut identity = |item: &Item| {
        if !item.name.is_empty() {
            return item.name.clone();
        }
        // A name has no blanks.
        let text = format!(" {:?}", item.fields);
        let count = seen.entry(text.clone()).or_default();
        *count += 1;
        format!("{count}{text}")
    };
    rules.iter().map(&mut identity).collect()
}
