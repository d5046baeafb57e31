// SPDX-License-Identifier: Apache-2.0
//! Frames that do not fit into buffers, groups with too many threads, and ports that show packets to a group that does
//! not get them.

use std::collections::BTreeSet;

use netvm_model::{Group, GroupId, Host, MAX_GROUP_THREADS, NfStart, PortConfig, Receives};

use crate::syntax::file_table::FileTable;
use crate::syntax::finding::{Findings, Kind, Span};

/// Ethernet's header.
const HEADER: u32 = 14;
/// Buffers of a queue that receive a common burst.
const FEW_ENTRIES: u32 = 256;
/// Largest buffer.
const MAX_BUFFER: u32 = 65_472;

pub(super) fn check(findings: &Findings, file: &FileTable<'_>, host: &Host) {
    headrooms(findings, file, host);
    for (port, place) in host.ports.iter().zip(file.items("port")) {
        frames(findings, file, host, &Framed { port, place: place.of("mtu") });
        large_buffers(findings, host, port, place.of("gro"));
        shown_to(findings, host, port, place.of("group"));
    }
    let interfaces = host.routers.iter().flat_map(|router| &router.interfaces);
    let places = file.items("router").into_iter().flat_map(|router| router.items("interface"));
    for (interface, place) in interfaces.zip(places) {
        // The user can change the MTU of the interface's own port.
        if let (Some(punt), Some(port)) = (host.port(interface.punt), host.port(interface.port)) {
            let punt = PortConfig { name: port.name.clone(), ..punt.clone() };
            frames(findings, file, host, &Framed { port: &punt, place: place.header });
        }
    }
    threads(findings, file, host);
    rings(findings, file, host);
}

/// Warns of groups that leave their ports' queues less than [`FEW_ENTRIES`] buffers.
fn rings(findings: &Findings, file: &FileTable<'_>, host: &Host) {
    // Without renumbering, a group's number is its position in the file.
    let places = file.items("group");
    for group in &host.groups {
        let takes =
            |port: &&PortConfig| port.kind.info().takes_buffers && host.landing_group(port) == Some(group.id);
        let ports: Vec<&PortConfig> = host.ports.iter().filter(takes).collect();
        let queues: u32 = ports.iter().map(|port| u32::from(port.queues.max(1))).sum();
        let Some(share) = (group.buffers / 2).checked_div(queues).filter(|share| *share < FEW_ENTRIES) else {
            continue;
        };
        let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
        let place = places.get(group.id.index()).map(|place| place.of("buffers")).unwrap_or_default();
        findings
            .note(
                Kind::FewBuffers,
                format!("group {} has few buffers for the AF_XDP ports {}", group.name, names.join(", ")),
            )
            .at(
                place,
                format!(
                    "each of their {queues} queues gets {share} buffers to receive into: bursts are lost"
                ),
            )
            .help(format!(
                "set `buffers = {}` of group {} or more: they share half of them, and use up to 2048 a queue",
                (2 * queues * FEW_ENTRIES).next_power_of_two(),
                group.name
            ))
            .keep();
    }
}

/// A port, and where the file says how long its frames are.
struct Framed<'a> {
    port: &'a PortConfig,
    place: Span,
}

/// Checks that the frames of a port fit into the buffers of every group that they may enter.
fn frames(findings: &Findings, file: &FileTable<'_>, host: &Host, framed: &Framed<'_>) {
    let port = framed.port;
    let landing = host.landing_group(port);
    if landing.is_none() && port.has_queues() && port.kind.info().receives == Receives::Packets {
        fits_own(findings, port, framed.place.clone());
    }
    for id in passes(host, port) {
        if let Some(group) = host.group(id) {
            fits(findings, file, framed, &Entered { group, is_landing: landing == Some(id) });
        }
    }
}

/// Checks that a port with GRO has buffers for what it joins.
fn large_buffers(findings: &Findings, host: &Host, port: &PortConfig, place: Span) {
    let group = host.landing_group(port).and_then(|id| host.group(id));
    let Some(group) = group.filter(|group| port.gro && group.large_buffers == 0) else { return };
    findings
        .note(
            Kind::NoLargeBuffers,
            format!("port {} joins no packets: group {} has no large buffers", port.name, group.name),
        )
        .at(place, "needs `large_buffers`")
        .help(format!("set `large_buffers` of group {} to 128, or remove `gro`", group.name))
        .keep();
}

/// A port with a `group` of its own whose chains begin in other groups: the NFs of its group can read these packets,
/// too.
fn shown_to(findings: &Findings, host: &Host, port: &PortConfig, place: Span) {
    let Some(group) = port.group.filter(|group| host.nfs.iter().any(|nf| nf.group == *group)) else { return };
    let Some(other) = host.entered_by(&host.rules, port).find(|other| *other != group) else { return };
    let name = |id| host.group(id).map_or("", |group| group.name.as_str());
    let (group, other) = (name(group), name(other));
    findings
        .note(
            Kind::CrossGroup,
            format!("the NFs of group {group} can read the packets that port {} sends to group {other}", port.name),
        )
        .at(place, "all packets of the port are received into this group's memory")
        .help(format!(
            "remove `group` of port {}, or name a group without NFs: then each group gets only copies of its own packets",
            port.name
        ))
        .keep();
}

fn headrooms(findings: &Findings, file: &FileTable<'_>, host: &Host) {
    for (group, place) in host.groups.iter().zip(file.items("group")) {
        let (size, headroom) = (group.buffer_size, u32::from(group.headroom));
        if headroom * 2 > size {
            findings
                .note(Kind::BufferSize, format!("a headroom of {headroom} bytes in buffers of {size} bytes"))
                .at(place.of("headroom"), "more than half of a buffer")
                .help(format!("must be at most {}, half of `buffer_size`", size / 2))
                .keep();
        }
    }
}

/// The groups whose buffers a port's packets may enter, by rules and chains.
fn passes(host: &Host, port: &PortConfig) -> BTreeSet<GroupId> {
    let hops = host.chains_from(port).flat_map(|chain| &chain.hops);
    let groups = hops.filter_map(|role| host.nf(*role)).map(|nf| nf.group);
    groups.chain(host.landing_group(port)).collect()
}

/// A port without a group receives packets into the engine's own memory, which has buffers of the default
/// size.
fn fits_own(findings: &Findings, port: &PortConfig, place: Span) {
    let own = Group::default();
    let most = own.buffer_size - u32::from(own.headroom) - HEADER;
    if u32::from(port.mtu) <= most {
        return;
    }
    let buffer_size = (u32::from(own.headroom) + HEADER + u32::from(port.mtu)).next_multiple_of(64);
    findings
        .note(
            Kind::BufferSize,
            format!("an MTU of {} does not fit the engine's own memory: it holds up to {most}", port.mtu),
        )
        .at(place, format!("port {} has no `group`, and no chain gives it one", port.name))
        .help(format!(
            "set `group` of port {} to one with `buffer_size = {buffer_size}` or more, or `mtu = {most}`",
            port.name
        ))
        .keep();
}

/// A group whose buffers a port's packets enter.
struct Entered<'a> {
    group: &'a Group,
    /// The port receives into them.
    is_landing: bool,
}

fn fits(findings: &Findings, file: &FileTable<'_>, framed: &Framed<'_>, entered: &Entered<'_>) {
    let (Framed { port, place }, group) = (framed, entered.group);
    let kernel_headroom = if entered.is_landing { port.kind.info().kernel_headroom } else { 0 };
    let headroom = u32::from(group.headroom).max(kernel_headroom);
    let needed = headroom + HEADER + u32::from(port.mtu);
    if needed <= group.buffer_size {
        return;
    }
    let free = i64::from(group.buffer_size) - i64::from(headroom + HEADER);
    let buffer_size = needed.next_multiple_of(64);
    // Without renumbering, a group's number is its position in the file.
    let groups = file.items("group");
    let mut remedies = Vec::new();
    if buffer_size <= MAX_BUFFER {
        let header = if groups.is_empty() { ", in a [[group]] with that name" } else { "" };
        remedies.push(format!("`buffer_size = {buffer_size}` of group {}{header}", group.name));
    }
    if free >= 68 {
        remedies.push(format!("`mtu = {free}` of port {}", port.name));
    }
    let why = if kernel_headroom > 0 { " (AF_XDP leaves at least 256)" } else { "" };
    let note = findings
        .note(
            Kind::BufferSize,
            format!(
                "an MTU of {} does not fit the buffers of group {}: {headroom} bytes of headroom{why}, {HEADER} of header and \
                 {} make {needed}, a buffer has {}",
                port.mtu, group.name, port.mtu, group.buffer_size
            ),
        )
        .at(
            place.clone(),
            format!("port {} gets frames of up to {} bytes", port.name, u32::from(port.mtu) + HEADER),
        );
    let note = match groups.get(group.id.index()) {
        Some(place) => note.at(place.of("buffer_size"), format!("buffers of {} bytes", group.buffer_size)),
        None => note,
    };
    note.help(format!("set {}", remedies.join(" or "))).keep();
}

fn threads(findings: &Findings, file: &FileTable<'_>, host: &Host) {
    let places = file.items("nf");
    for group in &host.groups {
        let mut sum = 0;
        for (nf, place) in host.nfs.iter().zip(&places).filter(|(nf, _)| nf.group == group.id) {
            sum += match &nf.start {
                NfStart::Managed { replicas, standby, threads, .. } => {
                    (usize::from(*replicas) + usize::from(*standby)) * usize::from(*threads)
                }
                NfStart::External { .. } => host.vm_threads(nf.id).max(1),
                NfStart::Ports(_) => 0,
            };
            if sum > MAX_GROUP_THREADS {
                findings
                    .note(Kind::TooMany, format!("the NFs of group {} have {sum} threads or more", group.name))
                    .at(place.item(), format!("too many from NF {} on", nf.role))
                    .help(format!(
                        "a group can have {MAX_GROUP_THREADS} NF threads, standby replicas included: split it into two groups"
                    ))
                    .keep();
                break;
            }
        }
    }
}
