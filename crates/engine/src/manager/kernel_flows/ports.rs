// SPDX-License-Identifier: Apache-2.0
//! Ports with a fast path: which fields tell their flows apart, and what ends them.

use std::time::Instant;

use netvm_kernel_flows::{Field, Mask, Table};
use netvm_model::{MonitorTable, PortConfig};
use netvm_policy::{Edit, Rule, Side, UsedFields};

use super::{FastPaths, MAX_INTERVAL};
use crate::ids::PortId;
use crate::kernel_flows::{FastEnd, Intervals};
use crate::manager::ports::{Configured, PortView};
use crate::policy::{Policy, Tracking};

/// A port with a fast path.
pub(super) struct FastPathPort {
    pub(super) config: PortConfig,
    tracking: Option<Tracking>,
    pub(super) end: FastEnd,
    /// How many addresses have moved away from it.
    moves: Option<u32>,
    /// Zero: none of its packets are forwarded.
    pub(super) epoch: u32,
    /// Of the keys of what it receives; `None`: these keys do not have what rules for it read.
    pub(super) mask: Option<Mask>,
    /// Why there is none.
    unused: Option<&'static str>,
    traits: Traits,
    /// Whether connections between two hosts are different flows.
    pub(super) tells_connections_apart: bool,
    /// Bursts from one sample to the next.
    interval: u16,
}

/// What decides about packets of a port beside rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Traits {
    /// A router has an interface on it.
    is_routed: bool,
    /// Its connections are tracked.
    is_tracked: bool,
    /// NFs may release its flows.
    may_be_released: bool,
    /// Its flows are monitored.
    is_monitored: bool,
    /// How the monitor takes each packet by itself.
    needs_packets: Option<&'static str>,
}

impl Traits {
    fn of(now: Configured<'_>, id: PortId) -> Self {
        let Configured { host, policy } = now;
        let interfaces = || host.routers.iter().flat_map(|router| &router.interfaces);
        let chains = host.port(id).into_iter().flat_map(|port| host.chains_by(&policy.leading, port));
        let mut roles = chains.flat_map(|chain| &chain.hops);
        let ingress = policy.ingress(id);
        let monitor = host.engine.flow_monitor.as_ref();
        let monitor = monitor.filter(|_| ingress.is_none_or(|ingress| ingress.is_monitored));
        Self {
            is_routed: interfaces().any(|interface| interface.port == id),
            is_tracked: ingress.is_some_and(|ingress| ingress.tracking.is_some()),
            may_be_released: roles.any(|role| host.nf(*role).is_some_and(|nf| nf.flow_verdicts > 0)),
            is_monitored: monitor.is_some(),
            needs_packets: monitor.and_then(|monitor| match monitor {
                _ if monitor.sampling > 1 => Some("the flow monitor takes some packets only"),
                _ if monitor.table == MonitorTable::Null => Some("the flow monitor has no table of flows"),
                _ => None,
            }),
        }
    }
}

impl FastPathPort {
    fn new(config: &PortConfig, end: FastEnd) -> Self {
        let (config, traits, tells_connections_apart) = (config.clone(), Traits::default(), false);
        let (tracking, moves, epoch, mask, unused, interval) = (None, None, 0, None, None, 1);
        Self { config, tracking, end, moves, epoch, mask, unused, traits, tells_connections_apart, interval }
    }

    /// Whether its flows are monitored.
    pub(super) const fn is_monitored(&self) -> bool {
        self.traits.is_monitored
    }

    /// Whether what decides about its packets differs, rules aside.
    pub(super) fn differs(&self, now: Configured<'_>, id: PortId) -> bool {
        now.host.port(id) != Some(&self.config)
            || tracking(now.policy, id) != self.tracking
            || Traits::of(now, id) != self.traits
    }

    /// Ends all flows from it and to it.
    pub(super) fn end(&mut self, id: PortId, table: &Table) {
        self.epoch = 0;
        table.set_epoch(id.0.into(), 0);
    }

    /// Begins with no flows under what is in force.
    fn begin(&mut self, id: PortId, table: &Table, now: Configured<'_>) {
        if let Some(config) = now.host.port(id) {
            self.config = config.clone();
        }
        self.tracking = tracking(now.policy, id);
        self.traits = Traits::of(now, id);
        (self.mask, self.tells_connections_apart, self.unused) = match mask_of(now.policy, id, self.traits) {
            Ok((mask, tells_apart)) => (Some(mask), tells_apart, None),
            Err(why) => (None, false, Some(why)),
        };
        self.interval = 1;
        if let Some(mask) = &self.mask {
            table.set_mask(id.0.into(), mask);
        }
        table.set_epoch(id.0.into(), self.epoch);
    }

    /// The kernel cannot forward a sample of it.
    pub(super) fn sample_less(&mut self, id: PortId, intervals: &Intervals) {
        self.interval = self.interval.saturating_mul(2).clamp(1, MAX_INTERVAL);
        intervals.set(id, self.interval);
    }

    /// The kernel forwards what a sample of it belongs to.
    pub(super) fn sample_often(&mut self, id: PortId, intervals: &Intervals) {
        self.interval = 1;
        intervals.set(id, self.interval);
    }
}

impl FastPaths {
    /// Adds to the views of ports with a fast path whose packets the kernel may not forward, why.
    pub(crate) fn with_reasons(&self, mut views: Vec<PortView>) -> Vec<PortView> {
        for view in views.iter_mut().filter(|view| view.fallback.is_none()) {
            let unused = self.ports.get(&view.id).and_then(|port| port.unused);
            view.fallback = unused.map(|why| format!("unused: {why}"));
        }
        views
    }

    /// Follows the ports with a fast path, in the order of their numbers.
    pub(super) fn follow_ports(&mut self, table: &Table, ends: Vec<(PortId, FastEnd)>, now: Configured<'_>) {
        let Self { ports, intervals, last_epoch, next_count, undelivered, .. } = self;
        ports.retain(|id, port| {
            let stays = ends.binary_search_by_key(id, |(id, _)| *id).is_ok();
            if !stays {
                port.end(*id, table);
                intervals.set(*id, 0);
                // Before another port gets the number.
                *next_count = Instant::now();
            }
            stays
        });
        let fdb = now.policy.switching.as_ref().map(|switching| &switching.fdb);
        for (id, end) in ends {
            if !ports.contains_key(&id) {
                undelivered.entry(id).or_insert_with(|| table.undelivered(id.0.into()));
                ports.extend(now.host.port(id).map(|config| (id, FastPathPort::new(config, end))));
            }
            let Some(port) = ports.get_mut(&id) else { continue };
            let moves = fdb.map(|fdb| fdb.port_generation(id.0));
            if (port.end, port.moves) != (end, moves) {
                port.end(id, table);
                (port.end, port.moves) = (end, moves);
                intervals.set(id, 0);
            }
            if port.epoch == 0 && end.is_open {
                *last_epoch = last_epoch.wrapping_add(1).max(1);
                port.epoch = *last_epoch;
                port.begin(id, table, now);
                intervals.set(id, if port.mask.is_some() { 1 } else { 0 });
            }
        }
    }
}

fn tracking(policy: &Policy, id: PortId) -> Option<Tracking> {
    policy.ingress(id).and_then(|ingress| ingress.tracking)
}

/// Whether a rule may decide about packets that a port has received, at once or when they leave.
fn is_for(rule: &Rule, id: PortId) -> bool {
    rule.matches.is_egress() && (rule.matches.from.is_empty() || rule.matches.from.contains(&id))
        || Side::Ingress { from: id }.takes(&rule.matches)
}

/// The fields that tell flows of a port apart, and whether connections between two hosts are different flows. MAC
/// addresses always do, as L2 switching learns and looks them up; a router looks at the other addresses. Of tracked,
/// monitored and released flows, each connection is one.
///
/// # Errors
/// Why packets of one flow may have different fates, so that the kernel can forward none.
fn mask_of(policy: &Policy, id: PortId, traits: Traits) -> Result<(Mask, bool), &'static str> {
    let Traits { is_routed, is_tracked, may_be_released, is_monitored, needs_packets } = traits;
    let rules = policy.rules.iter().filter(|rule| is_for(rule, id));
    let used = rules.fold(UsedFields::default(), UsedFields::with);
    if let Some(needs_packets) = needs_packets {
        return Err(needs_packets);
    }
    if used.tcp_flags != 0 || used.dscp != 0 {
        return Err("a rule asks for TCP flags or DSCP");
    }
    if used.state && !is_tracked {
        return Err("a rule asks for the state of connections, which the port does not track");
    }
    if is_tracked || may_be_released || is_monitored {
        return Ok((Mask::all(), true));
    }
    let has_guard = policy.ingress(id).is_some_and(|ingress| ingress.guard.is_some());
    let fields = [
        (Field::Source(128), used.source || has_guard || is_routed),
        (Field::Destination(128), used.destination || is_routed),
        (Field::SourcePort, used.source_ports),
        (Field::DestinationPort, used.destination_ports),
    ];
    let mask = Mask::default().with(Field::DestinationMac).with(Field::SourceMac);
    let with = |mask: Mask, (field, is_used): &(Field, bool)| if *is_used { mask.with(*field) } else { mask };
    Ok((fields.iter().fold(mask, with), used.source_ports || used.destination_ports))
}

/// What differs between two policies.
pub(super) struct Changes<'a> {
    rules: Vec<&'a Rule>,
    /// L2 switching is another one.
    is_new_bridge: bool,
}

impl<'a> Changes<'a> {
    pub(super) fn between(before: &'a Policy, after: &'a Policy) -> Self {
        let same = |one: &Rule, other: &Rule| one == other && one.is_active() == other.is_active();
        let edit = Edit::between(&before.rules, &after.rules, same);
        let gone = before.rules.get(edit.gone()).unwrap_or_default();
        let added = after.rules.get(edit.added()).unwrap_or_default();
        let is_new_bridge = match (&before.switching, &after.switching) {
            (None, None) => false,
            (Some(before), Some(after)) => !before.is_same(after),
            _ => true,
        };
        Self { rules: gone.iter().chain(added).collect(), is_new_bridge }
    }

    /// Whether they may decide otherwise about packets from or to a port.
    pub(super) fn concern(&self, id: PortId) -> bool {
        let concerns = |rule: &&Rule| is_for(rule, id) || rule.matches.to.contains(&id);
        self.is_new_bridge || self.rules.iter().any(concerns)
    }
}
