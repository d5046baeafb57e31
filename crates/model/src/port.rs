//! Ports, which receive and send packets.

use std::net::IpAddr;
use std::path::PathBuf;

use netvm_ids::{GroupId, PortId};
use netvm_wire::MacAddr;

use crate::derived::{derived_mac, names_of};
use crate::router::InterfaceAddress;
use crate::words::words;

mod policy;
mod socket;

pub use policy::{
    AclDefault, Forward, Guard, MOST_RESERVED, PortPolicy, QosConfig, QueueConfig, StormLimits, VlanMode,
};
pub use socket::{SocketIds, SocketRights};

/// Ethernet's payload, and netvm's default.
pub const DEFAULT_MTU: u16 = 1500;
/// Bytes of Ethernet's header, which a frame has besides the MTU.
pub const FRAME_HEADER: u16 = 14;

/// A port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Its number.
    pub id: PortId,
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: PortKind,
    /// Receive and transmit queues; spread over the workers.
    pub queues: u16,
    /// The worker, by number, that serves all its queues; `None`: the engine chooses one for each.
    pub worker: Option<u8>,
    /// The NUMA node whose workers serve its queues; `None`: the device's, if it has one.
    pub node: Option<u32>,
    /// Longest frame in bytes without FCS, minus 14.
    pub mtu: u16,
    /// Generic receive offload: received TCP segments and UDP datagrams of a flow are coalesced.
    pub gro: bool,
    /// The group into whose memory packets are received, by number; `None`: the group of the first chain that
    /// its packets may take, else the engine's own memory.
    pub group: Option<GroupId>,
    /// Who may connect to its socket, if it creates one.
    pub socket: SocketRights,
    /// What the port does with packets besides the rules.
    pub policy: PortPolicy,
}

impl PortConfig {
    /// A port with the defaults of all other settings.
    #[must_use]
    pub fn new(id: PortId, name: impl Into<String>, kind: PortKind) -> Self {
        let (name, socket, policy) = (name.into(), SocketRights::default(), PortPolicy::default());
        let (worker, node, group) = (None, None, None);
        Self { id, name, kind, queues: 1, worker, node, mtu: DEFAULT_MTU, gro: false, group, socket, policy }
    }

    /// The MAC address of the guest's card, for ports that emulate a card.
    #[must_use]
    pub fn card_mac(&self) -> Option<MacAddr> {
        let PortKind::E1000 { mac, .. } = &self.kind else { return None };
        Some(mac.unwrap_or_else(|| derived_mac(names_of(&self.name, self.kind.word()))))
    }

    /// Whether the device and its settings are the same; all other settings can change while the port is
    /// open.
    #[must_use]
    pub fn is_same_device(&self, other: &Self) -> bool {
        let Self { id, name, kind, queues, worker: _, node, mtu, gro, group: _, socket: _, policy: _ } = self;
        (*id, name, kind, *mtu, *gro) == (other.id, &other.name, &other.kind, other.mtu, other.gro)
            && (*queues, *node) == (other.queues, other.node)
    }
}

/// The kinds of port.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Built-in sink: receives nothing; sent packets are counted and discarded.
    Sink,
}

impl PortKind {
    /// The socket that the port creates, to which a guest connects.
    #[must_use]
    pub const fn own_socket(&self) -> Option<&PathBuf> {
        match self {
            Self::VhostUser { path, mode: VhostMode::Server, .. } | Self::E1000 { path, .. } => Some(path),
            _ => None,
        }
    }

    /// The word in the configuration.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Pci { .. } => "pci",
            Self::AfXdp { .. } => "af_xdp",
            Self::AfPacket { .. } => "af_packet",
            Self::Tap { .. } => "tap",
            Self::Container(_) => "container",
            Self::Host(_) => "host",
            Self::VhostUser { .. } => "vhost-user",
            Self::E1000 { .. } => "e1000",
            Self::Pcap { .. } => "pcap",
            Self::Null { .. } => "null",
            Self::Source(_) => "source",
            Self::Patch { .. } => "patch",
            Self::Sink => "sink",
        }
    }

    /// Whether the device stays open while its packets begin to land in another group's memory. The others register the
    /// memory with their device: a NIC's queues, an AF_XDP socket's UMEM.
    #[must_use]
    pub const fn receives_into_any_memory(&self) -> bool {
        !matches!(self, Self::Pci { .. } | Self::AfXdp { .. } | Self::Null { .. })
    }

    /// Each kind, with the defaults of its keys.
    #[must_use]
    pub fn all() -> [Self; 13] {
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
            Self::Pcap { input: None, output: None, paced: false },
            Self::Null { size: SourceConfig::default().size },
            Self::Source(SourceConfig::default()),
            Self::Patch { peer: PortId::default() },
            Self::Sink,
        ]
    }

    /// The MTU required for frames that the port generates.
    #[must_use]
    pub const fn needed_mtu(&self) -> u16 {
        match self {
            Self::Null { size } | Self::Source(SourceConfig { size, .. }) => {
                size.saturating_sub(FRAME_HEADER)
            }
            _ => 0,
        }
    }
}

/// A guest's network card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CardModel {
    /// Intel 82540EM: INTx, and drivers since 2002.
    #[default]
    E1000,
    /// Intel 82574L: MSI-X, and drivers since 2008.
    E1000e,
}

words!(CardModel: "e1000" => E1000, "e1000e" => E1000e);

/// How the doorbells of a guest's card, TDT and RDT, reach the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Doorbells {
    /// `Posted` for an 82540EM if this machine has no KVM, else `Mapped`.
    #[default]
    Auto,
    /// The guest maps them, which takes KVM or MSI-X.
    Mapped,
    /// By messages that the guest does not wait for.
    Posted,
}

words!(Doorbells: "auto" => Auto, "mapped" => Mapped, "posted" => Posted);

/// The interface of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerConfig {
    /// The network namespace: a name of `ip netns`, the path of its file, or the ID of a process in it.
    pub namespace: String,
    /// Name of the interface there.
    pub interface: String,
    /// Its MAC address; `None`: derived from namespace and name, and so always the same.
    pub mac: Option<MacAddr>,
    /// Its addresses.
    pub addresses: Vec<InterfaceAddress>,
    /// Its default gateways, at most one of each address family.
    pub gateways: Vec<IpAddr>,
}

impl Default for ContainerConfig {
    fn default() -> Self {
        Self {
            namespace: String::new(),
            interface: "eth0".to_owned(),
            mac: None,
            addresses: Vec::new(),
            gateways: Vec::new(),
        }
    }
}

impl ContainerConfig {
    /// The namespace's file.
    #[must_use]
    pub fn namespace_file(&self) -> PathBuf {
        let text = &self.namespace;
        if text.starts_with('/') {
            PathBuf::from(text)
        } else if text.bytes().all(|byte| byte.is_ascii_digit()) {
            PathBuf::from(format!("/proc/{text}/ns/net"))
        } else {
            PathBuf::from("/run/netns").join(text)
        }
    }

    /// The interface's MAC address.
    #[must_use]
    pub fn own_mac(&self) -> MacAddr {
        self.mac.unwrap_or_else(|| derived_mac(names_of(&self.namespace, &self.interface)))
    }
}

/// The host's own interface on the switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostConfig {
    /// Name of the interface.
    pub interface: String,
    /// Its MAC address; `None`: derived from the machine and the interface's name, and so always the same.
    pub mac: Option<MacAddr>,
    /// Its addresses.
    pub addresses: Vec<InterfaceAddress>,
    /// Default gateways of the host, at most one of each address family.
    pub gateways: Vec<IpAddr>,
}

impl HostConfig {
    /// The interface's MAC address. `machine`: what no other machine has, such as `/etc/machine-id`, as hosts with the same
    /// configuration may meet on one network.
    #[must_use]
    pub fn mac_on(&self, machine: &str) -> MacAddr {
        self.mac.unwrap_or_else(|| derived_mac(names_of(machine, &self.interface)))
    }
}

/// Which side creates the socket of a [`PortKind::VhostUser`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VhostMode {
    /// netvm: the guest connects.
    #[default]
    Server,
    /// The guest: netvm connects, and again whenever the guest restarts.
    Client,
}
words!(VhostMode: "server" => Server, "client" => Client);

/// What copies packets to the guest of a [`PortKind::VhostUser`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum VhostDma {
    /// The CPU.
    #[default]
    Off,
    /// A DMA engine that no other port uses, else the CPU.
    Auto,
    /// A DMA engine, by its name in DPDK.
    Device(String),
}

impl VhostDma {
    /// The word, or the device's name, in the configuration.
    #[must_use]
    pub fn word(&self) -> &str {
        match self {
            Self::Off => "off",
            Self::Auto => "auto",
            Self::Device(name) => name,
        }
    }
}

/// The traffic of a [`PortKind::Source`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceConfig {
    /// Length of the frames in bytes, without FCS (64-byte Ethernet frames: 60).
    pub size: u16,
    /// How many flows (UDP 5-tuples).
    pub flows: u32,
    /// Packets per second; `None`: as fast as possible.
    pub rate: Option<u64>,
    /// Packets that a source with a rate sends at once, when they are due.
    pub burst: u16,
    /// Wait for room at the chain's entry instead of losing packets.
    pub lossless: bool,
    /// Stop after this many packets.
    pub count: Option<u64>,
}

impl Default for SourceConfig {
    /// The shortest Ethernet frames, one flow, as fast as possible.
    fn default() -> Self {
        Self { size: 60, flows: 1, rate: None, burst: 1, lossless: false, count: None }
    }
}
