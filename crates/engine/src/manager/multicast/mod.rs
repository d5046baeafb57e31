// SPDX-License-Identifier: Apache-2.0
//! IGMP and MLD snooping: takes what workers have heard, and makes tables for them when ports of a group change. Sends
//! queries, if the switch is to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_model::{Host, McastRouter, PortConfig, SnoopingConfig, StaticGroup, VlanMode};
use netvm_switch::snoop::{DomainView, PortSettings, QuerierAddresses, RouterPort, SnoopSettings, Snooper};
use netvm_wire::{MacAddr, VlanId};

use super::notice::Notice;
use super::ports::Ports;
use super::workers::Workers;
use crate::ids::PortId;
use crate::policy::Switching;
use crate::port_bits::PortBits;
use crate::snapshot::{ControlFrame, Multicast as OfSnapshots, MulticastExchange};
use crate::worker::Command;

/// Interval at which the workers' announcements are taken.
const INTERVAL: Duration = Duration::from_millis(20);
/// Interval at which links and limits of ports are looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Interval between two notices that a port is over its limit.
const TELL_INTERVAL: Duration = Duration::from_mins(1);
/// A new table at most after so many times the time that it takes to make one.
const SHARE_OF_TIME: u32 = 20;

/// A port's part in snooping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortMulticast {
    /// The port.
    pub port: PortId,
    /// Groups that its hosts have joined.
    pub groups: u32,
    /// Messages of IGMP and MLD that it has received.
    pub messages: u64,
    /// Messages that were dropped: more than its quota, or queries where there is to be no router.
    pub refused: u64,
    /// Reports that changed nothing, as its hosts had joined as many groups as they may.
    pub over_limit: u64,
}

/// Snooping for display.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MulticastView {
    /// By VLAN and protocol.
    pub domains: Vec<DomainView>,
    /// The ports of L2 switching.
    pub ports: Vec<PortMulticast>,
}

/// The switch's snooping.
pub(crate) struct Multicast {
    snooper: Option<Snooper>,
    exchange: Arc<MulticastExchange>,
    /// What snapshots know of it.
    of_snapshots: Option<OfSnapshots>,
    /// The ports of L2 switching.
    ports: Vec<u16>,
    /// The source of queries.
    mac: MacAddr,
    looked: Instant,
    next_table: Instant,
    next_look: Instant,
    /// The ports whose link was up, when it was looked at last.
    up: BTreeSet<u16>,
    /// By port: when it was told of last, and how many reports were over its limit then.
    told: BTreeMap<u16, (Instant, u64)>,
    over_limit: Vec<Notice>,
}

impl Multicast {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self {
            snooper: None,
            exchange: Arc::default(),
            of_snapshots: None,
            ports: Vec::new(),
            mac: MacAddr([2, 0, 0, 0, 0, 1]),
            looked: now,
            next_table: now,
            next_look: now,
            up: BTreeSet::new(),
            told: BTreeMap::new(),
            over_limit: Vec::new(),
        }
    }

    /// Sets the source of queries.
    pub(crate) const fn set_mac(&mut self, mac: MacAddr) {
        self.mac = mac;
    }

    /// Follows a new host or policy. What is known of ports that stay remains.
    pub(crate) fn follow(&mut self, host: &Host, switching: Option<&Switching>) {
        let config = &host.switch.multicast;
        let Some(switching) = switching.filter(|_| config.snooping) else {
            (self.snooper, self.of_snapshots, self.ports) = (None, None, Vec::new());
            return;
        };
        self.ports = switching.ports().collect();
        let ports = self.ports.iter().filter_map(|port| Some((*port, of_port(host.port(PortId(*port))?))));
        let ports: BTreeMap<u16, PortSettings> = ports.collect();
        ports.keys().for_each(|port| self.exchange.inbox.open(*port));
        let mut without_routers = PortBits::default();
        let refusing = ports.iter().filter(|(_, settings)| settings.router == RouterPort::Never);
        refusing.for_each(|(port, _)| without_routers.add(PortId(*port)));
        let (settings, bridge, now) =
            (settings_of(config, self.mac), Arc::clone(&switching.bridge), Instant::now());
        match &mut self.snooper {
            Some(snooper) => snooper.follow(settings, ports, bridge, now),
            none => *none = Some(Snooper::new(settings, ports, bridge, now)),
        }
        let exchange = Arc::clone(&self.exchange);
        let table = self.snooper.as_mut().map(|snooper| Arc::new(snooper.table())).unwrap_or_default();
        self.of_snapshots = Some(OfSnapshots { table, exchange, without_routers });
    }

    /// Takes what workers have heard, and sends queries that are due. Returns whether snapshots have to follow.
    pub(crate) fn service(&mut self, host: &Host, ports: &Ports, workers: &mut Workers) -> bool {
        let now = Instant::now();
        if self.snooper.is_none() || now.duration_since(self.looked) < INTERVAL {
            return false;
        }
        self.looked = now;
        if now >= self.next_look {
            self.next_look = now + LOOK_INTERVAL;
            self.look_at_ports(ports, now);
        }
        let Some(snooper) = &mut self.snooper else { return false };
        let mut taken = Vec::new();
        for port in &self.ports {
            self.exchange.inbox.take(*port, &mut taken);
            taken.drain(..).for_each(|heard| snooper.hear(*port, heard, now));
        }
        let frames = snooper.service(now).filter_map(|one| {
            let mut frame = ControlFrame::new();
            frame.try_extend_from_slice(&one.frame).ok()?;
            Some((PortId(one.port), frame))
        });
        if self.exchange.send(frames) {
            let sender = |port: &PortConfig| Some((port.id, ports.sender_of(port.id)?));
            if let Some((by, worker)) = host.ports.iter().find_map(sender) {
                workers.send(worker, Command::SendQueries { by });
            }
        }
        let Some(of_snapshots) = self.of_snapshots.as_mut().filter(|_| now >= self.next_table) else {
            return false;
        };
        if !snooper.take_changed() {
            return false;
        }
        of_snapshots.table = Arc::new(snooper.table());
        self.next_table = now + now.elapsed() * SHARE_OF_TIME;
        true
    }

    /// Forgets what is known of ports whose link has gone down, and notes those that are over their limit.
    fn look_at_ports(&mut self, ports: &Ports, now: Instant) {
        let Self { snooper: Some(snooper), up, told, over_limit, .. } = self else { return };
        let up_now: BTreeSet<u16> =
            self.ports.iter().copied().filter(|port| ports.link_of(PortId(*port))).collect();
        up.difference(&up_now).for_each(|port| snooper.link_down(*port));
        *up = up_now;
        told.retain(|port, _| self.ports.contains(port));
        for port in &self.ports {
            let (_, count) = snooper.counts(*port);
            let may_tell =
                told.get(port).is_none_or(|(at, known)| *known < count && now >= *at + TELL_INTERVAL);
            if count > 0 && may_tell {
                told.insert(*port, (now, count));
                over_limit.push(Notice::MulticastLimit { port: PortId(*port), over_limit: count });
            }
        }
    }

    /// The ports that are newly over their limit.
    pub(crate) fn over_limit(&mut self) -> impl Iterator<Item = Notice> + use<> {
        std::mem::take(&mut self.over_limit).into_iter()
    }

    /// What snapshots know of it.
    pub(crate) const fn of_snapshots(&self) -> Option<&OfSnapshots> {
        self.of_snapshots.as_ref()
    }

    /// Snooping for display.
    pub(crate) fn view(&self) -> Option<MulticastView> {
        let snooper = self.snooper.as_ref()?;
        let port = |port: &u16| {
            let (messages, refused) = self.exchange.inbox.counts(*port);
            let (groups, over_limit) = snooper.counts(*port);
            PortMulticast { port: PortId(*port), groups, messages, refused, over_limit }
        };
        let ports = self.ports.iter().map(port).collect();
        Some(MulticastView { domains: snooper.views(Instant::now()), ports })
    }
}

fn settings_of(config: &SnoopingConfig, mac: MacAddr) -> SnoopSettings {
    let seconds = |seconds: u32| Duration::from_secs(seconds.into());
    SnoopSettings {
        querier: config.querier.then(|| QuerierAddresses::of(mac, config.querier_address)),
        query_interval: seconds(config.query_interval),
        response: seconds(config.query_response_interval),
        last_member_interval: seconds(config.last_member_interval),
        floods_unregistered: config.flood_unregistered,
    }
}

fn of_port(port: &PortConfig) -> PortSettings {
    let snooping = &port.policy.multicast;
    let untagged = match &port.policy.vlan {
        VlanMode::Unaware => None,
        VlanMode::Access(own) => Some(*own),
        VlanMode::Trunk { native, .. } => *native,
    };
    let group = |fixed: &StaticGroup| (fixed.vlan.or(untagged).map_or(0, VlanId::get), fixed.group.into());
    PortSettings {
        has_fast_leave: snooping.fast_leave,
        router: match snooping.router {
            McastRouter::Auto => RouterPort::Auto,
            McastRouter::Off => RouterPort::Never,
            McastRouter::On => RouterPort::Always,
        },
        max_groups: snooping.max_groups,
        groups: snooping.groups.iter().map(group).collect(),
    }
}
