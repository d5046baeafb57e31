// SPDX-License-Identifier: Apache-2.0
//! Everything that one netvmd runs, and how its parts are found by number and by name.

use std::borrow::Cow;

use netvm_ids::{ChainId, GroupId, PortId, QueueId, RoleId, RouterId};
use netvm_policy::{Action, Labels, Names, Rule};

use crate::engine::{ApiConfig, EngineConfig, Group, HealthConfig, PolicyConfig, SwitchConfig};
use crate::nf::{Chain, NfConfig};
use crate::port::{Forward, PortConfig, QueueConfig};
use crate::router::nat::NatRule;
use crate::router::{RouterConfig, RouterInterface};
use crate::vm::{Guest, VmConfig};

mod health;
mod irb;
mod landing;
mod local;
mod nat;
mod numbering;
mod pairs;
mod punts;

pub use health::CheckedTarget;
pub use nat::Reach;
pub use numbering::{assign_ids, new_rule_id};
pub use pairs::{PairHop, PairPort};

/// Everything that one netvmd runs.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Host {
    /// Cores, idle behaviour, memory pages, flow cache.
    pub engine: EngineConfig,
    /// How the API is served besides its Unix socket.
    pub api: ApiConfig,
    /// What must hold after a change that netvmd makes by itself.
    pub health: HealthConfig,
    /// L2 switching as a whole.
    pub switch: SwitchConfig,
    /// The policy as a whole.
    pub policy: PolicyConfig,
    /// Trust groups, in the order of the file.
    pub groups: Vec<Group>,
    /// Ports, in the order of the file, then the punt ports of the routers' interfaces, then the ports of programs
    /// that are hops.
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
    /// NAT rules: those of the file in its order, then those that ports and routers imply.
    pub nat: Vec<NatRule>,
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

    /// The bond that has a port's packets.
    #[must_use]
    pub fn bond_of(&self, port: PortId) -> Option<&PortConfig> {
        let has = |other: &&PortConfig| other.kind.info().bond.is_some_and(|it| it.members.contains(&port));
        self.ports.iter().find(has)
    }

    /// The router whose share of workers includes this port.
    #[must_use]
    pub fn sharing_router(&self, port: PortId) -> Option<&RouterConfig> {
        let mut sharing = self.routers.iter().filter(|router| router.has_share());
        sharing.find(|router| router.ports().any(|own| own == port))
    }

    /// Whether connections of some packets are tracked.
    #[must_use]
    pub fn tracks(&self) -> bool {
        self.ports.iter().any(|port| self.tracks_port(port))
    }

    /// Whether a rule has a SYN proxy.
    #[must_use]
    pub fn has_syn_proxy(&self) -> bool {
        self.rules.iter().any(|rule| rule.actions.syn_proxy)
    }

    /// Whether connections of the packets that a port receives are tracked: the port says so, or a router whose
    /// interface it has ([`RouterConfig::tracks`]).
    #[must_use]
    pub fn tracks_port(&self, port: &PortConfig) -> bool {
        let mut tracking = self.routers.iter().filter(|router| router.tracks());
        port.policy.track || tracking.any(|router| router.ports().any(|own| own == port.id))
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

    /// Has rules that name ports by label match those that have the label.
    pub fn select_labels(&mut self) {
        let ports: Vec<(PortId, &Labels)> =
            self.ports.iter().map(|port| (port.id, &port.policy.labels)).collect();
        for rule in self.rules.iter_mut().filter(|rule| rule.selection().is_some()) {
            rule.select(&ports);
        }
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
        let is_of_program = self.pair_end(id).is_some();
        let rules: &'a [Rule] = if is_of_program { &[] } else { rules };
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

    fn role(&self, role: RoleId) -> Cow<'_, str> {
        self.nf(role).map_or_else(|| Cow::Owned(format!("role {role}")), |nf| (&*nf.role).into())
    }
}
