// SPDX-License-Identifier: Apache-2.0
//! Tunnels whose VTEPs EVPN says: the kernel of the router's namespace has one device for each network, and each
//! network is one VLAN of the switch.

use std::collections::HashMap;

use netvm_model::{Forward, Host, PortConfig, RouterId, VlanMode};
use netvm_wire::VlanId;

use super::Tunnel;
use crate::syntax::finding::{Findings, Kind, Span};

/// What has been seen so far, and where.
#[derive(Default)]
pub(super) struct Networks {
    /// By the router that reaches the VTEPs, and by the one whose namespace is the VRF.
    by_vni: HashMap<(Place, u32), (Span, String)>,
    by_vlan: HashMap<Option<VlanId>, (Span, String)>,
}

/// Where a kernel knows a VNI once.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Place {
    Underlay(RouterId),
    Vrf(RouterId),
}

pub(super) fn check(findings: &Findings, host: &Host, tunnel: &Tunnel<'_>, networks: &mut Networks) {
    let Tunnel { port, config, place } = *tunnel;
    if !config.is_evpn() {
        return;
    }
    if let Some(at) = place.key("remote") {
        findings
            .note(Kind::Conflict, "`remote` with `control = \"evpn\"`")
            .at(at, "EVPN says which VTEPs there are")
            .help(
                "remove `remote`, or leave `control` out if no routing daemon runs in the router's namespace",
            )
            .keep();
    }
    let vrf = host.vrf_of(port).map(Place::Vrf);
    let places: Vec<Place> = vrf.into_iter().chain([Place::Underlay(config.router)]).collect();
    let known = places.iter().find_map(|place| networks.by_vni.get(&(*place, config.vni)));
    if let Some((first, owner)) = known {
        findings
            .note(Kind::Duplicate, format!("two ports with `control = \"evpn\"` have VNI {}", config.vni))
            .at(place.of("vni"), "again")
            .at(first.clone(), format!("port {owner} has it"))
            .help("give one of them another `vni`: the router's kernel has one device for each")
            .keep();
    }
    for at in places {
        let entry = networks.by_vni.entry((at, config.vni));
        entry.or_insert_with(|| (place.of("vni"), port.name.clone()));
    }
    if port.policy.forward == Forward::Normal {
        vlan(findings, tunnel, networks);
    }
}

/// The VLAN of the switch that is the network.
fn vlan(findings: &Findings, tunnel: &Tunnel<'_>, networks: &mut Networks) {
    let Tunnel { port, place, .. } = *tunnel;
    let Some(vlan) = vlan_of(port) else {
        findings
            .note(Kind::BadValue, format!("port {} with `control = \"evpn\"` is a trunk", port.name))
            .at(place.of("vlan"), "a VNI is one VLAN")
            .help(
                "give it `vlan = { access = N }`, and each further VLAN a `vxlan` port with a VNI of its own",
            )
            .keep();
        return;
    };
    match networks.by_vlan.get(&vlan) {
        Some((first, owner)) => {
            let name = vlan.map_or_else(|| "the switch".to_owned(), |vlan| format!("VLAN {}", vlan.get()));
            findings
                .note(Kind::Duplicate, format!("two ports with `control = \"evpn\"` are in {name}"))
                .at(place.item(), "this port has a VNI of its own")
                .at(first.clone(), format!("port {owner} is in {name}, too"))
                .help("give each of them its own `vlan = { access = N }`: a VLAN is one VNI")
                .keep();
        }
        None => drop(networks.by_vlan.insert(vlan, (place.item(), port.name.clone()))),
    }
}

/// The VLAN of a port (outer `None`: it has several; inner: it is not aware of VLANs).
const fn vlan_of(port: &PortConfig) -> Option<Option<VlanId>> {
    match &port.policy.vlan {
        VlanMode::Unaware => Some(None),
        VlanMode::Access(vlan) => Some(Some(*vlan)),
        VlanMode::Trunk { .. } => None,
    }
}
