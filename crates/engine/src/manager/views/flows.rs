// SPDX-License-Identifier: Apache-2.0
//! Flows and addresses, for display.

use std::net::IpAddr;
use std::sync::Arc;

use netvm_model::{Host, PortConfig, SteerTo};
use netvm_policy::RuleId;
use netvm_switch::{Fdb, TICKS_PER_SECOND};
use netvm_wire::{FlowKey, MacAddr};

use super::readers::Readers;
use crate::ids::{PortId, RoleId, WorkerId};
use crate::manager::publish::policy::now;
use crate::manager::workers::Workers;
use crate::policy::Policy;
use crate::router::{Hosts, Vteps};
use crate::worker::{Command, FlowAction, FlowCounts, FlowPage};

/// An NF's verdict on a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowVerdict {
    /// The NF's role.
    pub role: RoleId,
    /// Drop the flow's packets.
    pub drops: bool,
    /// They go there; `None`, and not `drops`: they bypass the NF.
    pub steers: Option<SteerTo>,
    /// Seconds until it expires if no packet follows.
    pub left: f64,
}

/// A flow in a worker's flow cache, or in the kernel's flow table.
#[derive(Clone, Debug)]
pub struct FlowView {
    /// The worker.
    pub worker: WorkerId,
    /// The ingress port.
    pub port: PortId,
    /// The flow's header fields. Fields that no rule matches and that vary within a flow are zero.
    pub key: FlowKey,
    /// The rules that its packets match, the deciding one last; empty for a port's default.
    pub rules: Vec<RuleId>,
    /// Packets since it was cached.
    pub packets: u64,
    /// Bytes since it was cached.
    pub bytes: u64,
    /// Seconds since the last packet.
    pub idle: f64,
    /// Seconds since it was cached.
    pub age: f64,
    /// The NFs' verdicts that have not expired.
    pub verdicts: Vec<FlowVerdict>,
    /// The kernel forwards it; no worker's cache has it.
    pub by_kernel: bool,
}

/// An address in the switch's forwarding database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Its VLAN; 0 on ports that are not VLAN-aware.
    pub vlan: u16,
    /// The address.
    pub mac: MacAddr,
    /// Its port.
    pub port: PortId,
}

/// What L2 switching learns in the networks of EVPN ports, for another thread. It reads the switch's database itself.
#[derive(Clone, Debug)]
pub struct LocalAddresses {
    fdb: Arc<Fdb>,
    /// The VLAN of each network, and its port.
    networks: Vec<(u16, PortId)>,
    /// The hosts of each network, by its port.
    hosts: Vec<(PortId, Arc<Hosts>)>,
    /// Addresses of containers by the configuration, with the port of their network.
    configured: Vec<HostAddress>,
}

/// An IP address of a host, and the EVPN port of its network.
pub type HostAddress = (PortId, IpAddr, MacAddr);

impl LocalAddresses {
    pub(crate) fn of(host: &Host, policy: &Policy, vteps: &Vteps) -> Option<Self> {
        let switching = policy.switching.as_ref()?;
        let is_evpn =
            |port: &&PortConfig| port.kind.info().tunnel.is_some_and(netvm_model::VxlanConfig::is_evpn);
        let network = |port: &PortConfig| Some((switching.vlan_of(port.id)?, port.id));
        let networks: Vec<_> = host.ports.iter().filter(is_evpn).filter_map(network).collect();
        let addresses = |port: &PortConfig| {
            let container = port.kind.info().container()?.clone();
            let vlan = switching.vlan_of(port.id)?;
            let (_, network) = *networks.iter().find(|(of, _)| *of == vlan)?;
            let mac = container.own_mac();
            Some(container.addresses.into_iter().map(move |one| (network, one.address, mac)))
        };
        let configured = host.ports.iter().filter_map(addresses).flatten().collect();
        let hosts = vteps.hosts().map(|(port, hosts)| (port, Arc::clone(hosts))).collect();
        Some(Self { fdb: Arc::clone(&switching.fdb), networks, hosts, configured })
    }

    /// Changes whenever an address comes, goes or moves.
    #[must_use]
    pub fn changes(&self) -> u32 {
        self.fdb.changes()
    }

    /// IP addresses that hosts of this server have said they have, since the last call, each with the EVPN port of its
    /// network.
    pub fn take_claims(&self) -> impl Iterator<Item = HostAddress> {
        self.hosts.iter().flat_map(|(port, hosts)| {
            hosts.take_claims().into_iter().map(|(address, mac)| (*port, address.to_ip(), mac))
        })
    }

    /// The IP addresses that containers have by the configuration.
    #[must_use]
    pub fn configured(&self) -> &[HostAddress] {
        &self.configured
    }

    /// The addresses that ports of this host have sent from, each with the EVPN port of its network. Reads the whole
    /// database.
    pub fn learned(&self) -> impl Iterator<Item = (PortId, MacAddr)> {
        let learned = self.fdb.entries(now()).filter(|entry| entry.idle.is_some());
        learned.filter_map(|entry| {
            let (_, port) = self.networks.iter().find(|(vlan, _)| *vlan == entry.vlan)?;
            (entry.port != port.0).then_some((*port, entry.mac))
        })
    }
}

/// Which flows to read.
pub(crate) struct Wanted {
    /// At most so many.
    pub(crate) most: usize,
    /// Those that the kernel forwards.
    pub(crate) by_kernel: Vec<FlowView>,
}

/// The flows that were found so far.
pub(crate) struct Flows {
    most: usize,
    flows: Vec<FlowView>,
    /// By worker.
    counts: Vec<FlowCounts>,
    policy: Arc<Policy>,
}

impl Flows {
    /// Takes a page's rows. Skips rows of another policy generation, whose decision numbers are invalid in this one.
    fn take(&mut self, page: &mut FlowPage) {
        let seconds = |ticks: u32| f64::from(ticks) / f64::from(TICKS_PER_SECOND);
        let room = self.most.saturating_sub(self.flows.len());
        let is_current = page.generation == self.policy.generation;
        for row in page.rows.drain(..).take(room).filter(|_| is_current) {
            let verdicts = row.verdicts.iter().flatten().map(|(verdict, left)| FlowVerdict {
                role: verdict.role,
                drops: verdict.action == FlowAction::Drop,
                steers: match verdict.action {
                    FlowAction::Steer(to) => Some(to),
                    FlowAction::Drop | FlowAction::Skip => None,
                },
                left: seconds(*left),
            });
            self.flows.push(FlowView {
                worker: page.worker,
                port: row.port,
                key: row.key,
                rules: self.policy.decision(row.decision).rules.to_vec(),
                packets: row.packets,
                bytes: row.bytes,
                idle: seconds(row.idle),
                age: seconds(row.age),
                verdicts: verdicts.collect(),
                by_kernel: false,
            });
        }
        page.rows.clear();
        if let Some(counts) = self.counts.get_mut(page.worker.index()) {
            *counts = page.counts;
        }
    }
}

impl Readers<Flows> {
    /// Reads flows of all workers. `done` gets them with those of the kernel, and each worker's cache counters.
    pub(crate) fn read(
        &mut self,
        wanted: Wanted,
        policy: &Arc<Policy>,
        workers: &mut Workers,
        done: impl FnOnce(Vec<FlowView>, Vec<FlowCounts>) + Send + 'static,
    ) {
        let counts = vec![FlowCounts::default(); workers.len()];
        let Wanted { most, by_kernel: flows } = wanted;
        let found = Flows { most, flows, counts, policy: Arc::clone(policy) };
        let ticket = self.begin(workers, found, |found| done(found.flows, found.counts));
        workers.send_all(|worker| Command::ReadFlows(Box::new(FlowPage::new(worker, ticket))));
    }

    /// Handles a page, and requests the worker's next one.
    pub(crate) fn page(&mut self, mut page: Box<FlowPage>, workers: &mut Workers) {
        let has_more = self.handle(page.ticket, |found| {
            found.take(&mut page);
            page.cursor.is_some() && found.flows.len() < found.most && workers.has(page.worker)
        });
        if has_more {
            workers.send(page.worker, Command::ReadFlows(page));
        }
    }
}

/// The addresses in the switch's forwarding database.
pub(crate) fn addresses(policy: &Policy) -> Vec<Address> {
    let Some(switching) = &policy.switching else { return Vec::new() };
    let entries = switching.fdb.entries(now());
    entries.map(|entry| Address { vlan: entry.vlan, mac: entry.mac, port: PortId(entry.port) }).collect()
}
