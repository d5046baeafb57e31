//! What a port does with packets beside the rules.

use netvm_policy::{ChainId, Police, PortId, Rate, RouterId, Span};
use netvm_wire::{IpNet, MacAddr, VlanId};

use crate::words::words;

/// Where packets of a port go that are allowed, by a rule or by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Forward {
    /// Nowhere: they are dropped, as no rule says more.
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

/// What happens to packets that no rule decides on.
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
    /// Tags mean nothing: all of its packets are in one VLAN of no number, and leave as they came.
    #[default]
    Unaware,
    /// Untagged: its packets are in this VLAN. Tagged ones do not come in.
    Access(VlanId),
    /// Tagged with one of these VLANs.
    Trunk {
        /// The VLANs, each of 1 to 4094.
        vlans: Vec<Span<u16>>,
        /// The VLAN whose packets have no tag; it is one of the port's without being named in `vlans`. `None`: packets
        /// without a tag do not come in.
        native: Option<VlanId>,
    },
}

/// What a guest may send as: its own addresses only.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Guard {
    /// Source MAC addresses that it may have; empty: any.
    pub macs: Vec<MacAddr>,
    /// Source addresses of IP and ARP that it may have; empty: any.
    pub addresses: Vec<IpNet>,
}

/// A queue of a port's [`QosConfig`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct QueueConfig {
    /// Its name.
    pub name: String,
    /// Its code points (RFC 2474); empty: those of no other queue.
    pub dscp: Vec<Span<u8>>,
    /// Served before queues behind it in the list, and before all without priority.
    pub priority: bool,
    /// Its share of what queues with priority leave.
    pub weight: u16,
    /// Most packets in it.
    pub packets: u32,
    /// Acceptable delay of CoDel in milliseconds (RFC 8289); 0: no CoDel.
    pub codel_ms: u32,
}

/// What leaves by a port: a shaper, and queues behind it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QosConfig {
    /// The shaper: bits a second, of frames without FCS, and bits at once.
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
pub const MOST_RESERVED: u8 = 90;

/// What a port does with packets besides the rules. It changes live.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PortPolicy {
    /// Where packets go that came in and are allowed.
    pub forward: Forward,
    /// What happens to packets that came in and that no rule decides on.
    pub acl_in: AclDefault,
    /// What happens to packets on their way out that no rule decides on.
    pub acl_out: AclDefault,
    /// VLANs in L2 switching.
    pub vlan: VlanMode,
    /// MAC addresses that are learnt from it.
    pub mac_limit: u32,
    /// Name of its split-horizon group: L2 switching passes nothing between ports of one group.
    pub split_horizon: Option<String>,
    /// Anti-spoofing.
    pub guard: Option<Guard>,
    /// What exceeds this on its way in is dropped.
    pub police_in: Option<Police>,
    /// What exceeds this on its way out is dropped.
    pub police_out: Option<Police>,
    /// Shaper and queues for what leaves.
    pub qos: Option<QosConfig>,
    /// Whether the engine's flow monitor counts what comes in, if it has one.
    pub monitor: bool,
    /// Its part, beside the weights of others, of what its worker has not reserved.
    pub weight: u16,
    /// Percent of its worker that other ports do not take from it.
    pub reserve: u8,
}

impl Default for PortPolicy {
    /// Nothing but what rules say.
    fn default() -> Self {
        Self {
            forward: Forward::default(),
            acl_in: AclDefault::default(),
            acl_out: AclDefault::default(),
            vlan: VlanMode::default(),
            mac_limit: 4096,
            split_horizon: None,
            guard: None,
            police_in: None,
            police_out: None,
            qos: None,
            monitor: true,
            weight: 1,
            reserve: 0,
        }
    }
}
