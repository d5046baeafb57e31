// SPDX-License-Identifier: Apache-2.0
//! Programs of DPDK, VPP and others over memif sockets.

mod device;

use std::sync::Arc;

use netvm_memif::{Fault, Options, Port, Role};
use netvm_model::{MemifConfig, MemifRole};

use super::control::{Control, OpenProblem, Opened, Opening, Queues, Reported};
use device::MemifDevice;

/// The control side.
struct Memif {
    port: Port,
    /// The socket, if its peer creates it.
    server: Option<String>,
    /// Faults of the peer, and refused peers.
    reported: Reported<2>,
}

impl Control for Memif {
    fn link(&self) -> Option<bool> {
        Some(self.port.status().is_connected)
    }

    fn fault(&self) -> Option<String> {
        self.port.status().fault.as_ref().map(text_of)
    }

    fn new_fault(&mut self) -> Option<String> {
        let (status, (refused_peers, refused_peer)) = (self.port.status(), self.port.refused());
        let fault = (status.faults, status.fault.as_ref().map(text_of));
        self.reported.first_new([fault, (refused_peers, refused_peer.map(|peer| peer.to_string()))])
    }

    fn notes(&self) -> Vec<String> {
        let unreachable = self.port.status().unreachable;
        let unreachable = unreachable.zip(self.server.as_ref());
        let unreachable = unreachable.map(|(why, path)| format!("cannot connect to {path}: {why}"));
        self.port.refused_peer().iter().map(ToString::to_string).chain(unreachable).collect()
    }
}

pub(super) fn open(opening: &Opening<'_>, config: &MemifConfig) -> Result<Opened, OpenProblem> {
    let (role, mode) = match config.role {
        MemifRole::Server => (Role::Server, "memif server"),
        MemifRole::Client => (Role::Client, "memif client"),
    };
    let options = Options {
        path: config.path.clone(),
        role,
        id: config.id,
        secret: config.secret.clone(),
        // The configuration has checked that it is a power of two.
        log2_ring_size: config.ring_size.ilog2() as u8,
        buffer_size: config.buffer_size,
        queues: opening.queues(),
        name: opening.config.name.clone(),
    };
    let (port, opened) = Port::open(&options)?;
    let mut queues = Queues::new();
    for (n, queue) in opened.into_iter().enumerate() {
        let (worker, memory) = opening.queue(n);
        queues.push((worker, Box::new(MemifDevice::new(queue, Arc::clone(memory)))));
    }
    let server = (role == Role::Client).then(|| config.path.display().to_string());
    Ok(Opened::new(queues, mode, Memif { port, server, reported: Reported::new() }))
}

fn text_of(fault: &Fault) -> String {
    format!("the memif peer was disconnected: {fault} (see docs/how-to/memif.md)")
}
