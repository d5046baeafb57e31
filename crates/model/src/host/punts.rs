// SPDX-License-Identifier: Apache-2.0
//! Punt ports, by which the kernel gets packets of routers and sends its own.

use netvm_ids::PortId;

use super::Host;
use crate::port::{Forward, PortConfig, PortKind, PortPolicy};
use crate::router::RouterInterface;

impl Host {
    /// Adds the punt ports of all interfaces after the ports of the file. They receive packets into the same
    /// memory as the interface's port.
    pub fn add_punt_ports(&mut self) {
        let mut numbers = (self.ports.len() as u16..).map(PortId);
        let mut punts = Vec::new();
        for router in &mut self.routers {
            for (interface, number) in router.interfaces.iter_mut().zip(&mut numbers) {
                interface.punt = number;
                punts.push((RouterInterface::clone(interface), router.id, router.name.clone()));
            }
        }
        for (interface, router, name) in punts {
            let Some(port) = self.port(interface.port) else { continue };
            let kind = PortKind::AfXdp { interface: interface.host_end, generic: false };
            let name = RouterInterface::punt_name(&name, &interface.name);
            self.ports.push(PortConfig {
                mtu: port.mtu,
                group: self.landing_group(port),
                // Packets from the kernel have the same share as received packets.
                policy: PortPolicy {
                    forward: Forward::Router(router),
                    weight: port.policy.weight,
                    zone: port.policy.zone,
                    ..PortPolicy::default()
                },
                ..PortConfig::new(interface.punt, name, kind)
            });
        }
    }
}
