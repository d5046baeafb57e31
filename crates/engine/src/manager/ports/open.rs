//! Opens a port: from its configuration to its state, and its queues for workers.

use std::sync::Arc;

use netvm_model::{PortConfig, SocketRights};
use netvm_switch::qos::QosError;

use super::{PortState, give_socket};
use crate::ids::WorkerId;
use crate::interface::{self, Device, OpenError, Opening, PortQueue, Shaper, XskMemory};

/// Opens a port. `xsk` applies to AF_XDP.
pub(crate) fn open(
    opening: &Opening<'_>,
    xsk: XskMemory,
) -> Result<(PortState, Vec<(WorkerId, PortQueue)>), OpenError> {
    let config = opening.config;
    let fail = |problem| OpenError { name: config.name.clone(), problem };
    let opened = interface::open(opening, xsk).map_err(fail)?;
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
    if by_worker.is_empty() && config.has_queues() {
        // Only for the shaper.
        by_worker.push((opening.queue(0).0, Vec::new()));
    }
    let state = PortState {
        config: config.clone(),
        mode: opened.mode,
        memories: opening.memories.iter().map(|memory| memory.id).collect(),
        workers: by_worker.iter().map(|(worker, _)| *worker).collect(),
        queues: Arc::default(),
        control: opened.control,
    };
    let waits_for_room = config.kind.info().waits_for_room;
    let queue = |(worker, devices): (WorkerId, _)| {
        let memory = opening.memories[worker.index()].id;
        (worker, PortQueue::new(config.id, memory, waits_for_room, devices).with_gro(config.gro))
    };
    Ok((state, by_worker.into_iter().map(queue).collect()))
}

/// Creates the shaper of a port.
pub(crate) fn new_shaper(config: &PortConfig) -> Result<Option<Box<Shaper>>, OpenError> {
    let fail = |problem: QosError| OpenError { name: config.name.clone(), problem: problem.into() };
    let shaper = config.policy.qos.as_ref().map(|qos| Shaper::new(qos).map(Box::new));
    shaper.transpose().map_err(fail)
}
