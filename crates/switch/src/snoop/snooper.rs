// SPDX-License-Identifier: Apache-2.0
//! The manager's side of snooping: all domains, the quotas of ports, and what is to be sent.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use netvm_wire::{Address, VlanId};

use super::MAX_GROUPS;
use super::domain::{At, DomainState, DomainView, Due};
use super::inbox::{Announcement, InVlan};
use super::message::Change;
use super::query::QueryToSend;
use super::settings::{PortSettings, RouterPort, SnoopSettings};
use super::table::{Builder, Domain, GroupTable};
use crate::flood::Bridge;
use crate::vlan::Tagging;

/// Frames that one call of [`Snooper::service`] returns.
const FRAMES_AT_ONCE: usize = 256;

/// A frame to send by a port, with the tag that the port expects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToSend {
    /// The port.
    pub port: u16,
    /// The frame.
    pub frame: Vec<u8>,
}

/// Memberships, routers and queriers of a switch.
#[derive(Debug)]
pub struct Snooper {
    settings: SnoopSettings,
    ports: BTreeMap<u16, PortSettings>,
    bridge: Arc<Bridge>,
    domains: BTreeMap<Domain, DomainState>,
    /// By port: its memberships.
    memberships: BTreeMap<u16, u32>,
    /// By port: reports that exceeded its limit.
    over_limit: BTreeMap<u16, u64>,
    to_send: VecDeque<ToSend>,
    has_changed: bool,
}

impl Snooper {
    /// Without memberships.
    #[must_use]
    pub fn new(
        settings: SnoopSettings,
        ports: BTreeMap<u16, PortSettings>,
        bridge: Arc<Bridge>,
        now: Instant,
    ) -> Self {
        let mut new = Self {
            settings,
            ports: BTreeMap::new(),
            bridge: Arc::clone(&bridge),
            domains: BTreeMap::new(),
            memberships: BTreeMap::new(),
            over_limit: BTreeMap::new(),
            to_send: VecDeque::new(),
            has_changed: true,
        };
        new.follow(settings, ports, bridge, now);
        new
    }

    /// Follows other settings, or another bridge. Memberships of ports that remain in their VLAN remain.
    pub fn follow(
        &mut self,
        settings: SnoopSettings,
        ports: BTreeMap<u16, PortSettings>,
        bridge: Arc<Bridge>,
        now: Instant,
    ) {
        let has_new_ports = !Arc::ptr_eq(&self.bridge, &bridge);
        (self.settings, self.ports, self.bridge) = (settings, ports, bridge);
        let Self { ports, bridge, domains, memberships, .. } = self;
        for (domain, state) in &mut *domains {
            let stays = |port| {
                let is_router = ports.get(&port).is_some_and(|port| port.router != RouterPort::Never);
                (is_router, bridge.egress(port, domain.vlan).is_some())
            };
            state.retain_ports(stays, |port| lose(memberships, port));
            state.look_again(has_new_ports, now);
        }
        let vlans: BTreeSet<u16> = bridge.vlans().collect();
        domains.retain(|domain, _| vlans.contains(&domain.vlan));
        if settings.querier.is_some() {
            for domain in
                vlans.iter().flat_map(|vlan| [true, false].map(|is_v4| Domain { vlan: *vlan, is_v4 }))
            {
                domains.entry(domain).or_insert_with(|| DomainState::new(now));
            }
        }
        self.over_limit.retain(|port, _| ports.contains_key(port));
        self.has_changed = true;
    }

    /// The link of a port is down: its hosts may be others when it is up again, and report anew.
    pub fn link_down(&mut self, gone: u16) {
        let Self { domains, memberships, has_changed, .. } = self;
        for state in domains.values_mut() {
            state.retain_ports(|port| (port != gone, port != gone), |port| lose(memberships, port));
        }
        *has_changed = true;
    }

    /// What a port has announced.
    pub fn hear(&mut self, port: u16, heard: InVlan, now: Instant) {
        let (vlan, announced) = heard;
        let Self { settings, ports, bridge, domains, memberships, .. } = self;
        let Some(of_port) = ports.get(&port).filter(|_| bridge.egress(port, vlan).is_some()) else { return };
        let is_v4 = match announced {
            Announcement::Group(group, _) => group.is_v4(),
            Announcement::Query(query) => query.source.is_v4(),
            Announcement::Router { is_v4 } => is_v4,
        };
        let domain = Domain { vlan, is_v4 };
        let at = At { port, now, settings, of_port };
        let state = domains.entry(domain).or_insert_with(|| DomainState::new(now));
        let is_router = of_port.router != RouterPort::Never;
        match announced {
            Announcement::Group(group, change) => {
                let joins = matches!(change, Change::Join | Change::JoinV1);
                let total: usize = memberships.values().map(|count| *count as usize).sum();
                let count = memberships.entry(port).or_default();
                let is_new = joins && !state.has_member(group, port);
                if is_new && (*count >= of_port.max_groups || total >= MAX_GROUPS) {
                    *self.over_limit.entry(port).or_default() += 1;
                    return;
                }
                let by = state.change(&at, group, change);
                *count = count.saturating_add_signed(by.into());
                self.has_changed |= by != 0;
            }
            Announcement::Query(query) if is_router => self.has_changed |= state.query(&at, query),
            Announcement::Router { .. } if is_router => self.has_changed |= state.router(&at),
            Announcement::Query(_) | Announcement::Router { .. } => {}
        }
    }

    /// Ends what has ended, and returns queries that are due.
    pub fn service(&mut self, now: Instant) -> impl Iterator<Item = ToSend> + '_ {
        let Self { settings, domains, memberships, .. } = self;
        let (mut due, mut changed) = (Vec::new(), false);
        for (domain, state) in &mut *domains {
            let mut of_domain = Vec::new();
            changed |= state.service(settings, now, &mut of_domain, |port| lose(memberships, port));
            due.extend(of_domain.into_iter().map(|one| (*domain, one)));
        }
        let is_used = settings.querier.is_some();
        domains.retain(|_, state| is_used || !state.is_empty());
        self.has_changed |= changed;
        for (domain, one) in due {
            self.query(domain, one);
        }
        let count = self.to_send.len().min(FRAMES_AT_ONCE);
        self.to_send.drain(..count)
    }

    /// Makes the frames of a query.
    fn query(&mut self, domain: Domain, due: Due) {
        let Self { settings, bridge, to_send, .. } = self;
        let Some(from) = settings.querier else { return };
        let response = if due.to.is_some() { settings.last_member_interval } else { settings.response };
        let (is_v4, group) = (domain.is_v4, due.to.map(|(_, group)| group));
        let query = QueryToSend { from, is_v4, group, response, interval: settings.query_interval };
        let ports = bridge.members(domain.vlan);
        for port in ports.filter(|port| due.to.is_none_or(|(to, _)| to == *port)) {
            let tag = match bridge.egress(port, domain.vlan) {
                Some(Tagging::Tagged) => VlanId::new(domain.vlan).ok(),
                _ => None,
            };
            to_send.push_back(ToSend { port, frame: query.frame(tag) });
        }
    }

    /// Whether the table has changed since the last call.
    pub const fn take_changed(&mut self) -> bool {
        std::mem::replace(&mut self.has_changed, false)
    }

    /// The table for workers.
    #[must_use]
    pub fn table(&self) -> GroupTable {
        let pruned = || self.domains.iter().filter(|(_, state)| state.is_pruned());
        let sets =
            pruned().map(|(_, state)| 1 + state.groups().count()).sum::<usize>() + self.fixed().count();
        let highest = self.ports.keys().next_back().map_or(0, |port| usize::from(*port) + 1);
        let mut builder = Builder::new(sets, highest, self.settings.floods_unregistered);
        for (domain, state) in pruned() {
            let always = self.ports.iter().filter(|(_, port)| port.router == RouterPort::Always);
            let mut routers: BTreeSet<u16> = always.map(|(port, _)| *port).collect();
            routers.extend(state.routers());
            builder.routers(*domain, routers.iter().copied());
            let mut groups: BTreeMap<Address, BTreeSet<u16>> = BTreeMap::new();
            for (group, ports) in state.groups() {
                groups.entry(group).or_default().extend(ports);
            }
            for (port, vlan, group) in self.fixed() {
                if Domain::of(vlan, group) == *domain {
                    groups.entry(group).or_default().insert(port);
                }
            }
            for (group, ports) in groups {
                builder.group(domain.vlan, group, ports.union(&routers).copied());
            }
        }
        builder.build()
    }

    /// Memberships of the configuration: port, VLAN, group.
    fn fixed(&self) -> impl Iterator<Item = (u16, u16, Address)> + '_ {
        let of_port = |(port, settings): (&u16, &'_ PortSettings)| {
            let port = *port;
            settings.groups.clone().into_iter().map(move |(vlan, group)| (port, vlan, group))
        };
        self.ports.iter().flat_map(of_port)
    }

    /// All domains of which something is known.
    #[must_use]
    pub fn views(&self, now: Instant) -> Vec<DomainView> {
        let domains: BTreeSet<Domain> =
            self.fixed().map(|(_, vlan, group)| Domain::of(vlan, group)).collect();
        let known = self.domains.keys().copied();
        let all: BTreeSet<Domain> = domains.into_iter().chain(known).collect();
        all.into_iter().map(|domain| self.view(domain, now)).collect()
    }

    fn view(&self, domain: Domain, now: Instant) -> DomainView {
        let own = self.settings.querier.and_then(|own| own.address(domain.is_v4));
        let empty = DomainState::new(now);
        let mut view = self.domains.get(&domain).unwrap_or(&empty).view(domain, own, now);
        let is_always =
            |port: &u16| self.ports.get(port).is_some_and(|port| port.router == RouterPort::Always);
        view.routers.retain(|(port, _)| !is_always(port));
        let always = self.bridge.members(domain.vlan).filter(is_always);
        view.routers.extend(always.map(|port| (port, None)));
        for (port, vlan, group) in self.fixed() {
            if Domain::of(vlan, group) != domain {
                continue;
            }
            let known = view.groups.iter().position(|(known, _)| *known == group).unwrap_or_else(|| {
                view.groups.push((group, Vec::new()));
                view.groups.len() - 1
            });
            let ports = &mut view.groups[known].1;
            ports.retain(|(known, _)| *known != port);
            ports.push((port, None));
        }
        view
    }

    /// How many groups a port's hosts have joined, and reports that exceeded its limit.
    #[must_use]
    pub fn counts(&self, port: u16) -> (u32, u64) {
        let count = self.memberships.get(&port).copied().unwrap_or(0);
        (count, self.over_limit.get(&port).copied().unwrap_or(0))
    }
}

/// A membership of a port has ended.
fn lose(memberships: &mut BTreeMap<u16, u32>, port: u16) {
    if let Some(count) = memberships.get_mut(&port) {
        *count = count.saturating_sub(1);
    }
}
