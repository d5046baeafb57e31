//! Open ports: their state, faults and link.

mod change;
mod interface;
mod open;
mod problem;

use std::sync::Arc;

use dpdk::{VhostPort, VhostRefusal};
use netvm_guest_socket::{Rights, Rival};
use netvm_model::{HostConfig, PortConfig, PortKind, SocketRights};
use netvm_vnet::{LinkEvent, ManagedInterface, Offloads, Watch};

use crate::counters::QueueCounters;
use crate::ids::{MemoryId, PortId, WorkerId};
use crate::interface::kernel::SentOffloads;
use crate::interface::missed::{LongestFrame, Missed};
use crate::interface::patch::PatchEnd;
use crate::interface::pcap::Progress;
use crate::memory::Memory;

pub(crate) use change::{Opened, Tolerance};
pub(crate) use interface::device_node;
pub use interface::{InterfaceState, InterfaceView};
pub use open::note_kvm;
pub(crate) use open::{Site, XskQueues, new_shaper, open};
pub use problem::{OpenError, OpenProblem};

/// How a port is driven.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortMode {
    /// For example `net_null` or `AF_XDP native zero-copy`.
    pub driver: String,
    /// The preferred mode and why it failed, if this is a fallback.
    pub fallback: Option<String>,
}

/// An open port.
pub(crate) struct PortState {
    pub(crate) config: PortConfig,
    pub(crate) mode: PortMode,
    /// The number of its interface when it was opened.
    interface: Option<u32>,
    memories: Vec<MemoryId>,
    /// Workers that have its queues.
    pub(crate) workers: Vec<WorkerId>,
    /// While the port closes: workers that have not returned their queues yet.
    pub(crate) closing: Vec<WorkerId>,
    pub(crate) progress: Option<Arc<Progress>>,
    /// Counters of its shaper's queues.
    pub(crate) queues: Arc<[QueueCounters]>,
    eth: Option<dpdk::Port>,
    vhost: Option<VhostPort>,
    card: Option<netvm_e1000::Port>,
    /// Its end of a link to another port.
    patch: Option<PatchEnd>,
    /// Watches whether its TAP device still exists.
    tap: Option<Watch>,
    /// Keeps the addresses and routes of its interface.
    managed: Option<ManagedInterface>,
    /// Counts of guest faults that were reported: truncated memory, refused messages, refused guests.
    reported: [u32; 3],
    missed: Vec<Missed>,
    /// For devices that check it.
    longest: Option<LongestFrame>,
    /// Of packet sockets: offloads that the kernel passes on, and what the interface takes of these.
    sent: Option<(Offloads, SentOffloads)>,
    /// Packets that its interface had not sent before the port was opened.
    refused_before: u64,
}

impl PortState {
    /// Closes a port that the configuration has no more. Returns the progress of its source.
    pub(crate) fn close(self) -> Option<Arc<Progress>> {
        if let Some(card) = self.card {
            card.close();
        }
        self.progress
    }

    /// Follows what changes while its device stays open: everything but the shaper, which its worker has.
    pub(crate) fn follow(&mut self, config: &PortConfig, memories: &[Arc<Memory>]) {
        let qos = self.config.policy.qos.take();
        self.config = config.clone();
        self.config.policy.qos = qos;
        self.memories = memories.iter().map(|memory| memory.id).collect();
    }

    pub(crate) fn memories(&self) -> impl Iterator<Item = MemoryId> + '_ {
        self.memories.iter().copied()
    }

    /// Whether its link is up, if the device reports it.
    pub(crate) fn link(&self) -> Option<bool> {
        match &self.config.kind {
            PortKind::Tap { interface } | PortKind::Host(HostConfig { interface, .. })
                if self.interface != interface::index(interface) =>
            {
                Some(self.tap.as_ref()?.exists())
            }
            PortKind::AfXdp { interface, .. }
            | PortKind::AfPacket { interface }
            | PortKind::Tap { interface }
            | PortKind::Host(HostConfig { interface, .. }) => {
                Some(self.interface == interface::index(interface) && interface::has_carrier(interface))
            }
            PortKind::Container(_) => {
                let state = self.managed.as_ref().and_then(ManagedInterface::state_elsewhere);
                let is_up = state.is_none_or(|(is_up, _)| is_up);
                Some(is_up && self.tap.as_ref()?.exists() && !self.is_left())
            }
            PortKind::VhostUser { .. } => Some(self.vhost.as_ref()?.status().connected),
            PortKind::E1000 { .. } => Some(self.card.as_ref()?.status().is_connected),
            PortKind::Pci { .. } => Some(self.eth.as_ref()?.link().ok()?.up),
            PortKind::Patch { .. } => Some(self.patch.as_ref()?.is_joined()),
            PortKind::Pcap { .. } | PortKind::Null { .. } | PortKind::Source(_) | PortKind::Sink => None,
        }
    }

    /// Whether its container has ended and a new namespace has the same name.
    fn is_left(&self) -> bool {
        self.managed.as_ref().is_some_and(ManagedInterface::is_left)
    }

    /// Its interface, for ports that have one.
    pub(crate) fn interface(&self) -> Option<InterfaceView> {
        // A TAP device may be in any network namespace.
        let elsewhere = |name| {
            let exists = self.tap.as_ref().is_some_and(Watch::exists);
            let state = match exists {
                false => InterfaceState::Gone,
                true if self.is_left() => InterfaceState::Replaced,
                true => InterfaceState::Same,
            };
            let there = self.managed.as_ref().and_then(ManagedInterface::state_elsewhere);
            Some(InterfaceView { name, state, mtu: there.and_then(|(_, mtu)| mtu) })
        };
        match &self.config.kind {
            PortKind::Container(config) => {
                return elsewhere(format!("{} in {}", config.interface, config.namespace));
            }
            PortKind::Tap { interface } | PortKind::Host(HostConfig { interface, .. })
                if self.interface != interface::index(interface) =>
            {
                return elsewhere(interface.clone());
            }
            _ => {}
        }
        self.config.kind.info().interface().map(|name| interface::view(name, self.interface))
    }

    /// Gives its interface addresses and routes again, if it came up.
    pub(crate) fn restore(&mut self, links: &[LinkEvent]) {
        let Some(managed) = &mut self.managed else { return };
        if links.iter().any(|link| link.is_up && managed.is(link.namespace, link.index)) {
            managed.restore();
        }
    }

    /// The fault that stopped the port, or that its interface has.
    pub(crate) fn fault(&self) -> Option<String> {
        if let Some(problem) = self.managed.as_ref().and_then(ManagedInterface::problem) {
            return Some(problem.to_owned());
        }
        let guest = self.vhost.as_ref().map(VhostPort::status).unwrap_or_default();
        if guest.truncated {
            return Some(SHRUNK.to_owned());
        }
        if let Some(why) = guest.refused {
            return Some(refused(&why));
        }
        if let Some(fault) = self.card.as_ref().and_then(|card| card.status().fault) {
            return Some(card_fault(fault));
        }
        if let Some(name) = self.dma().filter(|dma| dma.stuck).map(|dma| dma.name) {
            return Some(format!("{name} did not finish its copies and was stopped; the CPU copies instead"));
        }
        self.progress.as_ref().and_then(|progress| progress.fault())
    }

    /// The dmadev channel that copies to its guest.
    pub(crate) fn dma(&self) -> Option<dpdk::DmaChannelStatus> {
        self.vhost.as_ref()?.dma()
    }

    /// Requests and interrupts of its guest's e1000 card.
    pub(crate) fn card(&self) -> Option<netvm_e1000::Counts> {
        self.card.as_ref().map(netvm_e1000::Port::counts)
    }

    /// The guest that was refused last, as another one has the socket, if that was a short time ago.
    fn rival(&self) -> Option<Rival> {
        match (&self.vhost, &self.card) {
            (Some(vhost), _) => vhost.rival(),
            (None, Some(card)) => card.rival(),
            (None, None) => None,
        }
    }

    /// Problems that do not stop the port.
    pub(crate) fn notes(&self) -> Vec<String> {
        let is_unshared = self.vhost.as_ref().is_some_and(|vhost| vhost.status().unshared);
        let unshared = is_unshared.then(|| UNSHARED.to_owned());
        self.rival().iter().map(ToString::to_string).chain(unshared).collect()
    }

    /// A fault of its guest or its capture since the last call.
    pub(crate) fn new_fault(&mut self) -> Option<String> {
        if let Some(progress) = &self.progress {
            return progress.new_fault();
        }
        let (now, fault, rival) = if let Some(card) = &self.card {
            let (status, (rivals, rival)) = (card.status(), card.refused());
            ([0, status.faults, rivals], status.fault.map(card_fault), rival)
        } else {
            let port = self.vhost.as_ref()?;
            let ((refusals, why), (rivals, rival)) = (port.refusals(), port.rivals());
            ([port.truncations(), refusals, rivals], why.map(|why| refused(&why)), rival)
        };
        let [truncations, faults, rivals] = std::mem::replace(&mut self.reported, now);
        if truncations != now[0] {
            return Some(SHRUNK.to_owned());
        }
        let fault = fault.filter(|_| faults != now[1]);
        fault.or_else(|| rival.filter(|_| rivals != now[2]).map(|rival| rival.to_string()))
    }

    /// Packets that its device dropped before a worker saw them, since it was opened.
    pub(crate) fn missed(&self) -> u64 {
        self.missed.iter().map(Missed::get).sum()
    }

    /// Packets that the kernel dropped after the port had sent them, since it was opened. TAP devices send to the kernel.
    pub(crate) fn refused(&self) -> u64 {
        match &self.config.kind {
            PortKind::AfXdp { interface, .. } | PortKind::AfPacket { interface }
                if self.interface == interface::index(interface) =>
            {
                interface::refused(interface).saturating_sub(self.refused_before)
            }
            _ => 0,
        }
    }

    /// Follows the MTU of its interface, and the interface's end.
    pub(crate) fn follow_interface(&self, interface: &InterfaceView) {
        match (&self.longest, interface.state) {
            (Some(longest), InterfaceState::Gone) => longest.end_interface(),
            (Some(longest), _) => longest.set(interface.mtu),
            (None, _) => {}
        }
    }

    /// Follows the offloads of its interface.
    pub(crate) fn follow_offloads(&mut self) {
        let Some((passed, sent)) = &self.sent else { return };
        let accepts = open::accepts(*passed, &self.config);
        if sent.set(accepts) {
            let before = self.mode.driver.split_once(", ").map_or("", |(driver, _)| driver);
            self.mode.driver = format!("{before}, {}", open::words(accepts));
        }
    }

    pub(crate) const fn id(&self) -> PortId {
        self.config.id
    }

    /// Gives its socket the owner and mode of a configuration, which may have changed.
    pub(crate) fn set_socket_rights(&mut self, socket: &SocketRights) -> Result<(), OpenError> {
        if *socket == self.config.socket {
            return Ok(());
        }
        let name = || self.config.name.clone();
        give_socket(&self.config.kind, socket).map_err(|problem| OpenError { name: name(), problem })?;
        self.config.socket = socket.clone();
        Ok(())
    }

    /// Registers a memory for a NIC's DMA. Other devices need no registration.
    pub(crate) fn reach(&self, memory: &Memory) -> Result<(), OpenError> {
        let Some(port) = self.eth.as_ref().filter(|_| matches!(self.config.kind, PortKind::Pci { .. }))
        else {
            return Ok(());
        };
        let fail =
            |problem: dpdk::PortError| OpenError { name: self.config.name.clone(), problem: problem.into() };
        port.add_pool(&memory.pool).map_err(fail)
    }
}

/// Gives the socket of a port its owner and mode.
pub(crate) fn give_socket(kind: &PortKind, socket: &SocketRights) -> Result<(), OpenProblem> {
    let Some(path) = kind.own_socket() else { return Ok(()) };
    let own = Rights::own();
    let rights = Rights {
        uid: socket.ids.uid.unwrap_or(own.uid),
        gid: socket.ids.gid.unwrap_or(own.gid),
        mode: socket.mode.unwrap_or(own.mode),
    };
    rights.apply(path).map_err(|error| OpenProblem::SocketRights { path: path.to_owned(), error })
}

const SHRUNK: &str =
    "the guest truncated memory that it shares; it stays disconnected until it connects again";

const UNSHARED: &str = "a guest is connected and its driver has begun, but its memory is not shared with netvm: give QEMU \
                        -object memory-backend-memfd,id=ram,size=…,share=on and -machine memory-backend=ram \
                        (see docs/how-to/vhost-user-guests.md)";

/// Why a guest was disconnected, and the remedy.
fn refused(why: &VhostRefusal) -> String {
    let what = match why {
        VhostRefusal::Protocol => "it sent messages on its socket that violate the protocol".to_owned(),
        VhostRefusal::NotAnEventfd => "its kick or call descriptor is not an eventfd".to_owned(),
        VhostRefusal::ServedMemory { file_system } => {
            let file_system = file_system.as_deref().unwrap_or("a file system that is not mounted here");
            format!(
                "it shares a file on {file_system} as memory, whose page faults could block netvm: use a memfd, or a \
                 file on hugetlbfs or tmpfs (QEMU: -object memory-backend-memfd,share=on)"
            )
        }
    };
    format!("the guest was disconnected: {what} (see docs/how-to/vhost-user-guests.md, Trust)")
}

/// A fault of the guest of an e1000 card.
fn card_fault(fault: netvm_e1000::Fault) -> String {
    format!("the guest's e1000 card: {fault} (see docs/how-to/e1000-guests.md)")
}

/// The interface of a port that is closed.
pub(crate) fn interface_of_closed(config: &PortConfig) -> Option<InterfaceView> {
    if let PortKind::Container(config) = &config.kind {
        let name = format!("{} in {}", config.interface, config.namespace);
        return Some(InterfaceView { name, state: InterfaceState::Gone, mtu: None });
    }
    config.kind.info().interface().map(|name| interface::view(name, None))
}
