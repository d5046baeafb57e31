//! Opens a port: from its configuration to device queues for workers.

mod builtin;
mod guest;
mod kernel;
mod xsk;

use std::sync::Arc;

use dpdk::{Device as EthKind, PortBuilder, VhostPort};
use netvm_model::{PortConfig, PortKind, SocketRights};
use netvm_switch::qos::QosError;
use netvm_vnet::{ManagedInterface, Offloads, Watch};

use super::{OpenError, OpenProblem, PortMode, PortState, give_socket, interface};
use crate::ids::WorkerId;
use crate::interface::Shaper;
use crate::interface::ethdev::EthDevice;
use crate::interface::kernel::SentOffloads;
use crate::interface::missed::{LongestFrame, Missed};
use crate::interface::patch::{PatchEnd, PatchLinks};
use crate::interface::pcap::Progress;
use crate::interface::{Device, PortQueue};
use crate::memory::Memory;

pub use guest::note_kvm;
pub(crate) use kernel::{accepts, words};
pub(crate) use xsk::{XskMemory, XskQueues};

/// Device queues of one port, each with its worker.
type Queues = Vec<(WorkerId, Box<dyn Device>)>;

/// Where a port's queues are.
#[derive(Debug)]
pub(crate) struct Site {
    /// By worker: the memory into which it receives. There is at least one worker.
    pub(crate) memories: Vec<Arc<Memory>>,
    /// By queue: its worker. Empty: a queue for each worker.
    pub(crate) workers: Vec<WorkerId>,
}

impl Site {
    /// The worker of a queue, and the memory into which it receives.
    fn queue(&self, n: usize) -> (WorkerId, &Arc<Memory>) {
        let each = || WorkerId((n % self.memories.len()) as u8);
        let worker = self.workers.get(n % self.workers.len().max(1)).copied().unwrap_or_else(each);
        (worker, &self.memories[worker.index()])
    }

    /// Queues of a port that has one for each worker, unless the configuration names workers.
    fn queues_by_default(&self) -> usize {
        if self.workers.is_empty() { self.memories.len() } else { self.workers.len() }
    }
}

/// Opens a port. `xsk` applies to AF_XDP, `links` to patch ports.
pub(crate) fn open(
    eal: dpdk::Eal,
    config: &PortConfig,
    site: &Site,
    (xsk, links): (XskMemory, &mut PatchLinks),
) -> Result<(PortState, Vec<(WorkerId, PortQueue)>), OpenError> {
    let fail = |problem| OpenError { name: config.name.clone(), problem };
    let opened = open_kind(eal, config, site, (xsk, links)).map_err(fail)?;
    if config.socket != SocketRights::default() {
        give_socket(&config.kind, &config.socket).map_err(fail)?;
    }
    let mut by_worker: Vec<(WorkerId, Vec<Box<dyn Device>>)> = Vec::new();
    for (worker, device) in opened.queues {
        match by_worker.iter_mut().find(|(other, _)| *other == worker) {
            Some((_, devices)) => devices.push(device),
            None => by_worker.push((worker, vec![device])),
        }
    }
    let kind = config.kind.info();
    let workers = by_worker.iter().map(|(worker, _)| *worker).collect();
    let state = PortState {
        config: config.clone(),
        mode: opened.mode,
        interface: kind.interface().and_then(interface::index),
        memories: site.memories.iter().map(|memory| memory.id).collect(),
        workers,
        closing: Vec::new(),
        progress: opened.progress,
        queues: Arc::default(),
        eth: opened.eth,
        vhost: opened.vhost,
        card: opened.card,
        patch: opened.patch,
        tap: opened.tap,
        managed: opened.managed,
        reported: [0; 3],
        missed: opened.missed,
        longest: opened.longest,
        sent: opened.sent,
        refused_before: kind.interface().map_or(0, interface::refused),
    };
    let queue = |(worker, devices): (WorkerId, _)| {
        let queue = PortQueue::new(config.id, site.memories[worker.index()].id, kind.waits_for_room, devices);
        (worker, queue.with_gro(config.gro))
    };
    Ok((state, by_worker.into_iter().map(queue).collect()))
}

/// Creates the shaper of a port.
pub(crate) fn new_shaper(config: &PortConfig) -> Result<Option<Box<Shaper>>, OpenError> {
    let fail = |problem: QosError| OpenError { name: config.name.clone(), problem: problem.into() };
    let shaper = config.policy.qos.as_ref().map(|qos| Shaper::new(qos).map(Box::new));
    shaper.transpose().map_err(fail)
}

struct Opened {
    queues: Queues,
    mode: PortMode,
    eth: Option<dpdk::Port>,
    vhost: Option<VhostPort>,
    card: Option<netvm_e1000::Port>,
    patch: Option<PatchEnd>,
    tap: Option<Watch>,
    managed: Option<ManagedInterface>,
    progress: Option<Arc<Progress>>,
    missed: Vec<Missed>,
    longest: Option<LongestFrame>,
    sent: Option<(Offloads, SentOffloads)>,
}

impl Opened {
    fn new(queues: Queues, driver: String) -> Self {
        let mode = PortMode { driver, fallback: None };
        Self {
            queues,
            mode,
            eth: None,
            vhost: None,
            card: None,
            patch: None,
            tap: None,
            managed: None,
            progress: None,
            missed: Vec::new(),
            longest: None,
            sent: None,
        }
    }
}

fn open_kind(
    eal: dpdk::Eal,
    config: &PortConfig,
    site: &Site,
    (xsk, links): (XskMemory, &mut PatchLinks),
) -> Result<Opened, OpenProblem> {
    let device = match &config.kind {
        PortKind::Pci { address } => EthKind::Pci { address: address.parse()?, arguments: String::new() },
        PortKind::AfPacket { .. } | PortKind::Tap { .. } | PortKind::Container(_) | PortKind::Host(_) => {
            return kernel::open(config, site);
        }
        PortKind::Null { size } => EthKind::Null { packet_bytes: *size, copy: false, receive: true },
        PortKind::AfXdp { interface, generic } => {
            return xsk::open(config, (interface, *generic), xsk, site);
        }
        PortKind::VhostUser { path, mode, dma } => {
            return guest::open_vhost(eal, config, (path, *mode), dma, site);
        }
        PortKind::E1000 { path, model, doorbells, .. } => {
            return guest::open_e1000(config, (path, *model, *doorbells), site);
        }
        PortKind::Patch { peer } => return Ok(builtin::open_patch(links.end(config.id, *peer), site)),
        PortKind::Pcap { .. } | PortKind::Source(_) | PortKind::Sink => {
            return builtin::open(config, site);
        }
    };
    open_ethdev(eal, config, device, site)
}

fn open_ethdev(
    eal: dpdk::Eal,
    config: &PortConfig,
    device: EthKind,
    site: &Site,
) -> Result<Opened, OpenProblem> {
    let driver = match &device {
        EthKind::Null { .. } => "DPDK net_null",
        _ => "DPDK",
    };
    let builder = PortBuilder::new(device)
        .queues(config.queues.max(1), config.queues.max(1))
        .mtu(config.mtu)
        .promiscuous(true);
    // The placement puts all of them on one node.
    let (_, memory) = site.queue(0);
    let started = builder.start(eal, &memory.pool)?;
    let mut queues: Queues = Vec::new();
    for (n, (rx, tx)) in started.rx.into_iter().zip(started.tx).enumerate() {
        let (worker, _) = site.queue(n);
        queues.push((worker, Box::new(EthDevice::new(rx, tx, Arc::clone(memory)))));
    }
    let missed = vec![Missed::Device(started.port.clone())];
    Ok(Opened { eth: Some(started.port), missed, ..Opened::new(queues, driver.to_owned()) })
}
