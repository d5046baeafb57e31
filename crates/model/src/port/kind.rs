// SPDX-License-Identifier: Apache-2.0
//! The table of the kinds of port: their keys with the defaults, and what each says of itself. The engine opens them
//! (`interface/`); nothing else matches on kinds.

use std::path::{Path, PathBuf};

use netvm_ids::{PortId, RouterId};
use netvm_wire::{MacAddr, VlanId};

use super::bond::BondConfig;
use super::guest::{CardModel, Doorbells, VhostDma, VhostMode};
use super::info::{Access, GuestCard, KindInfo, OneQueue, Receives, Resource, SendsTo};
use super::keys::{Key, KeyValue};
use super::managed::{ContainerConfig, HostConfig};
use super::memif::MemifConfig;
use super::source::SourceConfig;
use super::vxlan::VxlanConfig;
use super::{DEFAULT_MTU, FRAME_HEADER};

/// Bytes that the kernel leaves free in front of a packet in an AF_XDP chunk (`XDP_PACKET_HEADROOM`).
const XDP_PACKET_HEADROOM: u32 = 256;

/// The kinds of port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PortKind {
    /// A physical NIC by PCI address, driven by DPDK.
    Pci {
        /// Such as `0000:3b:00.0`.
        address: String,
    },
    /// A kernel interface by AF_XDP: the kernel writes packets into the region itself.
    AfXdp {
        /// Name of the interface.
        interface: String,
        /// Generic (skb) mode, even where the driver supports native mode.
        generic: bool,
    },
    /// A kernel interface by packet sockets.
    AfPacket {
        /// Name of the interface.
        interface: String,
    },
    /// A TAP interface that the port creates.
    Tap {
        /// Name of the interface.
        interface: String,
    },
    /// An interface that the port creates in another network namespace, such as a container's.
    Container(ContainerConfig),
    /// An interface that the port creates in netvmd's own network namespace: the host's own place on the switch.
    Host(HostConfig),
    /// A guest, over a vhost-user socket.
    VhostUser {
        /// The socket.
        path: PathBuf,
        /// Which side creates it.
        mode: VhostMode,
        /// What copies packets to the guest.
        dma: VhostDma,
    },
    /// A guest, by an Intel network card (e1000) over a vfio-user socket that the port creates.
    E1000 {
        /// The socket.
        path: PathBuf,
        /// The card's MAC address; `None`: derived from the port's name, and so always the same.
        mac: Option<MacAddr>,
        /// The card.
        model: CardModel,
        /// How its doorbells reach the engine.
        doorbells: Doorbells,
    },
    /// A program of DPDK, VPP or others, over memory that it shares by a memif socket.
    Memif(MemifConfig),
    /// Reads a capture, writes a capture.
    Pcap {
        /// The capture to read; `None`: the port receives nothing.
        input: Option<PathBuf>,
        /// The capture to write; `None`: sent packets are discarded.
        output: Option<PathBuf>,
        /// Replay by the capture's time stamps, not as fast as possible.
        paced: bool,
    },
    /// DPDK's null device: packets from nowhere to nowhere, as fast as possible.
    Null {
        /// Length of received frames in bytes.
        size: u16,
    },
    /// Built-in traffic source; sent packets are discarded.
    Source(SourceConfig),
    /// A link to another port of netvm, without a device: each end receives what the other sends.
    Patch {
        /// The other port, whose peer is this port.
        peer: PortId,
    },
    /// An interface of L2 switching itself (an SVI or BVI): it receives what is switched to its router, and what it
    /// sends is switched.
    Bridge,
    /// The packets of another port that have a VLAN tag, without it (a VLAN sub-interface).
    Vlan {
        /// The other port.
        parent: PortId,
        /// The outer tag.
        tag: VlanId,
    },
    /// A network that several servers share (VXLAN): what it sends goes to the others in UDP datagrams.
    Vxlan(VxlanConfig),
    /// Other ports joined to one link (a bond, a link aggregation group).
    Bond(BondConfig),
    /// Built-in sink: receives nothing; sent packets are counted and discarded.
    #[default]
    Sink,
}

impl PortKind {
    /// What the kind says of itself.
    #[must_use]
    pub fn info(&self) -> KindInfo<'_> {
        match self {
            Self::Pci { address } => KindInfo {
                resources: [Some(Resource::PciDevice(address)), None],
                registers_memory: true,
                has_one_memory: true,
                ..KindInfo::new("pci")
            },
            Self::AfXdp { interface, .. } => KindInfo {
                resources: [Some(Resource::Interface(interface, Access::Xdp)), None],
                registers_memory: true,
                kernel_headroom: XDP_PACKET_HEADROOM,
                takes_buffers: true,
                ..KindInfo::new("af_xdp")
            },
            Self::AfPacket { interface } => KindInfo {
                resources: [Some(Resource::Interface(interface, Access::PacketSocket)), None],
                ..KindInfo::new("af_packet")
            },
            Self::Tap { interface } => {
                KindInfo { resources: [Some(Resource::Tap(interface)), None], ..KindInfo::new("tap") }
            }
            Self::Container(container) => KindInfo {
                resources: [Some(Resource::ContainerTap(container)), None],
                mac: container.mac,
                addresses: &container.addresses,
                fast_path: container.fast_path,
                on_daemon_loss: container.on_daemon_loss,
                ..KindInfo::new("container")
            },
            Self::Host(host) => KindInfo {
                resources: [Some(Resource::Tap(&host.interface)), None],
                mac: host.mac,
                addresses: &host.addresses,
                fast_path: host.fast_path,
                ..KindInfo::new("host")
            },
            Self::VhostUser { path, mode, .. } => KindInfo {
                resources: [
                    Some(match mode {
                        VhostMode::Server => Resource::OwnSocket(path),
                        VhostMode::Client => Resource::PeerSocket(path),
                    }),
                    None,
                ],
                card: Some(GuestCard::VirtioNet),
                ..KindInfo::new("vhost-user")
            },
            Self::E1000 { path, mac, model, doorbells } => KindInfo {
                resources: [Some(Resource::OwnSocket(path)), None],
                card: Some(GuestCard::E1000),
                mac: *mac,
                depends_on_kvm: *doorbells == Doorbells::Auto && *model == CardModel::E1000,
                one_queue: Some(OneQueue {
                    what: "an e1000 card",
                    help: "the card has one queue in each direction: leave `queues` out",
                }),
                ..KindInfo::new("e1000")
            },
            Self::Memif(memif) => memif.info(),
            Self::Pcap { input, output, paced } => KindInfo {
                resources: [input.as_deref().map(Resource::Input), output.as_deref().map(Resource::Output)],
                receives: if input.is_some() { Receives::Packets } else { Receives::Nothing },
                waits_for_room: !paced,
                one_queue: Some(OneQueue {
                    what: "a capture",
                    help: "one worker reads and writes a capture, which keeps its packets in order: leave `queues` out",
                }),
                ..KindInfo::new("pcap")
            },
            Self::Null { size } => KindInfo {
                receives: Receives::Zeros,
                registers_memory: true,
                has_one_memory: true,
                needed_mtu: size.saturating_sub(FRAME_HEADER),
                ..KindInfo::new("null")
            },
            Self::Source(source) => KindInfo {
                waits_for_room: source.lossless,
                needed_mtu: source.size.saturating_sub(FRAME_HEADER),
                ..KindInfo::new("source")
            },
            Self::Patch { peer } => KindInfo::without_device("patch", SendsTo::Peer(*peer)),
            Self::Bridge => KindInfo::without_device("bridge", SendsTo::Bridge),
            Self::Vlan { parent, tag } => {
                KindInfo::without_device("vlan", SendsTo::Parent { port: *parent, tag: *tag })
            }
            Self::Vxlan(vxlan) => KindInfo {
                default_mtu: DEFAULT_MTU - vxlan.overhead(),
                tunnel: Some(vxlan),
                ..KindInfo::without_device("vxlan", SendsTo::Tunnel(vxlan.router))
            },
            Self::Bond(bond) => KindInfo {
                bond: Some(bond),
                mac: bond.mac,
                ..KindInfo::without_device("bond", SendsTo::Member)
            },
            Self::Sink => {
                KindInfo { receives: Receives::Nothing, is_on_each_worker: true, ..KindInfo::new("sink") }
            }
        }
    }

    /// The keys that go with the kind, in the order in which they are written.
    pub fn own_keys(&mut self) -> Vec<Key<'_>> {
        match self {
            Self::Pci { address } => {
                let help = "name the device, such as `address = \"0000:3b:00.0\"` (see `lspci -D`)";
                vec![Key::required("address", help, KeyValue::PciAddress(address))]
            }
            Self::AfXdp { interface, generic } => {
                vec![Key::interface(interface), Key::new("generic", KeyValue::Flag(generic))]
            }
            Self::AfPacket { interface } | Self::Tap { interface } => vec![Key::interface(interface)],
            Self::Container(container) => container.keys(),
            Self::Host(host) => host.keys(),
            Self::VhostUser { path, mode, dma } => vec![
                Key::socket(path),
                Key::new("mode", KeyValue::Word(mode)),
                Key::new("dma", KeyValue::Dma(dma)),
            ],
            Self::E1000 { path, mac, model, doorbells } => vec![
                Key::socket(path),
                Key::new("mac", KeyValue::Mac(mac)),
                Key::new("model", KeyValue::SparseWord(model)),
                Key::new("doorbells", KeyValue::SparseWord(doorbells)),
            ],
            Self::Memif(memif) => memif.keys(),
            Self::Pcap { input, output, paced } => vec![
                Key::new("input", KeyValue::Captures(input, output)),
                Key::new("paced", KeyValue::Flag(paced)),
            ],
            Self::Null { size } => vec![Key::new("size", KeyValue::FrameSize(size))],
            Self::Source(source) => source.keys(),
            Self::Patch { peer } => {
                let help = "name the other end, such as `peer = \"to-blue\"`";
                vec![Key::required("peer", help, KeyValue::Port(peer))]
            }
            Self::Vlan { parent, tag } => {
                let help = "name the port whose packets have the tag, such as `parent = \"uplink\"`";
                vec![
                    Key::required("parent", help, KeyValue::Port(parent)),
                    Key::required(
                        "tag",
                        "give the VLAN of its packets, such as `tag = 10`",
                        KeyValue::Tag(tag),
                    ),
                ]
            }
            Self::Vxlan(vxlan) => vxlan.keys(),
            Self::Bond(bond) => bond.keys(),
            Self::Bridge | Self::Sink => Vec::new(),
        }
    }

    /// Each kind, with the defaults of its keys.
    #[must_use]
    pub fn all() -> [Self; 18] {
        let interface = String::new;
        let (mode, dma) = (VhostMode::default(), VhostDma::default());
        let (model, doorbells) = (CardModel::default(), Doorbells::default());
        [
            Self::Pci { address: String::new() },
            Self::AfXdp { interface: interface(), generic: false },
            Self::AfPacket { interface: interface() },
            Self::Tap { interface: interface() },
            Self::Container(ContainerConfig::default()),
            Self::Host(HostConfig::default()),
            Self::VhostUser { path: PathBuf::new(), mode, dma },
            Self::E1000 { path: PathBuf::new(), mac: None, model, doorbells },
            Self::Memif(MemifConfig::default()),
            Self::Pcap { input: None, output: None, paced: false },
            Self::Null { size: SourceConfig::default().size },
            Self::Source(SourceConfig::default()),
            Self::Patch { peer: PortId::default() },
            Self::Bridge,
            Self::Vlan { parent: PortId::default(), tag: VlanId::DEFAULT },
            Self::Vxlan(VxlanConfig::default()),
            Self::Bond(BondConfig::default()),
            Self::Sink,
        ]
    }

    /// The port at the other end of its link.
    #[must_use]
    pub const fn peer(&self) -> Option<PortId> {
        match self {
            Self::Patch { peer } => Some(*peer),
            _ => None,
        }
    }

    /// The ports that its keys name, to be renumbered.
    pub(crate) fn other_ports_mut(&mut self) -> &mut [PortId] {
        match self {
            Self::Patch { peer } => std::slice::from_mut(peer),
            Self::Vlan { parent, .. } => std::slice::from_mut(parent),
            Self::Bond(bond) => &mut bond.members,
            _ => &mut [],
        }
    }

    /// The router that its keys name, to be renumbered.
    pub(crate) const fn router_mut(&mut self) -> Option<&mut RouterId> {
        match self {
            Self::Vxlan(vxlan) => Some(&mut vxlan.router),
            _ => None,
        }
    }

    /// The word in the configuration.
    #[must_use]
    pub fn word(&self) -> &'static str {
        self.info().word
    }

    /// The socket that the port creates, to which a guest connects.
    #[must_use]
    pub fn own_socket(&self) -> Option<&Path> {
        self.info().socket().filter(|(_, is_own)| *is_own).map(|(path, _)| path)
    }
}
