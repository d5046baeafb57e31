// SPDX-License-Identifier: Apache-2.0
//! The configuration as workers see it: one immutable snapshot of ports, chains, rules and routers, replaced as a
//! whole.

use std::sync::Arc;

use netvm_conntrack::FlowOwners;
use netvm_model::{Host, PortConfig, RouterId, SendsTo, SteerTo};
use netvm_region::Sticky;

use crate::drop_reason::DropReason;
use crate::ids::{ChainId, GroupId, LinkId, MemoryId, NfThreadId, PortId, RoleId};
use crate::nat::Nat;
use crate::policy::{DecisionCounters, Policy};
use crate::port_bits::PortBits;
use crate::router::RouterPath;

mod bonds;
mod multicast;
mod pairs;
mod program_flows;

pub(crate) use bonds::{BondMember, Bonds, ControlFrame, ControlFrames};
pub(crate) use multicast::{Multicast, MulticastExchange};
pub(crate) use pairs::{PairPorts, PairReturn, PairTarget, Passed};
pub(crate) use program_flows::{ProgramFlows, Side};

/// How a hop chooses one of several replicas.
#[derive(Clone, Debug)]
pub(crate) enum Choice {
    /// The replica whose ring holds the fewest packets.
    LeastOccupied,
    /// By the flow's hash.
    FlowHash,
    /// The replica that the flow used before.
    Sticky(StickyChoice),
}

/// The flows of a sticky role.
#[derive(Clone, Debug)]
pub(crate) struct StickyChoice {
    /// The NF thread of each flow, for all workers.
    pub(crate) table: Arc<Sticky>,
    /// The NF thread of each link.
    pub(crate) nf_threads: Box<[NfThreadId]>,
    /// Whether each gets new flows; the others keep those that they have.
    pub(crate) takes_new: Box<[bool]>,
    /// Replicas come and go, so flows have theirs even while there is only one.
    pub(crate) always: bool,
}

/// Where packets that enter a hop go.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// To one of these links; their NFs are at `hop`.
    Links {
        /// The group of these NFs.
        group: GroupId,
        /// Position in the chain.
        hop: u8,
        /// How to choose.
        choice: Choice,
        /// All NFs of the group accept packets with pending offloads.
        offloads: bool,
        /// The replicas; not empty.
        links: Box<[LinkId]>,
    },
    /// To a program with two ports.
    Pair(PairTarget),
    /// Nowhere yet: they wait for a program of this role that is starting.
    Start(RoleId),
    /// Out of a port: the chain is done.
    Port(PortId),
    /// Out of the ingress port.
    Ingress,
    /// To L2 switching.
    Normal,
    /// To a virtual router.
    Router(RouterId),
    /// Nowhere: they are dropped.
    Drop(DropReason),
}

/// The replicas of a hop.
#[derive(Clone, Copy)]
pub(crate) struct Replicas<'a> {
    /// The group of these NFs.
    pub(crate) group: GroupId,
    pub(crate) hop: u8,
    pub(crate) choice: &'a Choice,
    /// All NFs of the group accept packets with pending offloads.
    pub(crate) offloads: bool,
    /// Not empty.
    pub(crate) links: &'a [LinkId],
}

impl Target {
    /// The replicas, if the target is an NF.
    #[inline(always)]
    pub(crate) fn replicas(&self) -> Option<Replicas<'_>> {
        match self {
            Self::Links { group, hop, choice, offloads, links } => {
                Some(Replicas { group: *group, hop: *hop, choice, offloads: *offloads, links })
            }
            _ => None,
        }
    }
}

/// A chain as the workers see it.
#[derive(Clone, Debug)]
pub(crate) struct ChainPath {
    /// Where packets enter: the first hop's target, or a drop while a hop has no NF and the policy is to drop.
    pub(crate) entry: Target,
    /// Target of each hop, and of the end of the chain.
    pub(crate) targets: Vec<Target>,
    /// For each hop, the group of its NFs.
    pub(crate) groups: Vec<GroupId>,
    /// For each hop, the role.
    pub(crate) roles: Vec<u16>,
    /// Whether a hop chooses by flow hash; descriptors then carry the hash.
    pub(crate) hashed: bool,
    /// Memories whose backpressure words close the chain's entry, each with a bit mask of the chain's NF threads. The
    /// mask is necessary because any NF of the group can set the bits of others.
    pub(crate) watched: Vec<(MemoryId, u64)>,
    /// For each hop, the longest idle time of its NF's per-flow verdicts in seconds; 0: it may not give any.
    pub(crate) longest: Vec<u16>,
    /// Links of later hops to which packets come by the engine: in another trust group, or after an NF that steers.
    pub(crate) crossings: Vec<LinkId>,
}

impl ChainPath {
    /// Whether an NF of `group` can be at `hop`.
    #[inline(always)]
    pub(crate) fn has(&self, hop: u8, group: GroupId) -> bool {
        self.groups.get(usize::from(hop)) == Some(&group)
    }

    /// Whether any hop may give per-flow verdicts.
    pub(crate) fn may_have_flow_verdicts(&self) -> bool {
        self.longest.iter().any(|seconds| *seconds > 0)
    }
}

/// A configured chain without some of its hops, for flows that the NFs there bypass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shortened {
    /// Its own number, in descriptors and tables.
    pub(crate) id: ChainId,
    /// The configured chain.
    pub(crate) of: ChainId,
    /// Bit mask of the bypassed hops.
    pub(crate) without: u16,
}

/// What the NFs of a role may say of whole flows.
#[derive(Clone, Debug)]
pub(crate) struct FlowRights {
    /// The longest idle time of a verdict, in seconds.
    pub(crate) longest: u16,
    /// Where they may steer flows.
    pub(crate) steer: Box<[SteerTo]>,
}

/// Ports without a device that packets may pass one after the other: more are a loop. Linux has the same limit for
/// devices that send by others (`XMIT_RECURSION_LIMIT`).
pub(crate) const MAX_PASSED: u8 = 8;

/// The snapshot. Vectors are indexed by id; `None` where the id is unused.
#[derive(Clone, Default)]
pub(crate) struct Snapshot {
    /// Its number, by which the manager knows what it was made of.
    pub(crate) number: u32,
    /// The compiled rules.
    pub(crate) policy: Arc<Policy>,
    /// Hit counters of this worker, per decision.
    pub(crate) hits: Arc<[DecisionCounters]>,
    /// Existing ports.
    pub(crate) ports: PortBits,
    /// Those without a device, sorted, and where the packets that they send are in the same turn.
    pub(crate) virtual_ports: Box<[(PortId, SendsTo)]>,
    /// Ports of whose packets others receive those with a tag, and, sorted, the port of each tag.
    pub(crate) parents: PortBits,
    pub(crate) tagged: Box<[(PortId, u16, PortId)]>,
    /// Ports whose packets may reach an NF that gives per-flow verdicts.
    pub(crate) flow_verdict_ports: PortBits,
    /// Ports whose packets go to the worker that owns their flow.
    pub(crate) owned: PortBits,
    /// That worker.
    pub(crate) owners: Arc<FlowOwners>,
    /// Those of them that wait for room, and the chains that their packets may take.
    pub(crate) waiting: PortBits,
    pub(crate) waited_for: Vec<ChainId>,
    /// Chains with bypassed hops; each is in `chains`, too.
    pub(crate) shortened: Vec<Shortened>,
    /// IGMP and MLD snooping, if L2 switching does.
    pub(crate) multicast: Option<Multicast>,
    /// Bonds and their members.
    pub(crate) bonds: Bonds,
    /// Ports of programs that are hops.
    pub(crate) pairs: PairPorts,
    pub(crate) chains: Vec<Option<ChainPath>>,
    pub(crate) roles: Vec<Option<Target>>,
    /// For each role, what its NFs may say of whole flows.
    pub(crate) flow_rights: Vec<Option<FlowRights>>,
    /// For each group, the ports that its NFs may send to.
    pub(crate) groups: Vec<Option<PortBits>>,
    pub(crate) routers: Box<[Option<Arc<RouterPath>>]>,
    /// The NAT rules, if there are any.
    pub(crate) nat: Option<Arc<Nat>>,
}

impl Snapshot {
    #[inline(always)]
    pub(crate) fn chain(&self, chain: ChainId) -> Option<&ChainPath> {
        self.chains.get(chain.index())?.as_ref()
    }

    /// The port that receives packets of a port with this tag.
    pub(crate) fn with_tag(&self, parent: PortId, tag: u16) -> Option<PortId> {
        let n = self.tagged.binary_search_by_key(&(parent, tag), |(parent, tag, _)| (*parent, *tag)).ok()?;
        self.tagged.get(n).map(|(_, _, port)| *port)
    }

    /// Where packets go that a port without a device sends.
    pub(crate) fn sends_to(&self, port: PortId) -> Option<SendsTo> {
        let n = self.virtual_ports.binary_search_by_key(&port, |(known, _)| *known).ok()?;
        self.virtual_ports.get(n).map(|(_, to)| *to)
    }

    /// The role at a hop of a chain.
    pub(crate) fn role_at(&self, chain: ChainId, hop: u8) -> Option<RoleId> {
        self.chain(chain)?.roles.get(usize::from(hop)).copied().map(RoleId)
    }

    /// The number of a hop in the configured chain, of which `chain` may leave out some.
    pub(crate) fn configured_hop(&self, chain: ChainId, hop: u8) -> u8 {
        let without = self.shortened.iter().find(|short| short.id == chain).map_or(0, |short| short.without);
        let mut hops = (0..16).filter(|n| without >> n & 1 == 0);
        hops.nth(hop.into()).unwrap_or(hop)
    }

    /// Whether the connections of packets that a port receives are tracked.
    #[inline(always)]
    pub(crate) fn tracks(&self, port: PortId) -> bool {
        self.policy.ingress(port).is_some_and(|ingress| ingress.tracking.is_some())
    }

    #[inline(always)]
    pub(crate) fn router(&self, router: RouterId) -> Option<&RouterPath> {
        self.routers.get(router.index())?.as_deref()
    }

    /// What the NFs of a role may say of whole flows, if they may.
    #[inline(always)]
    pub(crate) fn flow_rights(&self, role: RoleId) -> Option<&FlowRights> {
        self.flow_rights.get(role.index())?.as_ref()
    }

    #[inline(always)]
    pub(crate) fn group(&self, group: GroupId) -> Option<&PortBits> {
        self.groups.get(group.index())?.as_ref()
    }

    /// With the ports of a host that have no device and are connected.
    pub(crate) fn with_virtual_ports(mut self, host: &Host) -> Self {
        let connected = |port: &PortConfig| Some((port.id, connection(host, port)?));
        let mut all: Vec<(PortId, SendsTo)> = host.ports.iter().filter_map(connected).collect();
        all.sort_unstable_by_key(|(port, _)| *port);
        let mut tagged = Vec::new();
        for (port, to) in &all {
            if let SendsTo::Parent { port: parent, tag } = to {
                self.parents.add(*parent);
                tagged.push((*parent, tag.get(), *port));
            }
        }
        tagged.sort_unstable();
        (self.virtual_ports, self.tagged) = (all.into(), tagged.into());
        self
    }
}

/// Where packets go that a port without a device sends; `None` if nothing is there.
pub(crate) fn connection(host: &Host, port: &PortConfig) -> Option<SendsTo> {
    let to = port.kind.info().sends_to?;
    let is_connected = match to {
        SendsTo::Peer(peer) => host.port(peer)?.kind.info().sends_to == Some(SendsTo::Peer(port.id)),
        SendsTo::Bridge | SendsTo::Member => true,
        SendsTo::Parent { port, .. } => host.port(port).is_some(),
        SendsTo::Tunnel(router) => host.router(router).is_some(),
    };
    is_connected.then_some(to)
}
