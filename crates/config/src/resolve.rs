//! From names to numbers: the raw file becomes a [`Host`]. Names that are twice or nowhere become findings.

use toml::Spanned;

use crate::finding::{Findings, Kind};
use crate::model::{
    Chain, ChainId, Forward, Group, GroupId, Guest, Host, MAX_CHAINS, MAX_GROUPS, MAX_PORTS, MAX_ROLES,
    MAX_ROUTERS, MAX_VMS, NfConfig, Output, PortConfig, PortId, PortPolicy, RoleId, RouterId, Rule, VmCard,
    VmConfig,
};
use crate::raw::{Name, RawForward, RawGuest, RawHost, RawOutput, RawRule};

mod names;
mod routers;
mod rules;

use names::Names;

/// Resolves everything. When something is missing in the result, it has been complained of.
pub(crate) fn resolve(findings: &Findings, raw: &RawHost) -> Host {
    let groups = Names::new(findings, "group", MAX_GROUPS, raw.groups.iter().map(|group| &group.name));
    let punts = routers::punt_names(&raw.routers);
    let ports = raw.ports.iter().map(|port| &port.name).chain(&punts);
    let ports = Names::new(findings, "port", MAX_PORTS, ports);
    let roles = Names::new(findings, "role", MAX_ROLES, raw.nfs.iter().map(|nf| &nf.role));
    let chains = Names::new(findings, "chain", MAX_CHAINS, raw.chains.iter().map(|chain| &chain.name));
    let routers = Names::new(findings, "router", MAX_ROUTERS, raw.routers.iter().map(|router| &router.name));
    Names::new(findings, "vm", MAX_VMS, raw.vms.iter().map(|vm| &vm.name));
    let default = Group::default();
    let groups = if raw.groups.is_empty() {
        Names::of(findings, "group", [(default.name.as_str(), 0)])
    } else {
        groups
    };
    let port = |name: &Spanned<String>| ports.find(name).map(PortId);
    let chain = |name: &Spanned<String>| chains.find(name).map(ChainId);
    let router = |name: &Spanned<String>| routers.find(name).map(RouterId);
    let text = |name: &Name| name.as_ref().map(|name| name.get_ref().clone()).unwrap_or_default();
    let mut host =
        Host { engine: raw.engine.config.clone(), switch: raw.switch, policy: raw.policy, ..Host::default() };

    for (number, item) in (0..u16::MAX).zip(&raw.groups) {
        host.groups.push(Group {
            id: GroupId(number),
            name: text(&item.name),
            buffers: item.buffers,
            buffer_size: *item.buffer_size.get_ref(),
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
                    Some(RawForward::Router(name)) => router(name).map_or(Forward::None, Forward::Router),
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
            flow_verdicts: item.flow_verdicts,
            start: item.start.clone(),
        });
    }
    for item in &raw.vms {
        let guest = match &item.guest {
            Some(RawGuest::Nf { role, threads, notify }) => roles.find(role).map(|number| Guest::Nf {
                role: RoleId(number),
                threads: *threads,
                notify: *notify,
            }),
            Some(RawGuest::Ordinary { cards }) => {
                let card =
                    |(name, mac): &(_, Spanned<_>)| Some(VmCard { port: port(name)?, mac: *mac.get_ref() });
                cards.iter().map(card).collect::<Option<_>>().map(|cards| Guest::Ordinary { cards })
            }
            None => None,
        };
        let (Some(guest), Some(boot)) = (guest, item.boot.clone()) else { continue };
        host.vms.push(VmConfig {
            name: text(&item.name),
            guest,
            memory: item.memory,
            cpus: item.cpus,
            cores: item.cores.clone(),
            node: item.node,
            accel: item.accel,
            boot,
            qemu: item.qemu.clone(),
            user: item.user.clone(),
            start: item.start,
            restart: item.restart,
            boot_timeout: item.boot_timeout,
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
                RawOutput::Normal => Output::Normal,
                RawOutput::Router(name) => router(name).map_or(Output::None, Output::Router),
                RawOutput::Port(name) => port(name).map_or(Output::None, Output::Port),
            },
        });
    }
    host.rules = rules::resolve(findings, &raw.rules, port, chain, router);
    routers::resolve(&raw.routers, &mut host, raw.ports.len(), port);
    host
}

/// Resolves rules by the names of a host.
pub(crate) fn resolve_rules(findings: &Findings, raw: &[RawRule], host: &Host) -> Vec<Rule> {
    let ports = Names::of(findings, "port", host.ports.iter().map(|port| (port.name.as_str(), port.id.0)));
    let chains =
        Names::of(findings, "chain", host.chains.iter().map(|chain| (chain.name.as_str(), chain.id.0)));
    let routers =
        Names::of(findings, "router", host.routers.iter().map(|router| (router.name.as_str(), router.id.0)));
    let port = |name: &Spanned<String>| ports.find(name).map(PortId);
    let chain = |name: &Spanned<String>| chains.find(name).map(ChainId);
    let router = |name: &Spanned<String>| routers.find(name).map(RouterId);
    rules::resolve(findings, raw, port, chain, router)
}
