// SPDX-License-Identifier: Apache-2.0
//! The memory that a port receives into. In: rules, chains and the links between ports. Out: the trust group whose
//! memory it is, or none: the engine's own memory.
//!
//! A group's NFs map its memory, so they can read every packet that lands there. So packets land in a group's memory
//! only if all chains that they can enter begin in that group.

use netvm_ids::{GroupId, PortId, RouterId};
use netvm_policy::{Action, Rule};

use super::{Host, is_from};
use crate::port::{Forward, PortConfig, SendsTo};

/// Where packets of a port go without a chain.
#[derive(Default)]
struct Destinations {
    ports: Vec<PortId>,
    routers: Vec<RouterId>,
    is_switched: bool,
}

impl Host {
    /// The group in whose memory a port receives packets: the port's own, else the group in which all chains that its
    /// packets can enter begin, also chains behind ports without a device. `None`: the engine's own memory, as no chain
    /// takes them, or chains of several groups do.
    #[must_use]
    pub fn landing_group(&self, port: &PortConfig) -> Option<GroupId> {
        self.landing_by(&self.rules, port)
    }

    /// As [`Host::landing_group`] by some of the rules: at least those whose terminal action is a chain, a port, a
    /// router or L2 switching.
    #[must_use]
    pub fn landing_by(&self, rules: &[Rule], port: &PortConfig) -> Option<GroupId> {
        if port.group.is_some() {
            return port.group;
        }
        let first = self.entered_by(rules, port).next()?;
        let mut groups = self.behind(rules, port).into_iter().flat_map(|port| self.entered_by(rules, port));
        groups.all(|group| group == first).then_some(first)
    }

    /// The groups in which the chains of a port begin; a group may occur several times.
    pub fn entered_by<'a>(
        &'a self,
        rules: &'a [Rule],
        port: &PortConfig,
    ) -> impl Iterator<Item = GroupId> + use<'a> {
        let chains = self.chains_by(rules, port);
        chains.filter_map(|chain| self.nf(*chain.hops.first()?).map(|nf| nf.group))
    }

    /// The port, and the ports without a device that receive its packets, unless a chain has them.
    fn behind<'a>(&'a self, rules: &[Rule], port: &'a PortConfig) -> Vec<&'a PortConfig> {
        let mut behind = vec![port];
        let virtual_port = |port: &'a PortConfig| Some((port, port.kind.info().sends_to?));
        let virtual_ports: Vec<(&PortConfig, SendsTo)> = self.ports.iter().filter_map(virtual_port).collect();
        if virtual_ports.is_empty() {
            return behind;
        }
        let mut next = 0;
        while let Some(port) = behind.get(next).copied() {
            next += 1;
            let destinations = Destinations::of(rules, port).with_virtual(self, &virtual_ports);
            for (end, to) in &virtual_ports {
                let receiver = match to {
                    SendsTo::Parent { port: parent, .. } if *parent == port.id => Some(*end),
                    SendsTo::Peer(peer) if destinations.includes(self, end) => self.port(*peer),
                    SendsTo::Member
                        if end.kind.info().bond.is_some_and(|it| it.members.contains(&port.id)) =>
                    {
                        Some(*end)
                    }
                    // It receives what others have sent to the switch.
                    SendsTo::Bridge if destinations.includes(self, end) => Some(*end),
                    // It receives what the router gets from other servers.
                    SendsTo::Tunnel(router) if destinations.routers.contains(router) => Some(*end),
                    _ => None,
                };
                behind.extend(receiver.filter(|port| !behind.iter().any(|known| known.id == port.id)));
            }
        }
        behind
    }
}

impl Destinations {
    fn of(rules: &[Rule], port: &PortConfig) -> Self {
        let mut destinations = Self::default();
        match port.policy.forward {
            Forward::Port(port) => destinations.ports.push(port),
            Forward::Router(router) => destinations.routers.push(router),
            Forward::Normal => destinations.is_switched = true,
            Forward::Chain(_) | Forward::None => {}
        }
        for rule in rules.iter().filter(|rule| is_from(rule, port.id)) {
            match rule.actions.terminal {
                Some(Action::Port(port)) => destinations.ports.push(port),
                Some(Action::Router(router)) => destinations.routers.push(router),
                Some(Action::Normal) => destinations.is_switched = true,
                _ => {}
            }
            destinations.ports.extend(rule.actions.mirror);
        }
        destinations
    }

    /// With where the packets go that leave by ports without a device.
    fn with_virtual(mut self, host: &Host, virtual_ports: &[(&PortConfig, SendsTo)]) -> Self {
        // Ports may have several tags, one behind the other.
        for _ in virtual_ports {
            let before = self.size();
            for (end, to) in virtual_ports {
                match to {
                    SendsTo::Bridge => self.is_switched |= self.includes(host, end),
                    SendsTo::Parent { port, .. }
                        if self.includes(host, end) && !self.ports.contains(port) =>
                    {
                        self.ports.push(*port);
                    }
                    SendsTo::Tunnel(router) if self.includes(host, end) && !self.routers.contains(router) => {
                        self.routers.push(*router);
                    }
                    SendsTo::Member if self.includes(host, end) => {
                        let members = end.kind.info().bond.into_iter().flat_map(|bond| &bond.members);
                        let new: Vec<PortId> =
                            members.filter(|port| !self.ports.contains(port)).copied().collect();
                        self.ports.extend(new);
                    }
                    SendsTo::Member | SendsTo::Parent { .. } | SendsTo::Peer(_) | SendsTo::Tunnel(_) => {}
                }
            }
            if before == self.size() {
                break;
            }
        }
        self
    }

    /// By which it is seen to grow.
    const fn size(&self) -> (usize, usize, bool) {
        (self.ports.len(), self.routers.len(), self.is_switched)
    }

    /// Whether packets can leave by this port. Every port may be a member of the switch.
    fn includes(&self, host: &Host, port: &PortConfig) -> bool {
        let routes =
            |id: &RouterId| host.router(*id).is_some_and(|router| router.ports().any(|own| own == port.id));
        self.is_switched || self.ports.contains(&port.id) || self.routers.iter().any(routes)
    }
}
