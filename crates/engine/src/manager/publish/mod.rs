// SPDX-License-Identifier: Apache-2.0
//! Publishes changes: next-hop tables to trust groups, snapshots to workers.

mod draining;
mod pairs;
pub(crate) mod policy;
pub(crate) mod shortened;
pub(crate) mod snapshot;
mod table;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_model::{Balance, Host, NfConfig};
use netvm_region::Sticky;
use netvm_switch::TICKS_PER_SECOND;

use super::captures::Numbering;
use super::nfs::Nfs;
use super::reaper::Reaper;
use super::traces::Traces;
use super::workers::Workers;
use crate::ids::{GroupId, RoleId};
use crate::snapshot::{Shortened, Snapshot};
use crate::worker::Command;
use snapshot::{Sources, View};

/// Time limit for NFs to confirm a new table.
const CONFIRM_TIMEOUT: Duration = Duration::from_millis(50);
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

/// Publishes what other parts have changed.
pub(crate) struct Publisher<'a> {
    pub(crate) sources: Sources<'a>,
    pub(crate) nfs: &'a mut Nfs,
    pub(crate) traces: &'a mut Traces,
    pub(crate) workers: &'a mut Workers,
    pub(crate) reaper: &'a Reaper,
}

impl<'a> Publisher<'a> {
    /// What is published.
    pub(crate) fn view(&self) -> View<'a> {
        View::new(self.sources, self.nfs, self.traces)
    }

    /// Publishes new tables and snapshots without waiting for NFs.
    pub(crate) fn publish(mut self) {
        self.publish_tables();
        self.send_snapshots();
    }

    /// As [`Publisher::publish`], but waits until NFs have confirmed the new tables before workers get new snapshots.
    /// An NF that does not know its next hop yet sends packets through the engine, and packets that it later sends
    /// directly would overtake them. Waits at most [`CONFIRM_TIMEOUT`].
    pub(crate) fn publish_in_order(mut self) {
        let published = self.publish_tables();
        let deadline = Instant::now() + CONFIRM_TIMEOUT;
        while !self.nfs.have_confirmed(&published) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(50));
        }
        self.send_snapshots();
    }

    /// Publishes the tables that changed; returns their groups and epochs.
    fn publish_tables(&mut self) -> Vec<(GroupId, u64)> {
        let view = self.view();
        self.nfs.publish_tables(|group| view.table(group))
    }

    pub(crate) fn send_snapshots(self) {
        let Sources { host, rules, chains, captures, .. } = self.sources;
        let number = self.traces.published(rules.policy(), host, self.reaper);
        let view = self.view();
        self.workers.send_all(|worker| {
            let snapshot = Snapshot { number, ..view.snapshot(worker.index()) };
            Command::Snapshot(Arc::new(snapshot))
        });
        captures.renumber(Numbering { host, shortened: chains.shortened() }, self.workers);
    }
}
