// SPDX-License-Identifier: Apache-2.0
//! What would change on each host: what etcd has, compared with the files. Machines are not asked: what one of them
//! lacks is found when the host applies it.

use std::collections::BTreeMap;

use netvm_config::{ConfigError, Document, Plan, SharedFragment, fragment_names, parse_document};
use netvm_fleet::{HostKey, HostName, fragment_key};
use netvm_model::Host;
use serde::Serialize;

use super::contents::{Contents, KnownHost};
use super::local::Local;
use crate::error::{CliError, FleetError};
use crate::output::Output;

/// The change of a host.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct HostPlan {
    /// What changes.
    pub(super) plan: Plan,
    /// Whether the host is held back and only released.
    pub(super) is_held: bool,
}

/// The changes of all hosts.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Plans {
    /// By host; hosts that do not change are not there.
    pub(super) hosts: BTreeMap<String, HostPlan>,
    /// Hosts that etcd has and the files do not, which keep their configurations.
    pub(super) only_in_etcd: Vec<String>,
    /// Fragments that change.
    pub(super) fragments: Vec<String>,
}

/// A host's configuration and the fragments that it names, each from where it is.
fn document(
    name: &str,
    text: &str,
    fragment: impl Fn(&str) -> Option<(String, String)>,
) -> Result<Document, ConfigError> {
    let part = |key: String| {
        let (name, text) =
            fragment(&key).map_or_else(|| (fragment_key(&key), None), |(name, text)| (name, Some(text)));
        SharedFragment { key, name, text }
    };
    let fragments = fragment_names(name, text)?.into_iter().map(part).collect();
    Ok(Document { name: name.to_owned(), text: text.to_owned(), fragments: Some(fragments) })
}

/// The texts, without the names of their files.
fn texts(document: &Document) -> Vec<Option<&str>> {
    let fragments = document.fragments.iter().flatten().map(|fragment| fragment.text.as_deref());
    std::iter::once(Some(&*document.text)).chain(fragments).collect()
}

/// Compares; prints the errors of all hosts if there are any.
pub(super) fn plans(output: &Output, local: &Local, contents: &Contents) -> Result<Plans, CliError> {
    let in_etcd = |key: &str| {
        let (text, _) = contents.fragments.get(key)?;
        Some((fragment_key(key), text.clone()))
    };
    let wanted = |key: &str| {
        let file = local.fragments.get(key).map(|file| (file.path.clone(), file.text.clone()));
        file.or_else(|| in_etcd(key))
    };
    let mut plans = Plans::default();
    let is_new =
        |key: &String, text: &String| contents.fragments.get(key).is_none_or(|(known, _)| known != text);
    let changed = local.fragments.iter().filter(|(key, file)| is_new(key, &file.text));
    plans.fragments = changed.map(|(key, _)| key.clone()).collect();
    let mut errors = Vec::new();
    let nothing = KnownHost::default();
    let only_in_etcd = contents.hosts.keys().filter(|host| !local.hosts.contains_key(host));
    let configured = only_in_etcd.filter(|host| contents.hosts[*host].config.is_some());
    plans.only_in_etcd = configured.clone().map(ToString::to_string).collect();
    for host in local.hosts.keys().chain(configured) {
        let known = contents.hosts.get(host).unwrap_or(&nothing);
        let key = host.key(HostKey::Config);
        let before = known.config.as_ref().map(|(text, _)| document(&key, text, in_etcd));
        let after = match (local.hosts.get(host), &known.config) {
            (Some(file), _) => document(&file.path, &file.text, wanted),
            (None, Some((text, _))) => document(&key, text, wanted),
            (None, None) => continue,
        };
        let after = match after {
            Ok(after) => after,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        let is_same = matches!(&before, Some(Ok(before)) if texts(before) == texts(&after));
        if is_same && known.hold.is_none() {
            continue;
        }
        let old = before.and_then(Result::ok).and_then(|before| parse_document(&before, |_| Vec::new()).ok());
        let old = old.map_or_else(Host::default, |loaded| loaded.host);
        match parse_document(&after, |_| Vec::new()) {
            Ok(loaded) => {
                let plan = netvm_config::plan(&old, &loaded.host);
                plans.hosts.insert(host.to_string(), HostPlan { plan, is_held: is_same });
            }
            // Somebody else's error, which was there before.
            Err(_) if is_same && !local.hosts.contains_key(host) => {}
            Err(error) => errors.push(error),
        }
    }
    let count = errors.len();
    let Some(last) = errors.pop() else { return Ok(plans) };
    if count == 1 {
        return Err(last.into());
    }
    errors.push(last);
    errors.into_iter().for_each(|error| output.error(&error.into()));
    Err(FleetError::Invalid(count).into())
}

/// Prints them.
pub(super) fn show(output: &Output, plans: &Plans) -> Result<(), CliError> {
    if output.json { output.value(plans) } else { output.text(&text(plans)) }
}

pub(super) fn text(plans: &Plans) -> String {
    let mut text = String::new();
    for (host, HostPlan { plan, is_held }) in &plans.hosts {
        let what = if *is_held { " (held back, with what it has)" } else { "" };
        text += &format!("host {host}{what}:\n");
        plan.to_string().lines().for_each(|line| text += &format!("  {line}\n"));
    }
    if plans.hosts.is_empty() {
        text += "nothing changes on any host\n";
    }
    for (what, names) in [
        ("fragments that change", &plans.fragments),
        ("hosts that only etcd has, which keep their files", &plans.only_in_etcd),
    ] {
        if !names.is_empty() {
            text += &format!("{what}: {}\n", names.join(", "));
        }
    }
    text
}

/// A host of the plans.
pub(super) fn named(plans: &Plans) -> impl Iterator<Item = HostName> {
    plans.hosts.keys().filter_map(|name| name.parse().ok())
}
