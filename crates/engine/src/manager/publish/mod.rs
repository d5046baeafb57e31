//! Publishes changes: next-hop tables to trust groups, snapshots to workers.

pub(crate) mod l2_watch;
pub(crate) mod policy;
pub(crate) mod shortened;
pub(crate) mod snapshot;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_model::{Balance, Host, NfConfig};
use netvm_region::Sticky;
use netvm_switch::TICKS_PER_SECOND;

use super::Engine;
use super::captures::Numbering;
use super::nfs::instance::{Instance, InstanceState};
use crate::ids::{ChainId, GroupId, RoleId};
use crate::snapshot::Shortened;
use crate::worker::Command;
use snapshot::View;

/// Time limit for NFs to confirm a new table.
const CONFIRMATION: Duration = Duration::from_millis(50);
/// Buckets of flows per sticky role, as a power of two: 256 KiB.
const STICKY_ORDER: u32 = 16;
/// Ticks without packets after which a flow may get another replica: longer than a packet can wait in a full ring of a
/// slow NF.
const STICKY_IDLE: u16 = 10 * TICKS_PER_SECOND as u16;

/// State of chains beyond the configuration.
#[derive(Default)]
pub(crate) struct Chains {
    /// Variants with bypassed hops.
    shortened: Vec<Shortened>,
    /// The flows of each sticky role.
    sticky: BTreeMap<RoleId, Arc<Sticky>>,
    /// Chains whose packets return to the engine after each hop, because a capture includes their hops.
    pub(crate) captured: BTreeSet<ChainId>,
}

impl Chains {
    /// Follows a new host: creates flow tables for roles that became sticky, and removes those of other roles and
    /// chains.
    pub(crate) fn follow(&mut self, host: &Host) {
        self.forget_shortened(host);
        let is_sticky = |nf: &&NfConfig| nf.balance == Balance::Sticky;
        self.sticky.retain(|role, _| host.nf(*role).as_ref().is_some_and(is_sticky));
        for nf in host.nfs.iter().filter(is_sticky) {
            let table = || Arc::new(Sticky::new(STICKY_ORDER, STICKY_IDLE));
            self.sticky.entry(nf.id).or_insert_with(table);
        }
    }
}

impl Engine {
    /// Publishes new tables and snapshots without waiting for NFs.
    pub(crate) fn publish(&mut self) {
        self.publish_tables();
        self.send_snapshots();
    }

    /// As [`Engine::publish`], but waits until NFs have confirmed the new tables before workers get new snapshots. An
    /// NF that does not know its next hop yet sends packets through the engine, and packets that it later sends
    /// directly would overtake them. Waits at most [`CONFIRMATION`].
    pub(crate) fn publish_in_order(&mut self) {
        let published = self.publish_tables();
        let deadline = Instant::now() + CONFIRMATION;
        let knows = |instance: &Instance| {
            published.iter().all(|(group, epoch)| *group != instance.group || instance.has_confirmed(*epoch))
        };
        let takes_packets = |instance: &&Instance| instance.state == InstanceState::Active;
        while !self.nfs.instances.values().filter(takes_packets).all(knows) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(50));
        }
        self.send_snapshots();
    }

    /// Publishes the tables that changed; returns their groups and epochs.
    fn publish_tables(&mut self) -> Vec<(GroupId, u64)> {
        self.chains.captured = self.captures.chains(&self.host);
        let view = View::new((&self.host, &self.routers), &self.rules, &self.chains, &self.nfs);
        let mut published = Vec::new();
        for (id, group) in &mut self.nfs.groups {
            let table = view.table(group);
            if *group.table != *table || group.publisher.epoch() == 0 {
                group.table = table;
                published.push((*id, group.publish(&self.nfs.signaller)));
            }
        }
        published
    }

    pub(crate) fn send_snapshots(&mut self) {
        let view = View::new((&self.host, &self.routers), &self.rules, &self.chains, &self.nfs);
        self.workers.send_all(|worker| Command::Snapshot(Arc::new(view.snapshot(worker.index()))));
        let numbering = Numbering { host: &self.host, shortened: self.chains.shortened() };
        self.captures.renumber(numbering, &mut self.workers);
    }
}
