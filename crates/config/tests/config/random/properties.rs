// SPDX-License-Identifier: Apache-2.0
//! Properties of every legal host: its TOML form gives it back, numbers stay, plans are complete.

use std::collections::BTreeSet;

use netvm_config::{ChangeKind, parse, plan, to_toml};
use netvm_model::{EngineConfig, Group, Host, MAX_PORTS, PortConfig, PortId, PortKind, assign_ids};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::host;

fn names(host: &Host) -> [Vec<(&str, u16)>; 6] {
    let queues: BTreeSet<(&str, u16)> =
        host.queues().map(|item| (item.name.as_str(), item.id.0.into())).collect();
    [
        host.groups.iter().map(|item| (item.name.as_str(), item.id.0)).collect(),
        host.ports.iter().map(|item| (item.name.as_str(), item.id.0)).collect(),
        host.nfs.iter().map(|item| (item.role.as_str(), item.id.0)).collect(),
        host.chains.iter().map(|item| (item.name.as_str(), item.id.0)).collect(),
        host.routers.iter().map(|item| (item.name.as_str(), item.id.0)).collect(),
        queues.into_iter().collect(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Any damage to a file is read or refused, and every finding can be drawn.
    #[test]
    fn any_text_is_read_or_refused(
        host in host(),
        cuts in vec((any::<Index>(), 0usize..12, "[ -~é\n]{0,4}"), 1..4),
    ) {
        let mut text = to_toml(&host);
        for (at, length, instead) in cuts {
            let chars: Vec<(usize, char)> = text.char_indices().collect();
            let first = at.index(chars.len());
            let last = (first + length).min(chars.len() - 1);
            text.replace_range(chars[first].0..chars[last].0, &instead);
        }
        let found = match parse("host.toml", &text) {
            Ok(loaded) => loaded.warnings,
            Err(error) => {
                prop_assert!(error.findings().iter().any(|finding| !finding.is_warning()));
                error.findings().to_vec()
            }
        };
        for finding in found {
            let drawn = finding.render(false);
            prop_assert!(drawn.contains(&format!("[host.toml:{}:", finding.position().0)), "{drawn}\n{text}");
        }
    }

    #[test]
    fn the_toml_form_gives_the_host_back(host in host()) {
        let text = to_toml(&host);
        match parse("host.toml", &text) {
            Ok(loaded) => prop_assert_eq!(loaded.host, host),
            Err(error) => prop_assert!(false, "{text}\n{}", error.render(false)),
        }
    }

    #[test]
    fn numbers_stay_and_references_follow(old in host(), new in host()) {
        let mut numbered = new.clone();
        assign_ids(&mut numbered, Some(&old));
        // By name nothing has changed.
        prop_assert_eq!(to_toml(&numbered), to_toml(&new));
        for (before, after) in names(&old).iter().zip(names(&numbered)) {
            let used: BTreeSet<u16> = before.iter().map(|(_, id)| *id).collect();
            let distinct: BTreeSet<u16> = after.iter().map(|(_, id)| *id).collect();
            prop_assert_eq!(distinct.len(), after.len());
            for (name, id) in after {
                match before.iter().find(|(known, _)| *known == name) {
                    Some((_, kept)) => prop_assert_eq!(id, *kept),
                    None => prop_assert!(!used.contains(&id)),
                }
            }
        }
        // And back again.
        assign_ids(&mut numbered, None);
        prop_assert_eq!(numbered, new);
    }

    #[test]
    fn a_plan_is_empty_only_for_the_same_host(old in host(), new in host()) {
        prop_assert!(plan(&old, &old).is_empty());
        let mut renumbered = old.clone();
        assign_ids(&mut renumbered, Some(&new));
        prop_assert!(plan(&old, &renumbered).is_empty());
        let (forth, back) = (plan(&old, &new), plan(&new, &old));
        prop_assert_eq!(forth.is_empty(), to_toml(&old) == to_toml(&new));
        let count = |plan: &netvm_config::Plan, action| plan.changes.iter().filter(|change| change.action == action).count();
        prop_assert_eq!(count(&forth, ChangeKind::Add), count(&back, ChangeKind::Remove));
        prop_assert_eq!(count(&forth, ChangeKind::Change), count(&back, ChangeKind::Change));
        let memory = |group: &Group| (group.buffers, group.buffer_size, group.headroom);
        let same_memory =
            |group: &Group| new.group_named(&group.name).is_none_or(|other| memory(other) == memory(group));
        let with_cores = EngineConfig { cores: new.engine.cores.clone(), ..old.engine.clone() };
        let same_whole = with_cores == new.engine && old.switch.macs == new.switch.macs;
        let live = same_whole && old.groups.iter().all(same_memory);
        prop_assert_eq!(forth.needs_restart(), !live);
        prop_assert_eq!(serde_json::from_str::<netvm_config::Plan>(&serde_json::to_string(&forth).unwrap()).unwrap(), forth);
    }
}

#[test]
fn freed_numbers_are_used_again_when_nothing_else_is_left() {
    let host = |names: &mut dyn Iterator<Item = String>| {
        let port = |(id, name)| PortConfig::new(PortId(id), name, PortKind::Sink);
        Host { ports: (0..).zip(names).map(port).collect(), ..Host::default() }
    };
    let old = host(&mut (0..MAX_PORTS).map(|n| format!("old{n}")));
    let mut new =
        host(&mut (0..MAX_PORTS).map(|n| if n % 2 == 0 { format!("new{n}") } else { format!("old{n}") }));
    assign_ids(&mut new, Some(&old));
    let ids: BTreeSet<u16> = new.ports.iter().map(|port| port.id.0).collect();
    assert_eq!(ids, (0..MAX_PORTS as u16).collect());
    assert_eq!(new.port_named("old7").unwrap().id, PortId(7));
}
