// SPDX-License-Identifier: Apache-2.0
//! Bonds: watches the links of members, speaks LACP by them, and decides which of them carry packets.
//!
//! In: link states of ports, and frames that workers have received. Out: frames, notices, and for snapshots the members
//! by which each bond sends and receives. When other members carry packets, switches outside learn from frames of
//! [`announce`] where addresses are now.

mod announce;
mod state;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_model::{BondConfig, Host, PortConfig, SendsTo};
use netvm_wire::MacAddr;

use super::notice::{Notice, Notices};
use super::ports::{PortView, Ports};
use super::publish::policy::Rules;
use super::routers::Routers;
use super::workers::Workers;
use crate::ids::PortId;
use crate::snapshot::{BondMember, Bonds as BondsOfSnapshot};
use crate::worker::Command;
use state::{BondState, Carrying};

/// Interval at which links are looked at.
const INTERVAL: Duration = Duration::from_millis(20);

/// What bonds need of the engine's other parts.
pub(crate) struct Context<'a> {
    pub(crate) host: &'a Host,
    pub(crate) ports: &'a Ports,
    pub(crate) workers: &'a mut Workers,
    pub(crate) notices: &'a mut Notices,
}

/// The bonds.
#[derive(Debug)]
pub(crate) struct Bonds {
    bonds: BTreeMap<PortId, BondState>,
    looked: Instant,
    /// This host in LACP.
    system: MacAddr,
    /// What snapshots know of them.
    of_snapshots: BondsOfSnapshot,
    /// Bonds whose addresses are to be announced.
    moved: Vec<PortId>,
}

impl Bonds {
    pub(crate) fn new() -> Self {
        let system = MacAddr([0x02, 0, 0, 0, 0, 1]);
        Self {
            bonds: BTreeMap::new(),
            looked: Instant::now(),
            system,
            of_snapshots: BondsOfSnapshot::default(),
            moved: Vec::new(),
        }
    }

    /// Sets this host's address in LACP.
    pub(crate) const fn set_system(&mut self, system: MacAddr) {
        self.system = system;
    }

    /// Follows a new host. A bond whose settings are the same keeps its state.
    pub(crate) fn follow(&mut self, host: &Host) {
        let mut before = std::mem::take(&mut self.bonds);
        for (port, config) in bonds_of(host) {
            let known = before.remove(&port.id).and_then(|known| known.follow(config));
            let new = || BondState::new(port.id, config, config.mac.unwrap_or(self.system));
            self.bonds.insert(port.id, known.unwrap_or_else(new));
        }
        self.of_snapshots = self.for_snapshots();
    }

    /// Looks at links, and exchanges frames, at intervals. Returns whether snapshots have to follow.
    pub(crate) fn service(&mut self, cx: &mut Context<'_>) -> bool {
        if self.bonds.is_empty() || self.looked.elapsed() < INTERVAL {
            return false;
        }
        let now = Instant::now();
        self.looked = now;
        let mut changed = false;
        for (port, bond) in &mut self.bonds {
            let Some(config) = cx.host.port(*port).and_then(|port| port.kind.info().bond) else { continue };
            let before = bond.carrying().clone();
            let to_send = bond.observe(config, &|port| cx.ports.link_of(port), now);
            for member in to_send {
                send(member, cx.ports, cx.workers);
            }
            let after = bond.carrying();
            if *after == before {
                continue;
            }
            changed = true;
            if after.senders != before.senders {
                cx.notices.push(Notice::Bond { port: *port, carry: after.senders.clone() });
                if bond.announces() && !after.senders.is_empty() {
                    self.moved.push(*port);
                }
            }
        }
        if changed {
            self.of_snapshots = self.for_snapshots();
        }
        changed
    }

    /// Announces the addresses behind bonds whose members have changed. Call it when snapshots have followed.
    pub(crate) fn announce(&mut self, rules: &Rules, routers: &Routers, cx: &mut Context<'_>) {
        for port in std::mem::take(&mut self.moved) {
            let (Some(bond), Some(config)) = (self.bonds.get(&port), cx.host.port(port)) else { continue };
            let switching = rules.policy().switching.as_ref();
            let frames = announce::frames(config, switching, routers.paths());
            let Some(sender) = bond.carrying().senders.first() else { continue };
            if let Some(to) = bond.frames_of(*sender) {
                to.send(frames);
            }
            send(*sender, cx.ports, cx.workers);
        }
    }

    /// What snapshots know of bonds.
    pub(crate) const fn of_snapshots(&self) -> &BondsOfSnapshot {
        &self.of_snapshots
    }

    fn for_snapshots(&self) -> BondsOfSnapshot {
        let mut all = BondsOfSnapshot::default();
        for (port, bond) in &self.bonds {
            let Carrying { senders, receivers } = bond.carrying();
            let member = |(of, frames): (PortId, &Arc<_>)| {
                let member = BondMember {
                    port: of,
                    bond: *port,
                    collects: receivers.contains(&of),
                    has_lacp: bond.has_lacp(),
                    frames: Arc::clone(frames),
                };
                (member, senders.contains(&of))
            };
            all.add(*port, bond.members().map(member).collect());
        }
        all
    }

    /// Adds to the views of ports what bonds know: members, and whether the bond has a link that a port is or sends by.
    pub(crate) fn complete(&self, host: &Host, mut views: Vec<PortView>) -> Vec<PortView> {
        for view in &mut views {
            view.bond = self.bonds.get(&view.id).map(BondState::view);
            let config = host.port(view.id).filter(|_| view.is_open);
            view.link = config.and_then(|port| self.link_of(host, port)).or(view.link);
        }
        views
    }

    /// Whether the bond has a link that a port without a device is, or sends by; `None` if it sends by no bond.
    fn link_of(&self, host: &Host, port: &PortConfig) -> Option<bool> {
        let parent = |port: &PortConfig| match port.kind.info().sends_to? {
            SendsTo::Parent { port: parent, .. } => host.port(parent),
            _ => None,
        };
        let mut chain = std::iter::successors(Some(port), |port| parent(port)).take(host.ports.len());
        let bond = chain.find_map(|port| self.bonds.get(&port.id))?;
        Some(!bond.carrying().senders.is_empty())
    }
}

fn bonds_of(host: &Host) -> impl Iterator<Item = (&PortConfig, &BondConfig)> {
    host.ports.iter().filter_map(|port| Some((port, port.kind.info().bond?)))
}

/// Has a worker send the frames that wait for a member.
fn send(member: PortId, ports: &Ports, workers: &mut Workers) {
    if let Some(worker) = ports.sender_of(member) {
        workers.send(worker, Command::SendControlFrames(member));
    }
}
