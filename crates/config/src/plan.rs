// SPDX-License-Identifier: Apache-2.0
//! Plans: the changes from one host to another, and what each change disturbs.
//!
//! Items are compared by name, key by key as in the file; numbers ([`netvm_model::assign_ids`]) do not matter. What a
//! change disturbs:
//!
//! | change | effect |
//! |---|---|
//! | `cores` of `[engine]` | workers are added, removed or moved; no packet is lost |
//! | other keys of `[engine]` | netvmd must be restarted |
//! | memory of a group (`buffers`, `buffer_size`, `headroom`, `large_buffers`) | netvmd must be restarted |
//! | a port's device (`kind` and its keys, `queues`, `worker`, `node`, `mtu`, `gro`) | that port is reopened |
//! | the group in whose memory a port's packets land | of `af_xdp`, `pci` and `null` ports: that port is reopened; of others: none, the device stays open |
//! | `macs` of `[switch]` | netvmd must be restarted |
//! | a router's interface that comes or goes, the MTU of its port | the interface's punt port is opened, closed or reopened |
//! | an NF's program, user, threads, cores, environment, group | that NF restarts |
//! | a VM, except `start`, `restart` and `boot_timeout` | that VM restarts |
//! | `allocate`, `hold` | none: NFs that attach from then on have them |
//! | `replicas`, `standby` | replicas are started or stopped |
//! | rules, NAT rules, chains, `balance`, `flow_verdicts`, `steer`, `hang_timeout`, `may_send_to`, `attach_users`, other keys of routers, ports, `[api]`, `[health]`, `[switch]` and `[policy]` | none: a new snapshot replaces the old one |

use std::fmt;

use netvm_model::Host;
use serde::{Deserialize, Serialize};

mod diff;
mod document;
mod effects;
mod words;

pub use document::{to_toml, to_toml_of};

use document::document;
pub(crate) use document::write_table;

/// The changes from one host to another, in the order groups, ports, NFs, VMs, routers, chains, rules, NAT rules;
/// tables first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The changes.
    pub changes: Vec<Change>,
}

/// What happens to an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// The new host adds it.
    Add,
    /// The new host lacks it.
    Remove,
    /// Both hosts have it, with differences.
    Change,
}

/// What kind of item a change is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ItemKind {
    /// The engine as a whole.
    Engine,
    /// How the API is served.
    Api,
    /// Tests of health.
    Health,
    /// A trust group.
    Group,
    /// A port.
    Port,
    /// A network function.
    Nf,
    /// A virtual machine.
    Vm,
    /// A virtual router.
    Router,
    /// A chain.
    Chain,
    /// A rule.
    Rule,
    /// A NAT rule.
    Nat,
    /// L2 switching as a whole.
    Switch,
    /// The policy as a whole, and the order of its rules.
    Policy,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// What happens.
    pub action: ChangeKind,
    /// The kind of item.
    pub item: ItemKind,
    /// The item's name; empty if it has none.
    pub name: String,
    /// The difference, such as `hops firewall → firewall,monitor`; of a new or removed item a summary.
    pub text: String,
    /// What it disturbs; empty: nothing.
    pub effects: Vec<Effect>,
}

/// What a change disturbs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "effect", rename_all = "snake_case")]
pub enum Effect {
    /// The change needs a restart of netvmd.
    RestartNeeded {
        /// What changed.
        why: String,
    },
    /// A worker is added. Queues of ports move to it, and no packet is lost.
    WorkerAdded {
        /// Its number.
        worker: u8,
        /// Its core.
        core: u32,
    },
    /// A worker gives its queues and flows to others, and ends. No packet is lost.
    WorkerRemoved {
        /// Its number.
        worker: u8,
        /// Its core.
        core: u32,
    },
    /// A worker moves to another core. No packet is lost.
    WorkerMoved {
        /// Its number.
        worker: u8,
        /// The core that it has.
        from: u32,
        /// The core that it gets.
        to: u32,
    },
    /// A port is opened.
    PortOpened {
        /// The port.
        port: String,
    },
    /// A port is closed.
    PortClosed {
        /// The port.
        port: String,
    },
    /// A port is closed and opened again; packets that arrive meanwhile are lost.
    PortReopened {
        /// The port.
        port: String,
        /// What changed.
        why: String,
    },
    /// The packets of a port land in the memory of another group. Its device stays open, and no packet is lost.
    PortMoved {
        /// The port.
        port: String,
        /// Where they land.
        why: String,
    },
    /// An NF is started.
    NfStarted {
        /// Its role.
        role: String,
        /// How many processes.
        replicas: u16,
    },
    /// An NF, or some of its replicas, end.
    NfStopped {
        /// Its role.
        role: String,
        /// How many processes; `None`: all.
        replicas: Option<u16>,
    },
    /// All replicas of an NF are stopped and started again; netvmd asks an NF that attaches by itself to leave.
    NfRestarted {
        /// Its role.
        role: String,
        /// What changed.
        why: String,
    },
    /// A virtual machine is started.
    VmStarted {
        /// Its name.
        vm: String,
    },
    /// A virtual machine is shut down.
    VmStopped {
        /// Its name.
        vm: String,
    },
    /// A running virtual machine is shut down and started again.
    VmRestarted {
        /// Its name.
        vm: String,
        /// What changed.
        why: String,
    },
}

impl Effect {
    /// Whether all packets pass meanwhile.
    const fn is_harmless(&self) -> bool {
        matches!(
            self,
            Self::WorkerAdded { .. }
                | Self::WorkerRemoved { .. }
                | Self::WorkerMoved { .. }
                | Self::PortMoved { .. }
        )
    }
}

impl Plan {
    /// Whether there are no changes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Whether some change needs a restart of netvmd.
    #[must_use]
    pub fn needs_restart(&self) -> bool {
        self.effects().any(|effect| matches!(effect, Effect::RestartNeeded { .. }))
    }

    /// All effects, in the order of the changes.
    pub fn effects(&self) -> impl Iterator<Item = &Effect> {
        self.changes.iter().flat_map(|change| &change.effects)
    }
}

/// The changes from `old` to `new`, two hosts from [`crate::load`] or [`crate::parse`].
#[must_use]
pub fn plan(old: &Host, new: &Host) -> Plan {
    let mut changes = diff::changes(&document(old), &document(new));
    effects::add(&mut changes, old, new);
    Plan { changes }
}

impl fmt::Display for ChangeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Add => "+",
            Self::Remove => "-",
            Self::Change => "~",
        })
    }
}

impl ItemKind {
    /// The items that are one table, in the order of plans.
    const TABLES: [Self; 5] = [Self::Engine, Self::Api, Self::Health, Self::Switch, Self::Policy];
    /// The items with a name, in the order of plans.
    const NAMED: [Self; 6] = [Self::Group, Self::Port, Self::Nf, Self::Vm, Self::Router, Self::Chain];

    /// The key of the item's table, or array of tables, in the file.
    const fn key(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Api => "api",
            Self::Health => "health",
            Self::Group => "group",
            Self::Port => "port",
            Self::Nf => "nf",
            Self::Vm => "vm",
            Self::Router => "router",
            Self::Chain => "chain",
            Self::Rule => "rule",
            Self::Nat => "nat",
            Self::Switch => "switch",
            Self::Policy => "policy",
        }
    }
}

impl fmt::Display for ItemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.key())
    }
}

/// One line, such as `~ chain web: hops firewall,l3-forward → firewall,monitor,l3-forward`.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gap = if self.name.is_empty() { "" } else { " " };
        write!(f, "{} {}{gap}{}: {}", self.action, self.item, self.name, self.text)
    }
}

/// One sentence, such as `port client is reopened (queues 1 → 2)`.
impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RestartNeeded { why } => write!(f, "netvmd must be restarted ({why})"),
            Self::WorkerAdded { worker, core } => write!(f, "adds worker {worker} on core {core}"),
            Self::WorkerRemoved { worker, core } => write!(f, "removes worker {worker} from core {core}"),
            Self::WorkerMoved { worker, from, to } => {
                write!(f, "moves worker {worker} from core {from} to core {to}")
            }
            Self::PortOpened { port } => write!(f, "opens port {port}"),
            Self::PortClosed { port } => write!(f, "closes port {port}"),
            Self::PortReopened { port, why } => write!(f, "port {port} is reopened ({why})"),
            Self::PortMoved { port, why } => write!(f, "port {port} stays open ({why})"),
            Self::NfStarted { role, replicas: 0 } => write!(f, "waits for NF {role} to attach"),
            Self::NfStarted { role, replicas: 1 } => write!(f, "starts NF {role}"),
            Self::NfStarted { role, replicas } => write!(f, "starts {replicas} replicas of NF {role}"),
            Self::NfStopped { role, replicas: None } => write!(f, "stops NF {role}"),
            Self::NfStopped { role, replicas: Some(1) } => write!(f, "stops a replica of NF {role}"),
            Self::NfStopped { role, replicas: Some(n) } => write!(f, "stops {n} replicas of NF {role}"),
            Self::NfRestarted { role, why } => write!(f, "restarts NF {role} ({why})"),
            Self::VmStarted { vm } => write!(f, "starts VM {vm}"),
            Self::VmStopped { vm } => write!(f, "shuts VM {vm} down"),
            Self::VmRestarted { vm, why } => write!(f, "restarts VM {vm} ({why})"),
        }
    }
}

/// A line for each change, below it a line for each effect.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("nothing changes\n");
        }
        for change in &self.changes {
            writeln!(f, "{change}")?;
            for effect in &change.effects {
                writeln!(f, "    {effect}")?;
            }
        }
        if self.effects().all(Effect::is_harmless) {
            writeln!(f, "no traffic is disturbed")?;
        }
        Ok(())
    }
}
