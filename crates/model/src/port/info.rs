// SPDX-License-Identifier: Apache-2.0
//! What a kind of port says of itself. Checks, the engine, netvmd and the API ask for it; they do not match on kinds.

use std::path::Path;

use netvm_ids::{PortId, RouterId};
use netvm_wire::{MacAddr, VlanId};

use super::DEFAULT_MTU;
use super::bond::BondConfig;
use super::keys::{DaemonLoss, FastPath};
use super::managed::ContainerConfig;
use super::vxlan::VxlanConfig;
use crate::router::InterfaceAddress;

/// What a kind of port says of itself, with its keys.
#[derive(Clone, Copy, Debug)]
pub struct KindInfo<'a> {
    /// The word in the configuration.
    pub word: &'static str,
    /// Where packets go that it sends, if it has no device: they are there in the same turn. So it has no queues,
    /// unless a shaper delays its packets.
    pub sends_to: Option<SendsTo>,
    /// What it joins, if it is a bond.
    pub bond: Option<&'a BondConfig>,
    /// What it needs of this machine.
    pub resources: [Option<Resource<'a>>; 2],
    /// What it receives.
    pub receives: Receives,
    /// Whether its device has the memory registered that packets are received into (a NIC's queues, an AF_XDP socket's
    /// UMEM), and so is closed when they begin to land in another one.
    pub registers_memory: bool,
    /// Whether all its queues receive into one memory, so that one NUMA node has them.
    pub has_one_memory: bool,
    /// Bytes that the kernel leaves free in front of a received packet.
    pub kernel_headroom: u32,
    /// Whether each of its queues takes buffers to receive into beforehand: as many as its share of half the memory is.
    pub takes_buffers: bool,
    /// The MTU required for frames that it generates.
    pub needed_mtu: u16,
    /// The MTU without the key `mtu`.
    pub default_mtu: u16,
    /// Why it has one queue; `None`: it has as many as configured.
    pub one_queue: Option<OneQueue>,
    /// Whether it has a queue on each worker, unless the configuration names one.
    pub is_on_each_worker: bool,
    /// Whether it receives only as many packets as its chains have room for.
    pub waits_for_room: bool,
    /// The network card that it is to a guest.
    pub card: Option<GuestCard>,
    /// The MAC address of its interface or card, if the configuration says it.
    pub mac: Option<MacAddr>,
    /// The addresses of its interface.
    pub addresses: &'a [InterfaceAddress],
    /// Whether it works differently where guests run on KVM.
    pub depends_on_kvm: bool,
    /// Its tunnels to other servers.
    pub tunnel: Option<&'a VxlanConfig>,
    /// Whether the kernel may pass its packets on by itself.
    pub fast_path: FastPath,
    /// What becomes of these packets without netvmd.
    pub on_daemon_loss: DaemonLoss,
}

impl<'a> KindInfo<'a> {
    /// A kind that needs nothing, receives packets, and has as many queues as configured.
    pub(super) const fn new(word: &'static str) -> Self {
        Self {
            word,
            sends_to: None,
            bond: None,
            resources: [None; 2],
            receives: Receives::Packets,
            registers_memory: false,
            has_one_memory: false,
            kernel_headroom: 0,
            takes_buffers: false,
            needed_mtu: 0,
            default_mtu: DEFAULT_MTU,
            one_queue: None,
            is_on_each_worker: false,
            waits_for_room: false,
            card: None,
            mac: None,
            addresses: &[],
            depends_on_kvm: false,
            tunnel: None,
            fast_path: FastPath::Off,
            on_daemon_loss: DaemonLoss::Stop,
        }
    }

    /// A kind without a device.
    pub(super) const fn without_device(word: &'static str, sends_to: SendsTo) -> Self {
        let one_queue = OneQueue {
            what: "a port without a device",
            help: "packets pass it without a queue: leave `queues` out",
        };
        Self { sends_to: Some(sends_to), one_queue: Some(one_queue), ..Self::new(word) }
    }

    /// Whether a port stays open when its packets begin to land in another memory.
    #[must_use]
    pub const fn changes_memory(self) -> bool {
        !self.registers_memory && self.sends_to.is_none()
    }

    /// What it needs of this machine.
    pub fn resources(self) -> impl Iterator<Item = Resource<'a>> {
        self.resources.into_iter().flatten()
    }

    /// Its interface in netvmd's network namespace.
    #[must_use]
    pub fn interface(self) -> Option<&'a str> {
        self.resources().find_map(|resource| match resource {
            Resource::Interface(name, _) | Resource::Tap(name) => Some(name),
            _ => None,
        })
    }

    /// Its interface in another network namespace.
    #[must_use]
    pub fn container(self) -> Option<&'a ContainerConfig> {
        self.resources().find_map(|resource| match resource {
            Resource::ContainerTap(container) => Some(container),
            _ => None,
        })
    }

    /// The socket by which it is connected to a guest or a program, and whether the port creates it.
    #[must_use]
    pub fn socket(self) -> Option<(&'a Path, bool)> {
        self.resources().find_map(|resource| match resource {
            Resource::OwnSocket(path) => Some((path, true)),
            Resource::PeerSocket(path) | Resource::PeerInterface(path, _) => Some((path, false)),
            _ => None,
        })
    }
}

/// Something of this machine that a port needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource<'a> {
    /// A PCI device, by its address.
    PciDevice(&'a str),
    /// A kernel interface, which exists.
    Interface(&'a str, Access),
    /// A TAP interface, which the port creates unless it exists.
    Tap(&'a str),
    /// A TAP interface that the port creates in another network namespace.
    ContainerTap(&'a ContainerConfig),
    /// A socket that the port creates, to which a guest connects.
    OwnSocket(&'a Path),
    /// A socket that a guest creates, to which the port connects.
    PeerSocket(&'a Path),
    /// One interface, by its number, of a socket that a program creates, to which the port connects.
    PeerInterface(&'a Path, u32),
    /// A capture to read.
    Input(&'a Path),
    /// A capture to write.
    Output(&'a Path),
}

/// How a port gets the packets of a kernel interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// AF_XDP: the port takes them from the kernel. Each of its queues needs a queue of the interface.
    Xdp,
    /// Packet sockets: the port gets copies.
    PacketSocket,
}

/// Where packets go that a port without a device sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendsTo {
    /// Another such port receives them.
    Peer(PortId),
    /// L2 switching, whose own interface the port is.
    Bridge,
    /// Another port sends them with this tag.
    Parent {
        /// The port, which also receives the packets with the tag.
        port: PortId,
        /// The tag.
        tag: VlanId,
    },
    /// Other servers, by this router.
    Tunnel(RouterId),
    /// One of its members sends them (a bond).
    Member,
}

/// What a port receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receives {
    /// Packets, which rules or `forward` should handle.
    Packets,
    /// Frames of zeros, for measurements.
    Zeros,
    /// Nothing.
    Nothing,
}

/// A network card that a guest has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestCard {
    /// The guest's hypervisor emulates it, tells the guest its MTU, and chooses its MAC address.
    VirtioNet,
    /// The port emulates it.
    E1000,
}

/// A kind of port with one queue in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OneQueue {
    /// What it is, in a sentence: "a capture".
    pub what: &'static str,
    /// Why, and the remedy.
    pub help: &'static str,
}
