//! From names to numbers: the raw file becomes a [`Host`]. Names that are twice or nowhere become findings.

use std::collections::BTreeMap;

use toml::Spanned;

use crate::finding::{Findings, Kind};
use crate::model::{
    Actions, Chain, ChainId, Forward, Group, GroupId, Host, MAX_CHAINS, MAX_GROUPS, MAX_PORTS, MAX_ROLES,
    MAX_RULES, Match, NfConfig, Output, PortConfig, PortId, PortPolicy, RoleId, Rule, RuleId, Verdict,
};
use crate::raw::{Name, RawForward, RawHost, RawOutput, RawVerdict};
use crate::suggest::did_you_mean;

/// The names of one kind of item, with their numbers.
struct Names<'a> {
    findings: &'a Findings,
    /// What an item is called, such as `port`.
    what: &'static str,
    numbers: BTreeMap<&'a str, (u16, &'a Spanned<String>)>,
    /// An item's name could not be read: an unknown name may be meant for it.
    is_incomplete: bool,
}

impl<'a> Names<'a> {
    fn new(
        findings: &'a Findings,
        what: &'static str,
        limit: usize,
        names: impl Iterator<Item = &'a Name>,
    ) -> Self {
        let mut this = Self { findings, what, numbers: BTreeMap::new(), is_incomplete: false };
        for (number, name) in names.enumerate() {
            let Some(name) = name else {
                this.is_incomplete = true;
                continue;
            };
            this.add(u16::try_from(number).unwrap_or(u16::MAX), name);
            if number == limit {
                findings
                    .note(Kind::TooMany, format!("more than {limit} {what}s"))
                    .at(name.span(), "one too many")
                    .help(format!("a host can have {limit} {what}s"))
                    .keep();
            }
        }
        this
    }

    fn add(&mut self, number: u16, name: &'a Spanned<String>) {
        let what = self.what;
        if let Some((_, first)) = self.numbers.get(name.get_ref().as_str()) {
            self.findings
                .note(Kind::Duplicate, format!("two {what}s are called `{}`", name.get_ref()))
                .at(name.span(), "again")
                .at(first.span(), "first here")
                .help(format!("give every {what} a name of its own"))
                .keep();
            return;
        }
        self.numbers.insert(name.get_ref(), (number, name));
    }

    fn find(&self, name: &Spanned<String>) -> Option<u16> {
        let what = self.what;
        let number = self.numbers.get(name.get_ref().as_str()).map(|(number, _)| *number);
        if number.is_none() && !self.is_incomplete {
            let known = self.numbers.keys().copied();
            let help = did_you_mean(name.get_ref(), known, &format!("the {what}s"));
            self.findings
                .note(Kind::UnknownName, format!("there is no {what} `{}`", name.get_ref()))
                .at(name.span(), format!("no such {what}"))
                .help(help.unwrap_or_else(|| format!("there are no {what}s: add a [[{}]]", table_of(what))))
                .keep();
        }
        number
    }
}

/// The table that declares such items.
fn table_of(what: &str) -> &str {
    if what == "role" { "nf" } else { what }
}

/// Resolves everything. When something is missing in the result, it has been complained of.
pub(crate) fn resolve(findings: &Findings, raw: &RawHost) -> Host {
    let groups = Names::new(findings, "group", MAX_GROUPS, raw.groups.iter().map(|group| &group.name));
    let ports = Names::new(findings, "port", MAX_PORTS, raw.ports.iter().map(|port| &port.name));
    let roles = Names::new(findings, "role", MAX_ROLES, raw.nfs.iter().map(|nf| &nf.role));
    let chains = Names::new(findings, "chain", MAX_CHAINS, raw.chains.iter().map(|chain| &chain.name));
    let default_name = Spanned::new(0..0, Group::default().name);
    let groups = if raw.groups.is_empty() {
        let mut groups = groups;
        groups.numbers.insert(default_name.get_ref(), (0, &default_name));
        groups
    } else {
        groups
    };
    let port = |name: &Spanned<String>| ports.find(name).map(PortId);
    let chain = |name: &Spanned<String>| chains.find(name).map(ChainId);
    let text = |name: &Name| name.as_ref().map(|name| name.get_ref().clone()).unwrap_or_default();
    let mut host =
        Host { engine: raw.engine.config.clone(), switch: raw.switch, policy: raw.policy, ..Host::default() };

    for (number, item) in (0..u16::MAX).zip(&raw.groups) {
        host.groups.push(Group {
            id: GroupId(number),
            name: text(&item.name),
            cells: item.cells,
            cell_size: *item.cell_size.get_ref(),
            headroom: *item.headroom.get_ref(),
            may_send_to: item.may_send_to.as_ref().map(|names| names.iter().filter_map(port).collect()),
        });
    }
    if raw.groups.is_empty() {
        host.groups.push(Group::default());
    }
    for (number, item) in (0..u16::MAX).zip(&raw.ports) {
        let Some(kind) = item.kind.clone() else { continue };
        host.ports.push(PortConfig {
            id: PortId(number),
            name: text(&item.name),
            kind,
            queues: item.queues,
            mtu: *item.mtu.get_ref(),
            group: item.group.as_ref().and_then(|name| groups.find(name)).map(GroupId),
            policy: PortPolicy {
                forward: match &item.policy.forward {
                    None => Forward::None,
                    Some(RawForward::Normal) => Forward::Normal,
                    Some(RawForward::Chain(name)) => chain(name).map_or(Forward::None, Forward::Chain),
                    Some(RawForward::Port(name)) => port(name).map_or(Forward::None, Forward::Port),
                },
                ..item.policy.policy.clone()
            },
        });
    }
    for (number, item) in (0..u16::MAX).zip(&raw.nfs) {
        let group = match &item.group {
            Some(name) => groups.find(name),
            None if raw.groups.len() <= 1 => Some(0),
            None => {
                findings
                    .note(Kind::MissingKey, format!("[[nf]] {} has no `group`", text(&item.role)))
                    .at(item.span.clone(), "`group` is missing here")
                    .help("there are several groups: say in which it is, such as `group = \"edge\"`")
                    .keep();
                None
            }
        };
        host.nfs.push(NfConfig {
            id: RoleId(number),
            role: text(&item.role),
            group: GroupId(group.unwrap_or_default()),
            balance: item.balance,
            start: item.start.clone(),
        });
    }
    for (number, item) in (0..u16::MAX).zip(&raw.chains) {
        host.chains.push(Chain {
            id: ChainId(number),
            name: text(&item.name),
            hops: item.hops.iter().filter_map(|name| roles.find(name)).map(RoleId).collect(),
            on_failure: *item.on_failure.get_ref(),
            output: match &item.output {
                RawOutput::None => Output::None,
                RawOutput::Ingress => Output::Ingress,
                RawOutput::Port(name) => port(name).map_or(Output::None, Output::Port),
            },
        });
    }
    resolve_rules(findings, raw, &mut host, port, chain);
    host
}

/// Rules need no names, but no two can have the same.
fn resolve_rules(
    findings: &Findings,
    raw: &RawHost,
    host: &mut Host,
    port: impl Fn(&Spanned<String>) -> Option<PortId>,
    chain: impl Fn(&Spanned<String>) -> Option<ChainId>,
) {
    let named = raw.rules.iter().map(|rule| &rule.name).filter(|name| name.is_some());
    Names::new(findings, "rule", usize::MAX, named);
    if let Some(extra) = raw.rules.get(MAX_RULES) {
        findings
            .note(Kind::TooMany, format!("more than {MAX_RULES} rules"))
            .at(extra.span.clone(), "one too many")
            .help(format!("a host can have {MAX_RULES} rules"))
            .keep();
    }
    for (number, item) in (0..).zip(&raw.rules) {
        let ports = |names: &[Spanned<String>]| names.iter().filter_map(&port).collect();
        let verdict = item.verdict.as_ref().and_then(|verdict| match verdict {
            RawVerdict::Chain(name) => chain(name).map(Verdict::Chain),
            RawVerdict::Port(name) => port(name).map(Verdict::Port),
            RawVerdict::Plain(verdict) => Some(*verdict),
        });
        host.rules.push(Rule {
            id: RuleId(number),
            name: item.name.as_ref().map(|name| name.get_ref().clone()).unwrap_or_default(),
            matches: Match { from: ports(&item.from), to: ports(&item.to), ..item.matches.clone() },
            actions: Actions {
                verdict,
                set_vlan: item.set_vlan,
                mirror: item.mirror.as_ref().and_then(&port),
                police: item.police,
            },
        });
    }
}
