// SPDX-License-Identifier: Apache-2.0
//! What a port does with packets besides the rules.

use netvm_ids::{ChainId, PortId, QueueId, RouterId};
use netvm_policy::{Labels, Police, Rate, Span};
use netvm_wire::{IpNet, MacAddr, VlanId};

use crate::engine::PortSnooping;
use crate::router::publish::Publish;
use crate::words::words;

/// Where a port's packets go if they are allowed, by a rule or by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Forward {
    /// Nowhere: they are dropped.
    #[default]
    None,
    /// L2 switching by learnt MAC addresses.
    Normal,
    /// Out of a port.
    Port(PortId),
    /// Into a chain.
    Chain(ChainId),
    /// To a virtual router.
    Router(RouterId),
}

/// The action for packets without a matching terminal rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum AclDefault {
    /// They are allowed.
    #[default]
    Allow,
    /// They are dropped.
    Deny,
}
words!(AclDefault: "allow" => Allow, "deny" => Deny);

/// The VLANs of a port in L2 switching (IEEE 802.1Q).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum VlanMode {
    /// Ignores tags: all packets are in one VLAN without a number, and leave unchanged.
    #[default]
    Unaware,
    /// Untagged: its packets are in this VLAN. Tagged packets are refused.
    Access(VlanId),
    /// Tagged with one of these VLANs.
    Trunk {
        /// The VLANs, each of 1 to 4094.
        vlans: Vec<Span<u16>>,
        /// The VLAN of untagged packets, in addition to `vlans`. `None`: untagged packets are refused.
        native: Option<VlanId>,
    },
}

/// Anti-spoofing: the source addresses that a guest may use.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Guard {
    /// Permitted source MAC addresses; empty: any.
    pub macs: Vec<MacAddr>,
    /// Permitted source addresses of IP and ARP; empty: any.
    pub addresses: Vec<IpNet>,
}

/// A queue of a port's [`QosConfig`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct QueueConfig {
    /// The id of its name, which rules refer to.
    pub id: QueueId,
    /// Its name; queues of several ports may share it.
    pub name: String,
    /// Its code points (RFC 2474); empty: all that no other queue has.
    pub dscp: Vec<Span<u8>>,
    /// Served before the queues after it in the list, and before all queues without priority.
    pub priority: bool,
    /// Its share of the rate that queues with priority do not use.
    pub weight: u16,
    /// Most packets in it.
    pub packets: u32,
    /// Acceptable delay of CoDel in milliseconds (RFC 8289); 0: no CoDel.
    pub codel_ms: u32,
}

/// Egress QoS of a port: a shaper, and its queues.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QosConfig {
    /// The shaper: rate and burst in bits, of frames without FCS.
    pub bits: Rate,
    /// The queues; not empty.
    pub queues: Vec<QueueConfig>,
}

impl Default for QosConfig {
    fn default() -> Self {
        Self { bits: Rate { per_second: 0, burst: 0 }, queues: Vec::new() }
    }
}

/// Most percent of a worker that ports reserve together; the rest is for ports that reserve nothing.
pub const MAX_RESERVED: u8 = 90;

/// Storm control: most received frames per second that L2 switching floods; 0: no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StormLimits {
    /// To ff:ff:ff:ff:ff:ff.
    pub broadcast: u32,
    /// To other group addresses.
    pub multicast: u32,
    /// To addresses that are not learned.
    pub unknown_unicast: u32,
}

impl Default for StormLimits {
    /// Far more than hosts send: a loop of links reaches it within milliseconds.
    fn default() -> Self {
        Self { broadcast: 10_000, multicast: 200_000, unknown_unicast: 200_000 }
    }
}

/// What a port does with packets besides the rules. It changes live.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PortPolicy {
    /// Where allowed received packets go.
    pub forward: Forward,
    /// The action for received packets without a matching terminal rule.
    pub acl_in: AclDefault,
    /// The action for packets to send without a matching terminal rule.
    pub acl_out: AclDefault,
    /// VLANs in L2 switching.
    pub vlan: VlanMode,
    /// Most MAC addresses to learn from the port.
    pub mac_limit: u32,
    /// Storm control.
    pub storm_control: StormLimits,
    /// IGMP and MLD snooping.
    pub multicast: PortSnooping,
    /// Name of its split-horizon group: L2 switching forwards nothing between ports of one group.
    pub split_horizon: Option<String>,
    /// Anti-spoofing.
    pub guard: Option<Guard>,
    /// Limit on received packets; excess packets are dropped.
    pub police_in: Option<Police>,
    /// Limit on packets to send; excess packets are dropped.
    pub police_out: Option<Police>,
    /// Shaper and queues for packets to send.
    pub qos: Option<QosConfig>,
    /// Whether the connections of received packets are tracked; see [`crate::Host::tracks_port`], too.
    pub track: bool,
    /// The zone of these connections: equal addresses of different zones are different connections.
    pub zone: u16,
    /// Its labels, by which rules name it.
    pub labels: Labels,
    /// Ports of its container that routers publish.
    pub publish: Vec<Publish>,
    /// Whether the engine's flow monitor, if configured, counts received packets.
    pub monitor: bool,
    /// Its share, relative to the weights of other ports, of its worker's unreserved time.
    pub weight: u16,
    /// Percent of its worker's time reserved for this port.
    pub reserve: u8,
}

impl PortPolicy {
    /// The queues of its `qos`.
    #[must_use]
    pub fn queues(&self) -> &[QueueConfig] {
        self.qos.as_ref().map_or(&[], |qos| &qos.queues)
    }
}

impl Default for PortPolicy {
    /// No policy besides the rules.
    fn default() -> Self {
        Self {
            forward: Forward::default(),
            acl_in: AclDefault::default(),
            acl_out: AclDefault::default(),
            vlan: VlanMode::default(),
            mac_limit: 4096,
            storm_control: StormLimits::default(),
            multicast: PortSnooping::default(),
            split_horizon: None,
            guard: None,
            police_in: None,
            police_out: None,
            qos: None,
            track: false,
            zone: 0,
            labels: Labels::default(),
            publish: Vec::new(),
            monitor: true,
            weight: 1,
            reserve: 0,
        }
    }
}
