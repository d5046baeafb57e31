//! Which items came, went, or differ.

use std::collections::BTreeSet;

use super::{Action, Change, ItemKind, words};
use crate::document::{Document, Item};

/// All changes, without what they disturb.
pub(super) fn changes(old: &Document, new: &Document) -> Vec<Change> {
    let mut changes = Vec::new();
    changes.extend(fields(ItemKind::Engine, &old.engine, &new.engine));
    named(ItemKind::Group, &old.groups, &new.groups, &mut changes);
    named(ItemKind::Port, &old.ports, &new.ports, &mut changes);
    named(ItemKind::Nf, &old.nfs, &new.nfs, &mut changes);
    named(ItemKind::Chain, &old.chains, &new.chains, &mut changes);
    steering(&old.steering, &new.steering, &mut changes);
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
fn fields(kind: ItemKind, old: &Item, new: &Item) -> Option<Change> {
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

/// Rules have no names: they are compared whole, port by port, and so is their order.
fn steering(old: &[Item], new: &[Item], changes: &mut Vec<Change>) {
    let mut ports: Vec<&str> = Vec::new();
    let mut seen = BTreeSet::new();
    for item in old.iter().chain(new) {
        if seen.insert(item.name.as_str()) {
            ports.push(&item.name);
        }
    }
    for port in ports {
        let of_port = |list: &'_ [Item]| -> Vec<Item> {
            list.iter().filter(|item| item.name == port).cloned().collect()
        };
        let (before, after) = (of_port(old), of_port(new));
        let gone = missing(&before, &after);
        let added = missing(&after, &before);
        let kept = |list: &[Item], without: &[&Item]| -> Vec<Item> {
            list.iter().filter(|item| !without.contains(item)).cloned().collect()
        };
        let moved = kept(&before, &gone) != kept(&after, &added);
        let kind = ItemKind::Steering;
        for (action, rules) in [(Action::Remove, gone), (Action::Add, added)] {
            changes
                .extend(rules.into_iter().map(|rule| change(action, kind, port, words::summary(kind, rule))));
        }
        if moved {
            changes.push(change(Action::Change, kind, port, "the rules' order".to_owned()));
        }
    }
}

/// What `list` has and `other` has not.
fn missing<'a>(list: &'a [Item], other: &[Item]) -> Vec<&'a Item> {
    list.iter().filter(|item| !other.contains(item)).collect()
}
