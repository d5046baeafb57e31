//! What workers work by: one immutable snapshot of ports, chains and steering, replaced as a whole.

use std::sync::Arc;

use netvm_config::model::RouterId;
use netvm_region::{MAX_PORTS, Sticky};

use crate::drop_reason::DropReason;
use crate::ids::{ChainId, GroupId, LinkId, PortId};
use crate::policy::{DecisionCounters, Policy};
use crate::router::RouterPath;

/// How one of several replicas is chosen.
#[derive(Clone, Debug)]
pub(crate) enum Choice {
    /// The one whose ring holds the fewest packets.
    LeastOccupied,
    /// By the flow's hash.
    FlowHash,
    /// The one that the flow has had, by this table of the worker's.
    Sticky(Arc<Sticky>),
}

/// Where a packet goes that enters a hop.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// To one of these links, whose NFs are at `hop`.
    Links {
        /// The group of these NFs.
        group: GroupId,
        /// Position in the chain.
        hop: u8,
        /// How one is chosen.
        choice: Choice,
        /// The replicas; not empty.
        links: Box<[LinkId]>,
    },
    /// Out of a port: the chain is done.
    Port(PortId),
    /// Out of the port it came in by.
    Ingress,
    /// To L2 switching.
    Normal,
    /// To a virtual router.
    Router(RouterId),
    /// Nowhere.
    Drop(DropReason),
}

/// A chain as the workers see it.
#[derive(Clone, Debug)]
pub(crate) struct ChainPath {
    /// Where packets enter: the first hop's target, or a drop while a hop has no NF and the policy is to drop.
    pub(crate) entry: Target,
    /// For each hop, and one beyond the last: where packets go that enter it.
    pub(crate) targets: Vec<Target>,
    /// For each hop, the group of its NFs.
    pub(crate) groups: Vec<GroupId>,
    /// For each hop, the role.
    pub(crate) roles: Vec<u16>,
    /// A hop chooses replicas by the flow's hash: descriptors carry it.
    pub(crate) hashed: bool,
    /// Groups whose backpressure words stop the chain's entry, with the memory that holds the words.
    pub(crate) watched: Vec<crate::ids::MemoryId>,
    /// For each hop, the seconds for which what its NF says of flows holds at most; 0: it has no say in them.
    pub(crate) longest: Vec<u16>,
    /// Links of later hops to which the engine hands packets of another trust group.
    pub(crate) crossings: Vec<LinkId>,
}

impl ChainPath {
    /// Whether an NF of `group` can be at `hop`.
    #[inline(always)]
    pub(crate) fn has(&self, hop: u8, group: GroupId) -> bool {
        self.groups.get(usize::from(hop)) == Some(&group)
    }

    /// Whether an NF of it has a say in flows.
    pub(crate) fn has_words(&self) -> bool {
        self.longest.iter().any(|seconds| *seconds > 0)
    }
}

/// A chain that is another without some of its hops, for flows of which the NFs there have said: skip me.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shortened {
    /// Its number, in descriptors and tables.
    pub(crate) id: ChainId,
    /// The one of the configuration.
    pub(crate) of: ChainId,
    /// The hops that are left out, a bit each.
    pub(crate) without: u16,
}

/// Some ports, a bit each.
#[derive(Clone, Debug, Default)]
pub(crate) struct PortBits([u64; MAX_PORTS / 64]);

impl PortBits {
    #[inline(always)]
    pub(crate) fn has(&self, port: PortId) -> bool {
        self.0.get(port.index() / 64).is_some_and(|word| word >> (port.0 % 64) & 1 == 1)
    }

    pub(crate) fn add(&mut self, port: PortId) {
        if let Some(word) = self.0.get_mut(port.index() / 64) {
            *word |= 1 << (port.0 % 64);
        }
    }
}

/// All of it. Vectors are indexed by number; `None` where there is no such thing.
#[derive(Clone, Default)]
pub(crate) struct Snapshot {
    /// What packets are looked up in.
    pub(crate) policy: Arc<Policy>,
    /// How often each decision was taken by the worker whose snapshot this is.
    pub(crate) hits: Arc<[DecisionCounters]>,
    /// Ports that there are, a bit each.
    pub(crate) ports: PortBits,
    /// Those whose packets may get to an NF that has a say in flows.
    pub(crate) heeded: PortBits,
    /// The chains that others are without some hops; each is among `chains`, too.
    pub(crate) shortened: Vec<Shortened>,
    pub(crate) chains: Vec<Option<ChainPath>>,
    pub(crate) roles: Vec<Option<Target>>,
    /// The ports that NFs of each group may name.
    pub(crate) groups: Vec<Option<PortBits>>,
    pub(crate) routers: Box<[Option<Arc<RouterPath>>]>,
}

impl Snapshot {
    #[inline(always)]
    pub(crate) fn chain(&self, chain: ChainId) -> Option<&ChainPath> {
        self.chains.get(chain.index())?.as_ref()
    }

    #[inline(always)]
    pub(crate) fn router(&self, router: RouterId) -> Option<&RouterPath> {
        self.routers.get(router.index())?.as_deref()
    }

    #[inline(always)]
    pub(crate) fn group(&self, group: GroupId) -> Option<&PortBits> {
        self.groups.get(group.index())?.as_ref()
    }
}

/// Puts a value at its number's place in a list that is indexed by it.
pub(crate) fn put<T>(list: &mut Vec<Option<T>>, index: usize, value: T) {
    if list.len() <= index {
        list.resize_with(index + 1, || None);
    }
    list[index] = Some(value);
}
