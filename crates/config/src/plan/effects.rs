// SPDX-License-Identifier: Apache-2.0
//! The effects of changes, by the table at the top of [`super`].

use netvm_model::{
    EngineConfig, Guest, GuestCard, Host, NfConfig, NfLimits, NfStart, PairConfig, PortConfig, PortPolicy,
    Restart, SocketRights, VmConfig, VmStart,
};

use super::{Change, ChangeKind, Effect, ItemKind, diff};
use crate::syntax::table::write;

/// Adds the effects of each change, and changes for ports and VMs that are affected by changes of other items.
pub(super) fn add(changes: &mut Vec<Change>, old: &Host, new: &Host) {
    for change in &mut *changes {
        change.effects = effects(change, old, new);
    }
    let rewired: Vec<Change> = new.vms.iter().filter_map(|vm| rewired(vm, old, new)).collect();
    for change in rewired {
        if let Some(change) = merge(changes, change) {
            let is_before = |known: &Change| is_early(known.item) || known.item == ItemKind::Nf;
            let place = changes.iter().position(|known| !is_before(known)).unwrap_or(changes.len());
            changes.insert(place, change);
        }
    }
    let ports = new.ports.iter();
    let reopened = ports.filter_map(|port| resized(port, old, new).or_else(|| moved_port(port, old, new)));
    let reopened: Vec<Change> = reopened.filter_map(|change| merge(changes, change)).collect();
    let place = changes.iter().position(|change| !is_early(change.item)).unwrap_or(changes.len());
    changes.splice(place..place, reopened);
}

/// Adds the effects of a change to the change of the same item; returns the change if there is none.
fn merge(changes: &mut [Change], change: Change) -> Option<Change> {
    let known = changes.iter_mut().find(|known| known.item == change.item && known.name == change.name);
    let Some(known) = known else { return Some(change) };
    if known.effects.is_empty() {
        known.effects = change.effects;
    }
    None
}

/// A port that is reopened because of changes of other items.
fn reopen(port: &PortConfig, text: String) -> Change {
    let effects = vec![Effect::PortReopened { port: port.name.clone(), why: text.clone() }];
    Change { action: ChangeKind::Change, item: ItemKind::Port, name: port.name.clone(), text, effects }
}

/// Whether such changes come before those of NFs.
const fn is_early(kind: ItemKind) -> bool {
    matches!(
        kind,
        ItemKind::Engine
            | ItemKind::Api
            | ItemKind::Health
            | ItemKind::Switch
            | ItemKind::Policy
            | ItemKind::Group
            | ItemKind::Port
    )
}

fn effects(change: &Change, old: &Host, new: &Host) -> Vec<Effect> {
    let name = &change.name;
    match (change.item, change.action) {
        (ItemKind::Engine, _) => engine(change, &old.engine, &new.engine),
        (ItemKind::Group, ChangeKind::Change) => group(name, old, new).into_iter().collect(),
        (ItemKind::Port, ChangeKind::Add) => vec![Effect::PortOpened { port: name.clone() }],
        (ItemKind::Port, ChangeKind::Remove) => vec![Effect::PortClosed { port: name.clone() }],
        (ItemKind::Port, ChangeKind::Change) => reopened(name, old, new).into_iter().collect(),
        (ItemKind::Switch, _) if old.switch.macs != new.switch.macs => {
            vec![Effect::RestartNeeded { why: format!("switch: {}", change.text) }]
        }
        (ItemKind::Nf, ChangeKind::Add) => started(new, name).into_iter().collect(),
        (ItemKind::Nf, ChangeKind::Remove) => vec![Effect::NfStopped { role: name.clone(), replicas: None }],
        (ItemKind::Nf, ChangeKind::Change) => nf(change, old, new),
        (ItemKind::Vm, ChangeKind::Add)
            if new.vm_named(name).is_some_and(|vm| vm.start == VmStart::WithNetvmd) =>
        {
            vec![Effect::VmStarted { vm: name.clone() }]
        }
        (ItemKind::Vm, ChangeKind::Remove) => vec![Effect::VmStopped { vm: name.clone() }],
        (ItemKind::Vm, ChangeKind::Change) if is_to_start(name, old, new) => {
            vec![Effect::VmStarted { vm: name.clone() }]
        }
        (ItemKind::Vm, ChangeKind::Change) => vm(name, old, new).into_iter().collect(),
        (ItemKind::Vm, ChangeKind::Add) => Vec::new(),
        (ItemKind::Router, _) => punts(name, old, new),
        (
            ItemKind::Api
            | ItemKind::Health
            | ItemKind::Switch
            | ItemKind::Policy
            | ItemKind::Group
            | ItemKind::Chain
            | ItemKind::Rule
            | ItemKind::Nat,
            _,
        ) => Vec::new(),
    }
}

/// Only the workers' cores can change while netvmd runs.
fn engine(change: &Change, old: &EngineConfig, new: &EngineConfig) -> Vec<Effect> {
    if *new != (EngineConfig { cores: new.cores.clone(), ..old.clone() }) {
        return vec![Effect::RestartNeeded { why: format!("engine: {}", change.text) }];
    }
    let (old, new) = (&old.cores, &new.cores);
    // Without cores, there is a worker on a core that only netvmd knows.
    let (before, after) = (old.len().max(1), new.len().max(1));
    let both = (0u8..).zip(old.iter().zip(new)).filter(|(_, (from, to))| from != to);
    let moved = both.map(|(worker, (from, to))| Effect::WorkerMoved { worker, from: *from, to: *to });
    let removed = (0u8..).zip(old).skip(after);
    let removed = removed.map(|(worker, core)| Effect::WorkerRemoved { worker, core: *core });
    let added = (0u8..).zip(new).skip(before);
    let added = added.map(|(worker, core)| Effect::WorkerAdded { worker, core: *core });
    removed.chain(moved).chain(added).collect()
}

/// Whether netvmd starts a virtual machine now that it did not start before.
fn is_to_start(name: &str, old: &Host, new: &Host) -> bool {
    let starts = |host: &Host| host.vm_named(name).is_some_and(|vm| vm.start == VmStart::WithNetvmd);
    starts(new) && !starts(old)
}

/// Restarts a virtual machine, unless only `start`, `restart` or `boot_timeout` differ.
fn vm(name: &str, old: &Host, new: &Host) -> Option<Effect> {
    let (before, after) = (old.vm_named(name)?, new.vm_named(name)?);
    let machine = |host: &Host, vm: &VmConfig| {
        let start = if vm.start == VmStart::Manual { VmStart::Manual } else { VmStart::WithNetvmd };
        write(host, &mut VmConfig { start, restart: Restart::Always, boot_timeout: 0, ..vm.clone() })
    };
    let why = diff::fields(ItemKind::Vm, &machine(old, before), &machine(new, after))?.text;
    Some(Effect::VmRestarted { vm: name.to_owned(), why })
}

/// Restarts an unchanged virtual machine whose port has a new device, as its network card depends on the
/// device.
fn rewired(vm: &VmConfig, old: &Host, new: &Host) -> Option<Change> {
    let before = old.vm_named(&vm.name)?;
    let (Guest::Ordinary { cards }, Guest::Ordinary { .. }) = (&vm.guest, &before.guest) else { return None };
    // The guest learns the MTU from a virtio-net card.
    let tells_mtu = |port: &PortConfig| port.kind.info().card == Some(GuestCard::VirtioNet);
    let device = |port: &PortConfig| (port.kind.clone(), port.queues, tells_mtu(port).then_some(port.mtu));
    let ports = cards.iter().filter_map(|card| new.port(card.port));
    let mut changed = ports.filter_map(|port| {
        let was = old.port_named(&port.name).filter(|was| device(was) != device(port))?;
        let item = |host: &Host, port: &PortConfig| {
            let (socket, policy) = (SocketRights::default(), PortPolicy::default());
            let (worker, node, group) = (None, None, None);
            let mtu = if tells_mtu(port) { port.mtu } else { 0 };
            write(host, &mut PortConfig { socket, policy, worker, node, group, mtu, ..port.clone() })
        };
        Some(format!(
            "port {}: {}",
            port.name,
            diff::fields(ItemKind::Port, &item(old, was), &item(new, port))?.text
        ))
    });
    let text = changed.next()?;
    let effects = vec![Effect::VmRestarted { vm: vm.name.clone(), why: text.clone() }];
    Some(Change { action: ChangeKind::Change, item: ItemKind::Vm, name: vm.name.clone(), text, effects })
}

/// The punt ports of a router that are added or removed.
fn punts(name: &str, old: &Host, new: &Host) -> Vec<Effect> {
    let names = |host: &Host| -> Vec<String> {
        let interfaces = host.router_named(name).map(|router| &router.interfaces).into_iter().flatten();
        interfaces.filter_map(|interface| host.port(interface.punt)).map(|port| port.name.clone()).collect()
    };
    let (before, after) = (names(old), names(new));
    let closed = before.iter().filter(|port| !after.contains(port));
    let opened = after.iter().filter(|port| !before.contains(port));
    let closed = closed.map(|port| Effect::PortClosed { port: port.clone() });
    closed.chain(opened.map(|port| Effect::PortOpened { port: port.clone() })).collect()
}

/// Reopens a punt port when the MTU of its interface's port changes.
fn resized(port: &PortConfig, old: &Host, new: &Host) -> Option<Change> {
    new.punted_by(port.id)?;
    let before = old.port_named(&port.name).filter(|before| old.punted_by(before.id).is_some())?;
    (before.mtu != port.mtu).then(|| reopen(port, format!("mtu {} → {}", before.mtu, port.mtu)))
}

/// Reopens a port whose device differs; keys about packets change without that.
fn reopened(name: &str, old: &Host, new: &Host) -> Option<Effect> {
    let (before, after) = (old.port_named(name)?, new.port_named(name)?);
    let device = |host: &Host, port: &PortConfig| {
        let (socket, policy) = (SocketRights::default(), PortPolicy::default());
        write(host, &mut PortConfig { socket, policy, group: None, ..port.clone() })
    };
    let why = match diff::fields(ItemKind::Port, &device(old, before), &device(new, after)) {
        Some(fields) => fields.text,
        None if before.has_queues() == after.has_queues() => return None,
        None => "qos".to_owned(),
    };
    Some(Effect::PortReopened { port: name.to_owned(), why })
}

/// The memory of a group cannot be resized while it holds packets.
fn group(name: &str, old: &Host, new: &Host) -> Option<Effect> {
    let (before, after) = (old.group_named(name)?, new.group_named(name)?);
    let texts: Vec<String> = [
        ("buffers", before.buffers, after.buffers),
        ("buffer_size", before.buffer_size, after.buffer_size),
        ("headroom", before.headroom.into(), after.headroom.into()),
        ("large_buffers", before.large_buffers, after.large_buffers),
    ]
    .into_iter()
    .filter(|(_, before, after)| before != after)
    .map(|(key, before, after)| format!("{key} {before} → {after}"))
    .collect();
    (!texts.is_empty())
        .then(|| Effect::RestartNeeded { why: format!("memory of group {name}: {}", texts.join("; ")) })
}

/// Moves a port that must receive into another group's memory, because its `group`, rules or chains changed. A device
/// that has the memory registered is reopened.
fn moved_port(port: &PortConfig, old: &Host, new: &Host) -> Option<Change> {
    let before = landing_name(old, old.port_named(&port.name)?);
    let after = landing_name(new, port);
    if before == after || !port.has_queues() {
        return None;
    }
    let text = format!("packets land in {after} instead of {before}");
    if !port.kind.info().changes_memory() {
        return Some(reopen(port, text));
    }
    let effects = vec![Effect::PortMoved { port: port.name.clone(), why: text.clone() }];
    Some(Change { action: ChangeKind::Change, item: ItemKind::Port, name: port.name.clone(), text, effects })
}

fn landing_name(host: &Host, port: &PortConfig) -> String {
    let group = host.landing_group(port).and_then(|id| host.group(id));
    group.map_or_else(|| "the engine's own memory".to_owned(), |group| format!("group {}", group.name))
}

fn nf(change: &Change, old: &Host, new: &Host) -> Vec<Effect> {
    let role = &change.name;
    let (Some(before), Some(after)) = (old.nf_named(role), new.nf_named(role)) else { return Vec::new() };
    let restarted = || vec![Effect::NfRestarted { role: role.clone(), why: change.text.clone() }];
    if group_name(old, before) != group_name(new, after) {
        return restarted();
    }
    match (&before.start, &after.start) {
        (NfStart::Managed { .. }, NfStart::Managed { .. }) => {
            if program(&before.start) != program(&after.start) {
                return restarted();
            }
            counts(role, processes(&before.start), processes(&after.start))
        }
        (NfStart::External { .. }, NfStart::External { .. }) => Vec::new(),
        (NfStart::Ports(before), NfStart::Ports(after)) if is_same_program(before, after) => {
            counts(role, before.instances(), after.instances())
        }
        (NfStart::Ports(_), NfStart::Ports(_)) => restarted(),
        _ => {
            let stopped = Effect::NfStopped { role: role.clone(), replicas: None };
            std::iter::once(stopped).chain(started(new, role)).collect()
        }
    }
}

/// The keys that a running process cannot take over.
type Program<'a> = (&'a [String], &'a str, u16, &'a [u32], &'a [(String, String)], &'a NfLimits);

fn program(start: &NfStart) -> Option<Program<'_>> {
    match start {
        NfStart::Managed { command, user, cores, environment, threads, limits, .. } => {
            Some((command, user, *threads, cores, environment, limits))
        }
        NfStart::External { .. } | NfStart::Ports(_) => None,
    }
}

/// Whether nothing differs but the number of instances, and what concerns packets only.
fn is_same_program(before: &PairConfig, after: &PairConfig) -> bool {
    let program = |pair: &PairConfig| PairConfig {
        replicas: 1,
        standby: 0,
        while_starting: None,
        probe: true,
        ports: Vec::new(),
        ..pair.clone()
    };
    program(before) == program(after)
}

const fn processes(start: &NfStart) -> u16 {
    match start {
        NfStart::Managed { replicas, standby, .. } => *replicas + *standby,
        NfStart::External { .. } => 0,
        NfStart::Ports(pair) => pair.instances(),
    }
}

fn counts(role: &str, before: u16, after: u16) -> Vec<Effect> {
    if after > before {
        vec![Effect::NfStarted { role: role.to_owned(), replicas: after - before }]
    } else if before > after {
        vec![Effect::NfStopped { role: role.to_owned(), replicas: Some(before - after) }]
    } else {
        Vec::new()
    }
}

fn started(host: &Host, role: &str) -> Option<Effect> {
    let nf = host.nf_named(role)?;
    Some(Effect::NfStarted { role: role.to_owned(), replicas: processes(&nf.start) })
}

fn group_name<'a>(host: &'a Host, nf: &NfConfig) -> Option<&'a str> {
    host.group(nf.group).map(|group| group.name.as_str())
}
