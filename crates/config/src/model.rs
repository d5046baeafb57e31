//! The model that netvmd and the engine run. A [`Host`] from [`crate::load`] is consistent: names are unique, references
//! resolve, limits hold.
//!
//! # Numbers
//!
//! Groups, ports, NFs, routers, chains, rules and names of queues have a number (`id`), by which others refer to them. **Their
//! position in a `Vec` is only the order of the file**; for rules, the order also decides which one matches
//! first. Look an item up with [`Host::group`], [`Host::port`], [`Host::nf`], [`Host::router`] or
//! [`Host::chain`]. [`crate::load`] numbers from 0 in the order of the file. Before a new host replaces a
//! running one, [`crate::assign_ids`] gives each item that the running host has by name (a rule without a
//! name: by content) the number that it has there. New items get numbers that the running host does not use,
//! if possible. Therefore:
//!
//! - an item that stays keeps its number in shared tables, descriptors and statistics;
//! - numbers may have gaps, but stay below their limit ([`MAX_PORTS`] and so on): index an array of that size, or keep a
//!   map;
//! - a renamed item is a removed one and a new one.

use std::borrow::Cow;

pub use netvm_ids::{
    ChainId, GroupId, MAX_CHAINS, MAX_GROUP_THREADS, MAX_GROUPS, MAX_HOPS, MAX_NODES, MAX_PORTS,
    MAX_QUEUE_NAMES, MAX_REPLICAS, MAX_ROLES, MAX_ROUTERS, MAX_RULES, MAX_SET, MAX_THREADS, MAX_TX_QUEUES,
    MAX_VMS, MAX_WORKERS, NAME_BYTES, PortId, QueueId, RoleId, RouterId, RuleId,
};
use netvm_policy::Names;
pub use netvm_policy::{Action, Actions, Masked, Match, Police, Rate, Rule, RuleParts, SetVlan, Span};
use netvm_wire::MacAddr;

mod engine;
mod landing;
mod nf;
mod port;
mod port_policy;
mod router;
mod socket;
mod vm;

pub use engine::{
    ApiConfig, EngineConfig, Eviction, FlowCacheConfig, FlowMonitorConfig, Group, Idle, MonitorTable,
    PolicyConfig, SwitchConfig,
};
pub use nf::{Balance, Chain, DEFAULT_HANG_TIMEOUT, NfConfig, NfLimits, NfStart, OnFailure, Output};
pub use port::{
    CardModel, ContainerConfig, Doorbells, HostConfig, PortConfig, PortKind, SourceConfig, VhostDma,
    VhostMode,
};
pub(crate) use port::{DEFAULT_MTU, FRAME_HEADER};
pub use port_policy::{
    AclDefault, Forward, Guard, MOST_RESERVED, PortPolicy, QosConfig, QueueConfig, StormLimits, VlanMode,
};
pub(crate) use router::add_punt_ports;
pub use router::{
    InterfaceAddress, PUNT_RATE, ParseInterfaceAddressError, RouteTarget, RouterConfig, RouterInterface,
    StaticRoute, Urpf,
};
pub use socket::{SocketIds, SocketRights};
pub use vm::{Guest, Restart, VmAccel, VmBoot, VmCard, VmConfig, VmNotify, VmStart};

/// The word for the ingress port in a chain's `output`.
pub(crate) const INGRESS: &str = "ingress";

/// Everything that one netvmd runs.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Host {
    /// Cores, idle behaviour, memory pages, flow cache.
    pub engine: EngineConfig,
    /// How the API is served besides its Unix socket.
    pub api: ApiConfig,
    /// L2 switching as a whole.
    pub switch: SwitchConfig,
    /// The policy as a whole.
    pub policy: PolicyConfig,
    /// Trust groups, in the order of the file.
    pub groups: Vec<Group>,
    /// Ports, in the order of the file, then the punt ports of the routers' interfaces.
    pub ports: Vec<PortConfig>,
    /// Network functions, in the order of the file.
    pub nfs: Vec<NfConfig>,
    /// Virtual machines, in the order of the file.
    pub vms: Vec<VmConfig>,
    /// Virtual routers, in the order of the file.
    pub routers: Vec<RouterConfig>,
    /// Chains, in the order of the file.
    pub chains: Vec<Chain>,
    /// Rules, in the order of the file: the first that matches and has a terminal action decides.
    pub rules: Vec<Rule>,
}

/// FNV-1a of 64 bits (draft-eastlake-fnv, section 2): the same on every machine and in every version.
fn stable_hash(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The names of an interface and of its owner, as bytes that differ for different names.
pub(crate) fn names_of(owner: &str, interface: &str) -> impl Iterator<Item = u8> {
    owner.bytes().chain([0]).chain(interface.bytes())
}

/// A locally administered MAC address derived from a name.
pub(crate) fn derived_mac(name: impl Iterator<Item = u8>) -> MacAddr {
    let [a, b, c, d, e, ..] = stable_hash(name).to_be_bytes();
    MacAddr([0x02, a, b, c, d, e])
}

macro_rules! lookups {
    ($($what:literal: $list:ident of $item:ident, $by_id:ident($id:ident), $by_name:ident($name:ident);)*) => {$(
        impl Host {
            #[doc = concat!("The ", $what, " with this number.")]
            #[must_use]
            pub fn $by_id(&self, id: $id) -> Option<&$item> {
                self.$list.iter().find(|item| item.id == id)
            }

            #[doc = concat!("The ", $what, " with this name.")]
            #[must_use]
            pub fn $by_name(&self, name: &str) -> Option<&$item> {
                self.$list.iter().find(|item| item.$name == name)
            }
        }
    )*};
}
lookups! {
    "trust group": groups of Group, group(GroupId), group_named(name);
    "port": ports of PortConfig, port(PortId), port_named(name);
    "NF": nfs of NfConfig, nf(RoleId), nf_named(role);
    "chain": chains of Chain, chain(ChainId), chain_named(name);
    "virtual router": routers of RouterConfig, router(RouterId), router_named(name);
}

impl Host {
    /// The queues of all ports.
    pub fn queues(&self) -> impl Iterator<Item = &QueueConfig> {
        self.ports.iter().flat_map(|port| port.policy.queues())
    }

    /// A queue with the name of this number; other ports may have one too.
    #[must_use]
    pub fn queue(&self, id: QueueId) -> Option<&QueueConfig> {
        self.queues().find(|queue| queue.id == id)
    }

    /// The virtual machine with this name.
    #[must_use]
    pub fn vm_named(&self, name: &str) -> Option<&VmConfig> {
        self.vms.iter().find(|vm| vm.name == name)
    }

    /// Whether a virtual machine of this host and everything that it uses are the same in another host.
    #[must_use]
    pub fn has_same_vm(&self, vm: &VmConfig, other: &Self) -> bool {
        let is_same = match &vm.guest {
            Guest::Nf { role, .. } => self.nf(*role) == other.nf(*role),
            Guest::Ordinary { cards } => {
                cards.iter().all(|card| self.port(card.port) == other.port(card.port))
            }
        };
        is_same && other.vm_named(&vm.name) == Some(vm)
    }

    /// The router and the interface with this punt port.
    #[must_use]
    pub fn punted_by(&self, port: PortId) -> Option<(&RouterConfig, &RouterInterface)> {
        self.routers.iter().find_map(|router| Some((router, router.punted_by(port)?)))
    }

    /// The router whose share of workers includes this port.
    #[must_use]
    pub fn sharing_router(&self, port: PortId) -> Option<&RouterConfig> {
        let mut sharing = self.routers.iter().filter(|router| router.has_share());
        sharing.find(|router| router.ports().any(|own| own == port))
    }

    /// Threads of all virtual machines of a role.
    #[must_use]
    pub fn vm_threads(&self, of: RoleId) -> usize {
        let threads = |vm: &VmConfig| match vm.guest {
            Guest::Nf { role, threads, .. } if role == of => usize::from(threads),
            _ => 0,
        };
        self.vms.iter().map(threads).sum()
    }

    /// The rules for packets that a port receives, in their order.
    pub fn rules_from(&self, port: PortId) -> impl Iterator<Item = &Rule> {
        self.rules.iter().filter(move |rule| is_from(rule, port))
    }

    /// The chains that packets of a port may take: by rules, then by its `forward`. A chain may occur several times.
    pub fn chains_from(&self, port: &PortConfig) -> impl Iterator<Item = &Chain> {
        self.chains_by(&self.rules, port)
    }

    /// As [`Host::chains_from`] by some of the rules: at least those whose terminal action is a chain.
    pub fn chains_by<'a>(
        &'a self,
        rules: &'a [Rule],
        port: &PortConfig,
    ) -> impl Iterator<Item = &'a Chain> + use<'a> {
        let id = port.id;
        let by_rule = rules.iter().filter_map(move |rule| match rule.actions.terminal {
            Some(Action::Chain(chain)) if is_from(rule, id) => Some(chain),
            _ => None,
        });
        let forward = match port.policy.forward {
            Forward::Chain(id) => Some(id),
            _ => None,
        };
        by_rule.chain(forward).filter_map(|id| self.chain(id))
    }
}

/// Whether a rule matches packets that a port receives.
fn is_from(rule: &Rule, port: PortId) -> bool {
    let from = &rule.matches.from;
    !rule.matches.is_egress() && (from.is_empty() || from.contains(&port))
}

/// The names that rules print.
impl Names for Host {
    fn port(&self, port: PortId) -> Cow<'_, str> {
        Self::port(self, port).map_or_else(|| Cow::Owned(format!("port {port}")), |port| (&*port.name).into())
    }

    fn chain(&self, chain: ChainId) -> Cow<'_, str> {
        Self::chain(self, chain)
            .map_or_else(|| Cow::Owned(format!("chain {chain}")), |chain| (&*chain.name).into())
    }

    fn router(&self, router: RouterId) -> Cow<'_, str> {
        let known = Self::router(self, router);
        known.map_or_else(|| Cow::Owned(format!("router {router}")), |router| (&*router.name).into())
    }

    fn queue(&self, queue: QueueId) -> Cow<'_, str> {
        let known = Self::queue(self, queue);
        known.map_or_else(|| Cow::Owned(format!("queue {queue}")), |queue| (&*queue.name).into())
    }
}
