// SPDX-License-Identifier: Apache-2.0
//! Tunnels to other servers: addresses that cannot be those of VTEPs, networks that two ports have, packets that no
//! interface of the router is long enough for, buffers without room for the outer headers, and what EVPN cannot follow.

mod evpn;

use std::collections::HashMap;

use netvm_model::{Host, PortConfig, RouterConfig, VxlanConfig};

use crate::syntax::file_table::FileTable;
use crate::syntax::finding::{Findings, Kind, Span};

/// Bytes of a VLAN tag, which the router's interface may add.
const TAG: u16 = 4;

/// A port with a tunnel, and its place.
struct Tunnel<'a> {
    port: &'a PortConfig,
    config: &'a VxlanConfig,
    place: &'a FileTable<'a>,
}

pub(super) fn check(findings: &Findings, file: &FileTable<'_>, host: &Host) {
    let mut seen: HashMap<_, (Span, &str)> = HashMap::new();
    let mut networks = evpn::Networks::default();
    for (port, place) in host.ports.iter().zip(file.items("port")) {
        let Some(config) = port.kind.info().tunnel else { continue };
        let tunnel = Tunnel { port, config, place: &place };
        remotes(findings, &tunnel);
        evpn::check(findings, host, &tunnel, &mut networks);
        if let Some(router) = host.router(config.router) {
            local(findings, &tunnel, router);
            mtu(findings, host, &tunnel, router);
        }
        headroom(findings, host, &tunnel);
        match seen.get(&(config.router, config.local, config.udp_port, config.vni)) {
            Some((first, owner)) => findings
                .note(Kind::Duplicate, format!("two ports have VNI {} of {}", config.vni, config.local))
                .at(place.of("vni"), "again")
                .at(first.clone(), format!("port {owner} has it"))
                .help(
                    "give one of them another `vni`: a port has all remote VTEPs of its network in `remote`",
                )
                .keep(),
            None => {
                let key = (config.router, config.local, config.udp_port, config.vni);
                seen.insert(key, (place.of("vni"), &port.name));
            }
        }
    }
}

fn remotes(findings: &Findings, tunnel: &Tunnel<'_>) {
    let Tunnel { config, place, .. } = *tunnel;
    if config.remotes.is_empty() && !config.is_evpn() && place.key("remote").is_none() {
        findings
            .note(Kind::MissingKey, "a `vxlan` port without `remote`")
            .at(place.item(), "which VTEPs does its network have?")
            .help(
                "give the addresses of the other VTEPs, such as `remote = \"192.0.2.2\"`, or set `control = \"evpn\"` if \
                 a routing daemon says them",
            )
            .keep();
    }
    for (n, remote) in config.remotes.iter().enumerate() {
        let (what, help) = if *remote == config.local {
            ("is the port's own `local`", "name the VTEPs of other servers")
        } else if remote.is_ipv4() != config.local.is_ipv4() {
            ("is of another address family than `local`", "give all VTEPs addresses of one family")
        } else if config.remotes[..n].contains(remote) {
            ("is there twice", "remove one of them")
        } else {
            continue;
        };
        findings
            .note(Kind::BadValue, format!("`remote` has {remote}, which {what}"))
            .at(place.element("remote", n), "")
            .help(help)
            .keep();
    }
}

/// An address that the router does not have, as far as the file says it.
fn local(findings: &Findings, tunnel: &Tunnel<'_>, router: &RouterConfig) {
    let Tunnel { port, config, place } = *tunnel;
    let mut own = router.interfaces.iter().flat_map(|interface| &interface.addresses);
    if own.any(|own| own.address == config.local) {
        return;
    }
    findings
        .note(
            Kind::Unused,
            format!("router {} has no address {} in the file", router.name, config.local),
        )
        .at(place.of("local"), format!("the VTEP of port {}", port.name))
        .help(
            "give an interface of the router this address; nothing, if a routing daemon or `ip address` gives it one \
             in the router's namespace",
        )
        .keep();
}

/// The longest packet of the port has to fit into a packet of an interface of the router.
fn mtu(findings: &Findings, host: &Host, tunnel: &Tunnel<'_>, router: &RouterConfig) {
    let Tunnel { port, config, place } = *tunnel;
    let mtus =
        router.interfaces.iter().filter_map(|interface| host.port(interface.port)).map(|port| port.mtu);
    let Some(longest) = mtus.max() else { return };
    let needed = u32::from(port.mtu) + u32::from(config.overhead());
    if needed <= longest.into() {
        return;
    }
    let most = longest.saturating_sub(config.overhead());
    findings
        .note(
            Kind::BadValue,
            format!("the packets of port {} are too long for router {}", port.name, router.name),
        )
        .at(
            place.of("mtu"),
            format!(
                "packets of {} bytes become {needed} bytes long, and the router's ports take {longest}",
                port.mtu
            ),
        )
        .help(format!("set `mtu` of port {} to {most}, or that of the router's ports to {needed}", port.name))
        .keep();
}

/// The outer headers go into the headroom of buffers.
fn headroom(findings: &Findings, host: &Host, tunnel: &Tunnel<'_>) {
    let needed = tunnel.config.overhead() + TAG;
    for group in host.groups.iter().filter(|group| group.headroom < needed) {
        findings
            .note(
                Kind::BufferSize,
                format!(
                    "buffers of group {} have no room for the outer headers of port {}",
                    group.name, tunnel.port.name
                ),
            )
            .at(tunnel.place.item(), format!("puts {needed} bytes before a packet"))
            .help(format!("set `headroom` of group {} to at least {needed}", group.name))
            .keep();
    }
}
