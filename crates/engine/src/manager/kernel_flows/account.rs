// SPDX-License-Identifier: Apache-2.0
//! Counts what the kernel has forwarded as if workers had done it: at ports and rules, and for addresses that L2
//! switching would forget.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use netvm_conntrack::Unseen;
use netvm_kernel_flows::{FlowCounts, Key, Table, Transport};
use netvm_policy::RuleId;
use netvm_wire::{EtherType, FlowKey, IpProto};

use super::decide::Decided;
use super::kernel_time;
use super::route::Routed;
use crate::counters::WorkerCounters;
use crate::drop_reason::DropReason;
use crate::ids::{PortId, WorkerId};
use crate::manager::publish::policy::now;
use crate::manager::views::flows::FlowView;
use crate::policy::{Policy, RuleCount, Switching};
use crate::worker::{Keeps, Visited};

/// How long a flow without packets stays in the table, and while the table is full.
const IDLE: Duration = Duration::from_secs(30);
const IDLE_IF_FULL: Duration = Duration::from_secs(1);

/// A flow in the table.
#[derive(Debug)]
pub(super) struct Installed {
    pub(super) decided: Decided,
    pub(super) from: PortId,
    /// Of this port, and of that which its packets leave by.
    pub(super) epochs: [u32; 2],
    since: Duration,
    /// What was counted of it.
    counted: FlowCounts,
    /// What workers know of that, if they keep something of the flow.
    reported: FlowCounts,
    /// Its header fields, if they do.
    pub(super) fields: FlowKey,
    /// How long it may be without packets.
    idle: Duration,
}

/// The header fields of a key.
fn fields(key: &Key) -> FlowKey {
    let Transport { protocol, source, destination, ports } = key.transport();
    let ether_type = if source.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
    let [destination_mac, source_mac] = key.macs();
    FlowKey {
        source: source.into(),
        destination: destination.into(),
        destination_mac,
        source_mac,
        ether_type,
        source_port: ports[0],
        destination_port: ports[1],
        protocol: IpProto(protocol),
        ..FlowKey::EMPTY
    }
}

impl Installed {
    pub(super) fn new(decided: Decided, from: PortId, epochs: [u32; 2]) -> Self {
        let (counted, reported) = (FlowCounts::default(), FlowCounts::default());
        let since = kernel_time();
        Self { decided, from, epochs, since, counted, reported, fields: FlowKey::EMPTY, idle: IDLE }
    }

    /// Workers keep something of it, by these fields, and for so long without packets.
    pub(super) fn keep(&mut self, fields: FlowKey, idle: Option<Duration>) {
        self.fields = fields;
        self.set_idle(idle);
    }

    pub(super) fn set_idle(&mut self, idle: Option<Duration>) {
        self.idle = idle.map_or(IDLE, |idle| idle.min(IDLE));
    }

    /// Ends it: it holds no more.
    pub(super) const fn end(&mut self) {
        self.epochs = [0; 2];
    }

    /// What workers have not been told of, if they keep something of it.
    pub(super) fn take_report(&mut self) -> Option<Visited> {
        if self.decided.keeps == Keeps::NOTHING {
            return None;
        }
        let unseen = self.take_unreported()?;
        let (port, key, keeps) = (self.from, self.fields, self.decided.keeps);
        Some(Visited { port, key, keeps, unseen, may_pass: false, idle: None, after: None })
    }

    fn take_unreported(&mut self) -> Option<Unseen> {
        let before = std::mem::replace(&mut self.reported, self.counted);
        let packets = self.counted.packets.saturating_sub(before.packets);
        let bytes = self.counted.bytes.saturating_sub(before.bytes);
        (packets > 0).then_some(Unseen { packets, bytes })
    }

    /// For display, as it was counted last.
    pub(super) fn view(&self, key: &Key) -> FlowView {
        let ago = |time: Duration| kernel_time().saturating_sub(time).as_secs_f64();
        FlowView {
            worker: WorkerId(0),
            port: self.from,
            key: fields(key),
            rules: self.decided.rules.to_vec(),
            packets: self.counted.packets,
            bytes: self.counted.bytes,
            idle: ago(self.since.max(self.counted.last)),
            age: ago(self.since),
            verdicts: Vec::new(),
            by_kernel: true,
        }
    }
}

/// The flows in the table.
#[derive(Debug, Default)]
pub(super) struct Flows {
    all: HashMap<Key, Installed>,
    /// The table has had no room.
    pub(super) is_full: bool,
    /// What workers have to be told of flows that have gone.
    pub(super) last_reports: Vec<(Key, Visited)>,
}

/// Where packets are counted.
pub(super) struct Counting<'a> {
    switching: Option<&'a Switching>,
    counters: &'a WorkerCounters,
    /// By rule.
    hits: BTreeMap<RuleId, RuleCount>,
    tick: u32,
}

impl<'a> Counting<'a> {
    pub(super) fn new(policy: &'a Policy, counters: &'a WorkerCounters) -> Self {
        Self { switching: policy.switching.as_ref(), counters, hits: BTreeMap::new(), tick: now() }
    }

    /// What rules have been hit by.
    pub(super) const fn hits(&self) -> &BTreeMap<RuleId, RuleCount> {
        &self.hits
    }

    /// Counts what a flow has had since the last time.
    fn add(&mut self, key: &Key, flow: &mut Installed, counts: FlowCounts) {
        let packets = counts.packets.saturating_sub(flow.counted.packets);
        let bytes = counts.bytes.saturating_sub(flow.counted.bytes);
        flow.counted = counts;
        if packets == 0 {
            return;
        }
        let ports = &self.counters.ports;
        if let (Some(from), Some(to)) = (ports.get(flow.from.index()), ports.get(flow.decided.to.index())) {
            from.rx_packets.add(packets);
            from.rx_bytes.add(bytes);
            from.rx_by_kernel.add(packets);
            to.tx_packets.add(packets);
            to.tx_bytes.add(bytes);
        }
        if let Some(Routed { router, punts, .. }) = &flow.decided.routed
            && let [Some(received), Some(sent)] = punts.map(|punt| ports.get(punt.index()))
            && let Some(router) = self.counters.routers.get(router.index())
        {
            router.forwarded.add(packets);
            received.interface.rx_packets.add(packets);
            received.interface.rx_bytes.add(bytes);
            sent.interface.tx_packets.add(packets);
            sent.interface.tx_bytes.add(bytes);
        }
        if let Some(chain) = flow.decided.keeps.chain
            && let Some(chain) = self.counters.chains.get(chain.index())
        {
            chain.entered.add(packets);
            chain.left.add(packets);
        }
        for rule in &flow.decided.rules {
            self.hits.entry(*rule).or_default().add(RuleCount { packets, bytes });
        }
        // A host that sends stays known.
        if let (Some(switching), Some(vlan)) = (self.switching, flow.decided.vlan) {
            let _ = switching.fdb.learn(vlan, key.macs()[1], flow.from.0, self.tick);
        }
    }

    /// Counts what the container of a port could not get.
    pub(super) fn drop_at(&self, port: PortId, packets: u64) {
        if let Some(port) = self.counters.ports.get(port.index()) {
            port.drops.add(DropReason::PeerGone, packets);
        }
    }

    /// Whether L2 switching still leads to the port that the packets of a flow leave by.
    fn leads_there(&self, key: &Key, flow: &Installed) -> bool {
        let Some(vlan) = flow.decided.vlan else { return true };
        let known = self.switching.and_then(|switching| switching.fdb.lookup(vlan, key.macs()[0], self.tick));
        known == Some(flow.decided.to.0)
    }
}

impl Flows {
    pub(super) fn get(&self, key: &Key) -> Option<&Installed> {
        self.all.get(key)
    }

    pub(super) fn get_mut(&mut self, key: &Key) -> Option<&mut Installed> {
        self.all.get_mut(key)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&Key, &mut Installed)> {
        self.all.iter_mut()
    }

    /// All flows.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &Installed)> {
        self.all.iter()
    }

    pub(super) fn add(&mut self, key: Key, flow: Installed) {
        self.all.insert(key, flow);
    }

    /// Counts what the kernel has forwarded of each flow, and removes those that do not hold, or have no packets.
    pub(super) fn count(
        &mut self,
        table: &Table,
        counting: &mut Counting<'_>,
        holds: impl Fn(&Installed) -> bool,
    ) {
        if self.all.is_empty() {
            return;
        }
        let idle = if std::mem::take(&mut self.is_full) { IDLE_IF_FULL } else { IDLE };
        let now = kernel_time();
        let mut gone = Vec::new();
        // If the kernel refuses, the next attempt counts it.
        let _ = table.dump(|key, counts| {
            let Some(flow) = self.all.get_mut(&key) else { return gone.push(key) };
            counting.add(&key, flow, counts);
            let is_idle = now.saturating_sub(flow.since.max(counts.last)) > idle.min(flow.idle);
            if is_idle || !holds(flow) || !counting.leads_there(&key, flow) {
                gone.push(key);
            }
        });
        gone.iter().for_each(|key| self.remove(table, counting, key));
    }

    /// Removes the flows for which it is not so.
    pub(super) fn retain(
        &mut self,
        table: &Table,
        counting: &mut Counting<'_>,
        is_so: impl Fn(&Key, &Installed) -> bool,
    ) {
        let gone: Vec<Key> =
            self.all.iter().filter(|(key, flow)| !is_so(key, flow)).map(|(key, _)| *key).collect();
        gone.iter().for_each(|key| self.remove(table, counting, key));
    }

    /// Removes a flow, and counts what it has had.
    fn remove(&mut self, table: &Table, counting: &mut Counting<'_>, key: &Key) {
        // Once more, as it may have had packets in the meantime.
        let last = table.counts(key).ok().flatten();
        let _ = table.remove(key);
        if let (Some(mut flow), Some(counts)) = (self.all.remove(key), last) {
            counting.add(key, &mut flow, counts);
            self.last_reports.extend(flow.take_report().map(|report| (*key, report)));
        }
    }
}
