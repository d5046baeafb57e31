// SPDX-License-Identifier: Apache-2.0
//! `netvm policy import`: converts ClassBench, iptables or nftables rules, or policies of Kubernetes, to `[[rule]]` and
//! `[[nat]]` tables.

use std::collections::HashSet;

use netvm_model::{
    Action, Host, NAME_BYTES, NatRule, PortConfig, PortId, PortKind, RouterConfig, RouterId, Rule, RuleId,
    RuleParts,
};
use netvm_policy::Actions;
use netvm_policy_import::{
    Effect, Imported, ImportedNat, ImportedRule, Interfaces, classbench, iptables, kubernetes, nft,
};

use crate::cli::{ImportArgs, ImportFormat};
use crate::error::{CliError, ImportError};
use crate::output::Output;

/// Prints the rules on standard output, and on standard error everything without an equivalent. Prints no rules, and
/// fails, if without that they would pass packets that the file drops, or, without `--stricter`, drop packets that it
/// passes.
pub fn import(output: &Output, arguments: &ImportArgs) -> Result<(), CliError> {
    let path = &arguments.file;
    let text =
        std::fs::read_to_string(path).map_err(|source| ImportError::Read { path: path.clone(), source })?;
    let named = |given: &String| match given.split_once('=') {
        Some((interface, port)) => (interface.to_owned(), port.to_owned()),
        None => (given.clone(), given.clone()),
    };
    let ports: Vec<(String, String)> = arguments.interfaces.iter().map(named).collect();
    let numbered = || (0u16..).map(PortId).zip(&ports);
    let mut interfaces = Interfaces::new(numbered().map(|(id, (interface, _))| (interface.as_str(), id)));
    if arguments.ignore_other_interfaces {
        interfaces = interfaces.complete();
    }
    let imported = match arguments.format {
        ImportFormat::Classbench => {
            let actions = Actions { terminal: Some(Action::Drop), ..Actions::default() };
            classbench::parse(&text, actions, classbench::Flags::Ignore)
                .map_err(|source| ImportError::ClassBench { path: path.clone(), source })?
        }
        ImportFormat::Iptables => iptables::parse(&text, None, &interfaces)
            .map_err(|source| ImportError::Iptables { path: path.clone(), source })?,
        ImportFormat::Nft => nft::parse(&text, &interfaces)
            .map_err(|source| ImportError::Nft { path: path.clone(), source })?,
        ImportFormat::Kubernetes => kubernetes::parse(&text)
            .map_err(|source| ImportError::Kubernetes { path: path.clone(), source })?,
    };
    for note in &imported.notes {
        let effect = match note.effect {
            Effect::Same => "",
            Effect::Stricter => "stricter: ",
            Effect::Wider => "error: ",
        };
        eprintln!("{}: {effect}{note}", path.display());
    }
    let count = |effect| imported.notes.iter().filter(|note| note.effect == effect).count();
    match imported.effect() {
        Effect::Wider => {
            return Err(ImportError::Wider { path: path.clone(), count: count(Effect::Wider) }.into());
        }
        Effect::Stricter if !arguments.stricter => {
            return Err(ImportError::Stricter { path: path.clone(), count: count(Effect::Stricter) }.into());
        }
        _ => {}
    }
    let local = imported.nat.iter().find(|nat| nat.is_local);
    if let (Some(nat), None) = (local, &arguments.router) {
        return Err(ImportError::Router { path: path.clone(), line: nat.line }.into());
    }
    let tracking = tracking(&imported, &ports);
    let port = |(id, (_, name)): (PortId, &(String, String))| PortConfig::new(id, name, PortKind::default());
    let router = |name: &String| RouterConfig {
        id: RouterId(0),
        name: name.clone(),
        interfaces: vec![],
        routes: vec![],
        track: false,
        nat64: None,
        weight: 1,
        reserve: 0,
    };
    let host = Host {
        ports: numbered().map(port).collect(),
        routers: arguments.router.iter().map(router).collect(),
        rules: rules(imported.rules),
        nat: nat_rules(imported.nat),
        ..Host::default()
    };
    let toml = netvm_config::to_toml(&host);
    let start = ["[[rule]]", "[[nat]]"].iter().find_map(|table| toml.find(table));
    output.text(&(tracking + start.map_or("", |start| &toml[start..])))?;
    Ok(())
}

/// What rules that match states or translate need of the ports, as comments; `ports`: interface and port, by number.
fn tracking(imported: &Imported, ports: &[(String, String)]) -> String {
    if !imported.tracks() {
        return String::new();
    }
    let names: Vec<&str> = ports.iter().map(|(_, port)| port.as_str()).collect();
    let all = if names.is_empty() { "all ports".to_owned() } else { format!("port {}", names.join(", ")) };
    let do_what = if imported.nat.is_empty() { "match the state of" } else { "match or translate" };
    let mut text = format!("# The rules {do_what} connections. They need `track = true` of {all}.\n");
    for (port, zone) in &imported.zones {
        let name = ports.get(port.index()).map_or("", |(_, port)| port.as_str());
        text += &format!("# Port {name} needs `zone = {zone}`.\n");
    }
    text + "\n"
}

/// The rules with names that the configuration accepts.
fn rules(imported: Vec<ImportedRule>) -> Vec<Rule> {
    let mut names = UniqueNames::default();
    let numbered = (0u32..).map(RuleId).zip(imported);
    let rule = |(id, rule): (RuleId, ImportedRule)| {
        let name = names.of(&rule.name);
        let mut made = Rule::from(RuleParts { id, name, matches: rule.matches, actions: rule.actions });
        rule.selection.into_iter().for_each(|selection| made.set_selection(selection));
        made
    };
    numbered.map(rule).collect()
}

/// The NAT rules, with such names.
fn nat_rules(imported: Vec<ImportedNat>) -> Vec<NatRule> {
    let mut names = UniqueNames::default();
    let rule = |nat: ImportedNat| NatRule {
        name: names.of(&nat.name),
        matches: nat.matches,
        local_to: nat.is_local.then_some(RouterId(0)),
        action: nat.action,
    };
    imported.into_iter().map(rule).collect()
}

/// Names that the configuration accepts: illegal characters become `-`, duplicates become empty.
#[derive(Default)]
struct UniqueNames(HashSet<String>);

impl UniqueNames {
    fn of(&mut self, name: &str) -> String {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        let name: String = name.chars().map(|c| if allowed(c) { c } else { '-' }).take(NAME_BYTES).collect();
        if !name.is_empty() && self.0.insert(name.clone()) { name } else { String::new() }
    }
}
