//! Open ports: their configuration, their workers, and the control side of their kind.

mod change;
mod open;

use std::sync::Arc;

use netvm_guest_socket::Rights;
use netvm_model::{PortConfig, PortKind, SocketRights};

use crate::counters::QueueCounters;
use crate::ids::{MemoryId, PortId, WorkerId};
use crate::interface::{Control, InterfaceView, OpenError, OpenProblem, PortMode};
use crate::memory::Memory;

pub(crate) use change::{Opened, Tolerance};
pub(crate) use open::{new_shaper, open};

/// An open port.
pub(crate) struct PortState {
    pub(crate) config: PortConfig,
    pub(crate) mode: PortMode,
    memories: Vec<MemoryId>,
    /// Workers that have its queues.
    pub(crate) workers: Vec<WorkerId>,
    /// Counters of its shaper's queues.
    pub(crate) queues: Arc<[QueueCounters]>,
    pub(crate) control: Box<dyn Control>,
}

impl PortState {
    /// Follows what changes while its device stays open: everything but the shaper, which its worker has.
    pub(crate) fn follow(&mut self, config: &PortConfig, memories: &[Arc<Memory>]) {
        let qos = self.config.policy.qos.take();
        self.config = config.clone();
        self.config.policy.qos = qos;
        self.memories = memories.iter().map(|memory| memory.id).collect();
    }

    /// Follows the MTU and the offloads of its interface, and the interface's end.
    pub(crate) fn follow_interface(&mut self, interface: &InterfaceView) {
        if let Some(driver) = self.control.follow_interface(interface) {
            self.mode.driver = driver;
        }
    }

    pub(crate) fn memories(&self) -> impl Iterator<Item = MemoryId> + '_ {
        self.memories.iter().copied()
    }

    pub(crate) const fn id(&self) -> PortId {
        self.config.id
    }

    /// Gives its socket the owner and mode of a configuration, which may have changed.
    pub(crate) fn set_socket_rights(&mut self, socket: &SocketRights) -> Result<(), OpenError> {
        if *socket == self.config.socket {
            return Ok(());
        }
        give_socket(&self.config.kind, socket).map_err(|problem| self.error(problem))?;
        self.config.socket = socket.clone();
        Ok(())
    }

    /// Makes a memory usable for packets that the port sends.
    pub(crate) fn register_memory(&self, memory: &Memory) -> Result<(), OpenError> {
        self.control.register_memory(memory).map_err(|problem| self.error(problem))
    }

    fn error(&self, problem: OpenProblem) -> OpenError {
        OpenError { name: self.config.name.clone(), problem }
    }
}

/// Gives the socket of a port its owner and mode.
fn give_socket(kind: &PortKind, socket: &SocketRights) -> Result<(), OpenProblem> {
    let Some(path) = kind.own_socket() else { return Ok(()) };
    let own = Rights::own();
    let rights = Rights {
        uid: socket.ids.uid.unwrap_or(own.uid),
        gid: socket.ids.gid.unwrap_or(own.gid),
        mode: socket.mode.unwrap_or(own.mode),
    };
    rights.apply(path).map_err(|error| OpenProblem::SocketRights { path: path.to_owned(), error })
}
