// SPDX-License-Identifier: Apache-2.0
//! What a port asks the placement for, from its configuration and its device.

use netvm_model::{Guest, Host, PortConfig, VmConfig};

use crate::ids::{PortId, WorkerId};
use crate::interface::device_node;

/// What a port asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) port: PortId,
    pub(crate) queues: u16,
    /// The worker that the configuration names.
    pub(crate) worker: Option<WorkerId>,
    /// The NUMA node that the configuration names, or the device's.
    pub(crate) node: Option<u32>,
    /// All its queues receive into one memory, so one node has them.
    pub(crate) one_node: bool,
    /// The port whose worker should serve it, too.
    pub(crate) with: Option<PortId>,
    /// Whether its queues count.
    pub(crate) counts: bool,
}

impl Request {
    /// The request of a port; `None` if it has no queues, or one on each worker: a sink that names no worker.
    pub(crate) fn of(host: &Host, config: &PortConfig) -> Option<Self> {
        let punts_for = host.punted_by(config.id).map(|(_, interface)| interface.port);
        let kind = config.kind.info();
        if !config.has_queues() || kind.is_on_each_worker && config.worker.is_none() {
            return None;
        }
        let node = || device_node(kind).or_else(|| guest_node(host, config.id));
        Some(Self {
            port: config.id,
            queues: config.queues.max(1),
            worker: config.worker.map(WorkerId),
            node: config.node.or_else(node),
            one_node: kind.has_one_memory,
            with: punts_for,
            counts: punts_for.is_none(),
        })
    }
}

/// The NUMA node of the virtual machine whose network card a port is.
fn guest_node(host: &Host, port: PortId) -> Option<u32> {
    let has_card = |vm: &&VmConfig| match &vm.guest {
        Guest::Ordinary { cards } => cards.iter().any(|card| card.port == port),
        Guest::Nf { .. } => false,
    };
    host.vms.iter().find(has_card)?.node
}
