// SPDX-License-Identifier: Apache-2.0
//! What is told of ports.

use std::net::IpAddr;
use std::time::Duration;

use netvm_clock as clock;
use netvm_counters::{fields, filled};
use netvm_model::{Host, PortConfig, QueueConfig, SendsTo};
use netvm_wire::MacAddr;

use super::{PortState, Ports};
use crate::counters::{DropCounts, InterfaceCounts, QueueCounters};
use crate::ids::{PortId, WorkerId};
use crate::interface::{InterfaceView, closed_interface};
use crate::manager::baselines::{Baselines, PortSums};
use crate::manager::publish::policy::Rules;
use crate::manager::workers::Workers;
use crate::policy::SwitchingView;
use crate::snapshot::connection;

netvm_counters::port! { fields! {
    /// A port.
    #[derive(Clone, Debug)]
    pub struct PortView {
        /// Its number.
        pub id: PortId,
        /// The workers that have its queues.
        pub workers: Vec<PortWorker>,
        /// Packets that the device dropped for lack of room before the engine received them, if the device counts them;
        /// for a source, packets that were due but not generated in time. Since the port was opened.
        pub rx_dropped: u64,
        /// The workers' time that its packets took, and turns in which it had to wait because other ports had used less
        /// of their share. Counted if a port has `weight` or `reserve`.
        pub worker_time: Duration,
        /// See `worker_time`.
        pub waited: u64,
        /// Drops at the port, on receive and on transmit.
        pub drops: DropCounts,
        /// If it is a punt port: counts of the virtual router's interface.
        pub router_interface: InterfaceCounts,
        /// Queues of its shaper.
        pub queues: Vec<QueueView>,
        /// How it is driven.
        pub driver: String,
        /// The preferred mode and why it failed, if this is a fallback.
        pub fallback: Option<String>,
        /// Copies to a guest by a DMA device: begun, completed and failed.
        pub copies: Option<dpdk::DmaChannelStats>,
        /// Requests and interrupts of a guest's e1000 card.
        pub card: Option<netvm_e1000::Counts>,
        /// Whether the link is up, if known.
        pub link: Option<bool>,
        /// What L2 switching has seen at it.
        pub switching: SwitchingView,
        /// Whether it is open; if not, `fault` says why.
        pub is_open: bool,
        /// What carries its packets, if it is a bond.
        pub bond: Option<BondView>,
        /// The other servers to which its tunnels lead now.
        pub vteps: Vec<IpAddr>,
        /// Its interface, for ports that have one.
        pub interface: Option<InterfaceView>,
        /// Whether a capture has been read to its end; `None` for other ports.
        pub done: Option<bool>,
        /// Why it is closed, or stopped early (captures, and guests that truncate their memory or break the protocol).
        pub fault: Option<String>,
        /// Problems that do not stop it, with their remedies.
        pub notes: Vec<String>,
    }
} }

/// A bond, for statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BondView {
    /// The system at the other end, if LACP has found one that most members lead to.
    pub partner: Option<MacAddr>,
    /// Its members, in the order of the configuration.
    pub members: Vec<BondMemberView>,
}

/// A member of a bond, for statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BondMemberView {
    /// The port.
    pub port: PortId,
    /// Whether its link is up.
    pub link: bool,
    /// Whether the bond sends by it.
    pub sends: bool,
    /// Whether the bond receives its packets.
    pub receives: bool,
    /// The system at its other end, if LACP has found one.
    pub partner: Option<MacAddr>,
}

/// A worker that has queues of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortWorker {
    /// The worker.
    pub worker: WorkerId,
    /// The number of queues.
    pub queues: usize,
    /// Thousandths of the worker's time, in the last second, that packets of these queues took.
    pub load: u32,
}

netvm_counters::queue! { fields! {
    /// A queue of a port's shaper, since the shaper was configured.
    #[derive(Clone, Debug)]
    pub struct QueueView {
        /// Its name.
        pub name: String,
    }
} }

impl Ports {
    /// The ports of the configuration in force, by number.
    pub(crate) fn views(
        &self,
        host: &Host,
        rules: &Rules,
        baselines: &Baselines,
        workers: &Workers,
    ) -> Vec<PortView> {
        let view = |state: &PortState| {
            let sums = baselines.port(state.id(), workers);
            let control = &state.control;
            PortView {
                workers: self.workers_of(state),
                rx_dropped: control.missed(),
                drops: sums.drops.with_device(control.missed(), control.refused()).by_reason(),
                queues: queue_views(state),
                driver: state.mode.driver.clone(),
                fallback: state.mode.fallback.clone(),
                copies: control.copies(),
                card: control.card(),
                link: control.link().or_else(|| self.link_without_device(&state.config, host)),
                switching: rules.switching_view(state.id()),
                is_open: true,
                interface: control.interface(),
                done: control.is_done(),
                fault: control.fault(),
                notes: control.notes(),
                ..closed_view(state.id(), sums)
            }
        };
        let closed = |config: &PortConfig| {
            Some(PortView {
                switching: rules.switching_view(config.id),
                interface: closed_interface(config.kind.info()),
                fault: Some(self.closed.get(&config.id)?.clone()),
                ..closed_view(config.id, baselines.port(config.id, workers))
            })
        };
        let closed = host.ports.iter().filter_map(closed);
        let mut all: Vec<PortView> = self.open.values().map(view).chain(closed).collect();
        all.sort_by_key(|port| port.id);
        all
    }

    fn workers_of(&self, state: &PortState) -> Vec<PortWorker> {
        let placed = self.placement.workers_of(state.id());
        let view = |worker: &WorkerId| PortWorker {
            worker: *worker,
            // A sink has one for each worker.
            queues: placed.iter().filter(|other| *other == worker).count().max(1),
            load: self.loads.of_port(state.id(), *worker),
        };
        let mut workers: Vec<PortWorker> = state.workers.iter().map(view).collect();
        workers.sort_by_key(|view| view.worker);
        workers
    }

    /// Whether a port without a device is connected, to a port with a link; `None` if it has one.
    fn link_without_device(&self, port: &PortConfig, host: &Host) -> Option<bool> {
        let mut port = port;
        for _ in &self.open {
            let SendsTo::Parent { port: parent, .. } = port.kind.info().sends_to? else { break };
            let Some(parent) = self.open.get(&parent) else { return Some(false) };
            if let Some(link) = parent.control.link() {
                return Some(link);
            }
            port = &parent.config;
        }
        Some(connection(host, port).is_some())
    }

    /// Rx queues of a worker, without those of punt ports and sinks.
    pub(crate) fn queues_on(&self, worker: WorkerId) -> usize {
        self.placement.queues(worker)
    }

    /// Thousandths of the last second that a worker spent on packets.
    pub(crate) fn load_of(&self, worker: WorkerId) -> u32 {
        self.loads.of_worker(worker)
    }
}

/// The view of a closed port, with what was counted at it.
fn closed_view(id: PortId, sums: PortSums) -> PortView {
    let counts = sums.counts;
    netvm_counters::port!(filled! { PortView from counts {
        id,
        workers: Vec::new(),
        rx_dropped: 0,
        worker_time: clock::duration_of(sums.cycles),
        waited: sums.waited,
        drops: sums.drops.by_reason(),
        router_interface: sums.interface,
        queues: Vec::new(),
        driver: "closed".to_owned(),
        fallback: None,
        copies: None,
        card: None,
        link: Some(false),
        switching: SwitchingView::default(),
        is_open: false,
        bond: None,
        vteps: Vec::new(),
        interface: None,
        done: None,
        fault: None,
        notes: Vec::new(),
    } })
}

fn queue_views(state: &PortState) -> Vec<QueueView> {
    let configured = state.config.policy.qos.iter().flat_map(|qos| &qos.queues);
    let view = |(queue, counters): (&QueueConfig, &QueueCounters)| {
        let counts = counters.counts();
        netvm_counters::queue!(filled! { QueueView from counts { name: queue.name.clone() } })
    };
    configured.zip(state.queues.iter()).map(view).collect()
}
