// SPDX-License-Identifier: Apache-2.0
//! Resources that two items of a host cannot share: interfaces, PCI devices, sockets, capture files to write,
//! cores. Ports without a device that lead nowhere.

use std::collections::HashMap;

use netvm_model::{
    Action, BondMode, EngineConfig, FRAME_HEADER, Forward, Host, Idle, LacpRate, MAX_MEMBERS, NfStart,
    PortConfig, PortId, Resource, SendsTo,
};
use netvm_wire::VlanId;

use crate::syntax::file_table::FileTable;
use crate::syntax::finding::{Findings, Kind, Span};

pub(super) fn check(findings: &Findings, file: &FileTable<'_>, host: &Host) {
    devices(findings, file, host);
    patches(findings, file, host);
    bridges(findings, file, host);
    vlans(findings, file, host);
    bonds(findings, file, host);
    shapers(findings, file, host);
    cores(findings, file, host);
}

/// What only one port can use: what it is, the key that names it, and its name.
fn exclusive(resource: Resource<'_>) -> Option<(&'static str, &'static str, String)> {
    match resource {
        Resource::PciDevice(address) => Some(("PCI device", "address", address.to_owned())),
        Resource::Interface(interface, _) | Resource::Tap(interface) => {
            Some(("interface", "interface", interface.to_owned()))
        }
        Resource::ContainerTap(container) => {
            let file = container.namespace_file();
            Some(("interface", "interface", format!("{} in {}", container.interface, file.display())))
        }
        Resource::OwnSocket(path) | Resource::PeerSocket(path) => {
            Some(("socket", "path", path.display().to_string()))
        }
        Resource::PeerInterface(path, id) => {
            Some(("interface of a socket", "id", format!("{id} of {}", path.display())))
        }
        Resource::Input(_) => None,
        Resource::Output(path) => Some(("capture to write", "output", path.display().to_string())),
    }
}

fn devices(findings: &Findings, file: &FileTable<'_>, host: &Host) {
    let mut seen: HashMap<(&str, String), (Span, &str)> = HashMap::new();
    for (port, place) in host.ports.iter().zip(file.items("port")) {
        for (what, key, name) in port.kind.info().resources().filter_map(exclusive) {
            match seen.get(&(what, name.clone())) {
                Some((first, owner)) => findings
                    .note(Kind::Duplicate, format!("two ports use the {what} `{name}`"))
                    .at(place.of(key), "again")
                    .at(first.clone(), format!("port {owner} uses it"))
                    .help("only one port can use it; to use more workers, raise that port's `queues`")
                    .keep(),
                None => drop(seen.insert((what, name), (place.of(key), &port.name))),
            }
        }
    }
}

/// Patch ports whose peer has another peer.
fn patches(findings: &Findings, file: &FileTable<'_>, host: &Host) {
    for (port, place) in host.ports.iter().zip(file.items("port")) {
        let Some(other) = port.kind.peer().and_then(|peer| host.port(peer)) else { continue };
        if other.id != port.id && other.kind.peer() == Some(port.id) {
            continue;
        }
        findings
            .note(Kind::Conflict, format!("port {} is not the peer of its peer", port.name))
            .at(place.of("peer"), format!("{} names another peer", other.name))
            .help(format!(
                "write `kind = \"patch\"` and `peer = \"{}\"` in another [[port]], and name that one here",
                port.name
            ))
            .keep();
    }
}

/// Interfaces of L2 switching that send what they get from it back to it.
fn bridges(findings: &Findings, file: &FileTable<'_>, host: &Host) {
    let is_bridge = |port: &&PortConfig| port.kind.info().sends_to == Some(SendsTo::Bridge);
    let back = |port: &PortConfig, at| {
        findings
            .note(Kind::Conflict, format!("port {} sends packets back to L2 switching", port.name))
            .at(at, "they come from there")
            .help("it is L2 switching's own interface: send them to a router, into a chain or out of another port")
            .keep();
    };
    for (port, place) in host.ports.iter().zip(file.items("port")) {
        if is_bridge(&port) && port.policy.forward == Forward::Normal {
            back(port, place.of("forward"));
        }
    }
    for (rule, place) in host.rules.iter().zip(file.items("rule")) {
        let from = rule.matches.from.iter().filter_map(|id| host.port(*id)).find(is_bridge);
        if let (Some(port), Some(Action::Normal)) = (from, rule.actions.terminal) {
            back(port, place.of("normal"));
        }
    }
}

/// Ports for a tag of a port that has another one for it, or that are behind themselves.
fn vlans(findings: &Findings, file: &FileTable<'_>, host: &Host) {
    let parent = |port: &PortConfig| match port.kind.info().sends_to {
        Some(SendsTo::Parent { port, tag }) => Some((port, tag)),
        _ => None,
    };
    let mut seen: HashMap<(PortId, VlanId), (Span, &str)> = HashMap::new();
    for (port, place) in host.ports.iter().zip(file.items("port")) {
        let Some(packets) = parent(port) else { continue };
        match seen.get(&packets) {
            Some((first, owner)) => findings
                .note(Kind::Duplicate, "two ports have one tag of one port".to_owned())
                .at(place.of("tag"), "again")
                .at(first.clone(), format!("port {owner} has it"))
                .help("give one of them another `tag` or `parent`")
                .keep(),
            None => drop(seen.insert(packets, (place.of("tag"), &port.name))),
        }
        let behind = |port: &PortId| Some(parent(host.port(*port)?)?.0);
        let mut parents = std::iter::successors(Some(packets.0), behind).take(host.ports.len());
        if parents.any(|parent| parent == port.id) {
            findings
                .note(Kind::Conflict, format!("port {} is its own parent", port.name))
                .at(place.of("parent"), "leads back to it")
                .help("name the port that receives the packets with the tag")
                .keep();
        }
    }
}

/// Members of bonds that cannot be members, or that are used otherwise.
fn bonds(findings: &Findings, file: &FileTable<'_>, host: &Host) {
    let mut seen: HashMap<PortId, (Span, &str)> = HashMap::new();
    for (port, place) in host.ports.iter().zip(file.items("port")) {
        let Some(bond) = port.kind.info().bond else { continue };
        let bad = |kind, key, message: String, at: &str, help: &str| {
            findings.note(kind, message).at(place.of(key), at).help(help).keep();
        };
        let count = bond.members.len();
        if !(1..=MAX_MEMBERS).contains(&count) {
            let message = format!("bond {} has {count} members", port.name);
            bad(Kind::BadValue, "members", message, "not 1 to 8", "name the ports that it joins");
        }
        if bond.min_links as usize > count.max(1) {
            let message = format!("bond {} never has {} links", port.name, bond.min_links);
            bad(Kind::BadValue, "min_links", message, "more than its members", "lower it, or add members");
        }
        if bond.mode != BondMode::Lacp {
            let keys =
                [("lacp_rate", bond.lacp_rate != LacpRate::Slow), ("lacp_fallback", bond.lacp_fallback)];
            for (key, _) in keys.into_iter().filter(|(_, is_given)| *is_given) {
                let message = format!("`{key}` of bond {} has no effect", port.name);
                bad(Kind::Conflict, key, message, "the bond speaks no LACP", "set `mode = \"lacp\"`");
            }
        }
        for (n, id) in bond.members.iter().enumerate() {
            let at = place.element("members", n);
            let Some(member) = host.port(*id) else { continue };
            let note = |kind, message: String| findings.note(kind, message).at(at.clone(), "here");
            if let Some((first, owner)) = seen.insert(*id, (at.clone(), &port.name)) {
                note(Kind::Duplicate, format!("port {} is a member twice", member.name))
                    .at(first, format!("bond {owner} has it"))
                    .help("a port is a member of one bond: remove one of them")
                    .keep();
            }
            if member.kind.info().sends_to.is_some() {
                note(Kind::Conflict, format!("port {} has no device", member.name))
                    .help("a bond joins links: name ports with a device, such as `af_xdp` or `pci`")
                    .keep();
            }
            if member.mtu < port.mtu {
                note(Kind::Conflict, format!("the MTU of port {} is below that of its bond", member.name))
                    .help(format!("set `mtu = {}` for the member, or lower the bond's", port.mtu))
                    .keep();
            }
            if let Some(use_) = use_of(host, member) {
                note(Kind::Conflict, format!("port {} is a member of a bond, and {use_}", member.name))
                    .help(format!("the bond has its packets: name {} there", port.name))
                    .keep();
            }
        }
    }
}

/// What else receives the packets of a port.
fn use_of(host: &Host, port: &PortConfig) -> Option<&'static str> {
    let is_parent = |other: &PortConfig| match other.kind.info().sends_to {
        Some(SendsTo::Parent { port: parent, .. }) => parent == port.id,
        _ => false,
    };
    if port.policy.forward != Forward::None {
        Some("has a `forward`")
    } else if host.rules.iter().any(|rule| rule.matches.from.contains(&port.id)) {
        Some("a rule matches what it receives")
    } else if host.routers.iter().any(|router| router.ports().any(|own| own == port.id)) {
        Some("a router has an interface on it")
    } else if host.ports.iter().any(is_parent) {
        Some("a `vlan` port has a tag of it")
    } else {
        None
    }
}

/// Shapers that would let no long packet pass, or whose queues share a name.
fn shapers(findings: &Findings, file: &FileTable<'_>, host: &Host) {
    for (port, place) in host.ports.iter().zip(file.items("port")) {
        let Some(qos) = &port.policy.qos else { continue };
        let frame = u64::from(port.mtu) + u64::from(FRAME_HEADER);
        if qos.bits.burst < frame * 8 {
            findings
                .note(
                    Kind::BadValue,
                    format!("the shaper of port {} never lets a frame of {frame} bytes pass", port.name),
                )
                .at(place.of("qos"), format!("its burst is {} bits", qos.bits.burst))
                .help(format!("set `bit_burst` to at least {}, or lower the port's `mtu`", frame * 8))
                .keep();
        }
        for (n, queue) in qos.queues.iter().enumerate() {
            if qos.queues[..n].iter().any(|before| before.name == queue.name) {
                findings
                    .note(
                        Kind::Duplicate,
                        format!("port {} has two queues with the name `{}`", port.name, queue.name),
                    )
                    .at(place.of("qos"), "rules choose queues by name")
                    .help("give each queue of the port a name of its own")
                    .keep();
            }
        }
    }
}

/// Cores outside the given nodes, and NFs that share a core with a worker that never sleeps.
fn cores(findings: &Findings, file: &FileTable<'_>, host: &Host) {
    let engine = &host.engine;
    for (n, core) in engine.cores.iter().enumerate() {
        if !engine.nodes.is_empty() && !engine.nodes.iter().any(|node| node.contains(core)) {
            findings
                .note(Kind::BadValue, format!("core {core} is on none of the `nodes`"))
                .at(
                    file.table("engine").map(|engine| engine.element("cores", n)).unwrap_or_default(),
                    "on no node",
                )
                .help("add it to one of the lists in `nodes`, or leave `nodes` out")
                .keep();
        }
    }
    for (nf, place) in host.nfs.iter().zip(file.items("nf")) {
        let cores = match &nf.start {
            NfStart::Managed { cores, .. } => Some(cores),
            NfStart::Ports(pair) => Some(&pair.cores),
            NfStart::External { .. } => None,
        };
        if let Some(cores) = cores {
            let user = CoreUser { name: format!("NF {}", nf.role), cores };
            shared_cores(findings, &host.engine, &user, &place);
        }
    }
    for (vm, place) in host.vms.iter().zip(file.items("vm")) {
        let user = CoreUser { name: format!("VM {}", vm.name), cores: &vm.cores };
        shared_cores(findings, &host.engine, &user, &place);
    }
}

/// A process that runs on certain cores.
struct CoreUser<'a> {
    name: String,
    cores: &'a [u32],
}

fn shared_cores(findings: &Findings, engine: &EngineConfig, user: &CoreUser<'_>, place: &FileTable<'_>) {
    let spins = |core: &u32| engine.idle == Idle::Poll && engine.cores.contains(core);
    for (n, core) in user.cores.iter().enumerate().filter(|(_, core)| spins(core)) {
        findings
            .note(
                Kind::SharedCore,
                format!("{} shares core {core} with a worker that never sleeps", user.name),
            )
            .at(place.element("cores", n), "a worker spins here")
            .help("give it another core, or set `idle = \"adaptive\"` in [engine]")
            .keep();
    }
}
