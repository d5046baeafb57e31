// SPDX-License-Identifier: Apache-2.0
//! Snooping keys of ports: without effect where L2 switching does not snoop, and groups in VLANs that a port has not.

use netvm_model::{Host, PortConfig, StaticGroup, VlanMode};

use crate::syntax::file_table::FileTable;
use crate::syntax::finding::{Findings, Kind};

pub(super) fn check(findings: &Findings, file: &FileTable<'_>, host: &Host) {
    for (port, place) in host.ports.iter().zip(file.items("port")) {
        let written = ["mcast_router", "mcast_fast_leave", "mcast_max_groups", "mcast_groups"]
            .into_iter()
            .find(|key| place.key(key).is_some())
            .filter(|_| !host.switch.multicast.snooping);
        if let Some(key) = written {
            findings
                .note(Kind::Unused, format!("`{key}` of port {} has no effect", port.name))
                .at(place.of(key), "L2 switching does not snoop")
                .help("set `mcast_snooping = true` in [switch], or remove the key")
                .keep();
            continue;
        }
        for group in port.policy.multicast.groups.iter().filter(|group| !is_in_vlan(port, group)) {
            findings
                .note(Kind::BadValue, format!("port {} is not in the VLAN of the group {group}", port.name))
                .at(place.of("mcast_groups"), "a VLAN that the port has not")
                .help("name a VLAN of the port (`vlan`) behind the group, such as \"239.1.2.3 vlan 20\"")
                .keep();
        }
    }
}

fn is_in_vlan(port: &PortConfig, group: &StaticGroup) -> bool {
    match (&port.policy.vlan, group.vlan) {
        (VlanMode::Unaware, vlan) => vlan.is_none(),
        (VlanMode::Access(own), vlan) => vlan.is_none_or(|vlan| vlan == *own),
        (VlanMode::Trunk { native, .. }, None) => native.is_some(),
        (VlanMode::Trunk { vlans, native }, Some(vlan)) => {
            *native == Some(vlan) || vlans.iter().any(|span| span.contains(vlan.get()))
        }
    }
}
