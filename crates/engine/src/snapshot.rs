//! What workers work by: one immutable snapshot of ports, chains and steering, replaced as a whole.

use netvm_region::{Balance, MAX_PORTS};

use crate::drop_reason::DropReason;
use crate::ids::{ChainId, GroupId, LinkId, PortId};
use crate::steer::PortRules;

/// Where a packet goes that enters a hop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// To one of these links, whose NFs are at `hop`.
    Links {
        /// The group of these NFs.
        group: GroupId,
        /// Position in the chain.
        hop: u8,
        /// How one is chosen.
        balance: Balance,
        /// The replicas; not empty.
        links: Box<[LinkId]>,
    },
    /// Out of a port: the chain is done.
    Port(PortId),
    /// Out of the port it came in by.
    Ingress,
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
    /// Links of later hops to which the engine hands packets of another trust group.
    pub(crate) crossings: Vec<LinkId>,
}

impl ChainPath {
    /// Whether an NF of `group` can be at `hop`.
    #[inline(always)]
    pub(crate) fn has(&self, hop: u8, group: GroupId) -> bool {
        self.groups.get(usize::from(hop)) == Some(&group)
    }
}

/// A trust group as the workers see it.
#[derive(Clone, Debug, Default)]
pub(crate) struct GroupRights {
    /// Ports that its NFs may name, a bit each.
    pub(crate) ports: [u64; MAX_PORTS / 64],
}

impl GroupRights {
    #[inline(always)]
    pub(crate) fn may_send_to(&self, port: PortId) -> bool {
        self.ports.get(port.index() / 64).is_some_and(|word| word >> (port.0 % 64) & 1 == 1)
    }

    pub(crate) fn allow(&mut self, port: PortId) {
        if let Some(word) = self.ports.get_mut(port.index() / 64) {
            *word |= 1 << (port.0 % 64);
        }
    }
}

/// All of it. Vectors are indexed by number; `None` where there is no such thing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) rules: Vec<Option<PortRules>>,
    pub(crate) chains: Vec<Option<ChainPath>>,
    pub(crate) roles: Vec<Option<Target>>,
    pub(crate) groups: Vec<Option<GroupRights>>,
}

impl Snapshot {
    #[inline(always)]
    pub(crate) fn chain(&self, chain: ChainId) -> Option<&ChainPath> {
        self.chains.get(chain.index())?.as_ref()
    }

    #[inline(always)]
    pub(crate) fn rules(&self, port: PortId) -> Option<&PortRules> {
        self.rules.get(port.index())?.as_ref()
    }

    #[inline(always)]
    pub(crate) fn group(&self, group: GroupId) -> Option<&GroupRights> {
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
