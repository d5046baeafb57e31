// SPDX-License-Identifier: Apache-2.0
//! Ports, which receive and send packets.

use netvm_ids::{GroupId, PortId};
use netvm_wire::MacAddr;

use crate::derived::{derived_mac, names_of};

mod bond;
mod guest;
mod info;
mod keys;
mod kind;
mod managed;
mod memif;
mod policy;
mod source;
mod vxlan;

pub use bond::{BondConfig, BondMode, LacpRate, MAX_MEMBERS};
pub use guest::{CardModel, Doorbells, SocketIds, SocketRights, VhostDma, VhostMode};
pub use info::{Access, GuestCard, KindInfo, OneQueue, Receives, Resource, SendsTo};
pub use keys::{Choice, DaemonLoss, FastPath, Key, KeyValue};
pub use kind::PortKind;
pub use managed::{ContainerConfig, HostConfig};
pub use memif::{MemifConfig, MemifRole};
pub use policy::{
    AclDefault, Forward, Guard, MAX_RESERVED, PortPolicy, QosConfig, QueueConfig, StormLimits, VlanMode,
};
pub use source::SourceConfig;
pub use vxlan::{VxlanConfig, VxlanControl};

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
        let KindInfo { card, mac, word, .. } = self.kind.info();
        let is_emulated = card == Some(GuestCard::E1000);
        is_emulated.then(|| mac.unwrap_or_else(|| derived_mac(names_of(&self.name, word))))
    }

    /// The MAC address of its interface or card, as far as it is known without the machine.
    #[must_use]
    pub fn own_mac(&self) -> Option<MacAddr> {
        let info = self.kind.info();
        self.card_mac().or(info.mac).or_else(|| info.container().map(ContainerConfig::own_mac))
    }

    /// Whether the kernel may pass its packets on by itself.
    #[must_use]
    pub fn has_fast_path(&self) -> bool {
        self.kind.info().fast_path != FastPath::Off
    }

    /// Whether the kernel goes on without netvmd to pass packets between it and others like it.
    #[must_use]
    pub fn continues(&self) -> bool {
        let info = self.kind.info();
        info.fast_path != FastPath::Off && info.on_daemon_loss == DaemonLoss::Continue
    }

    /// Whether packets wait at it: it has a device, or a shaper. Then workers serve it.
    #[must_use]
    pub fn has_queues(&self) -> bool {
        self.kind.info().sends_to.is_none() || self.policy.qos.is_some()
    }

    /// Whether the device and its settings are the same; all other settings can change while the port is
    /// open.
    #[must_use]
    pub fn is_same_device(&self, other: &Self) -> bool {
        let Self { id, name, kind, queues, worker: _, node, mtu, gro, group: _, socket: _, policy: _ } = self;
        (*id, name, kind, *mtu, *gro) == (other.id, &other.name, &other.kind, other.mtu, other.gro)
            && (*queues, *node, self.has_queues()) == (other.queues, other.node, other.has_queues())
    }
}
