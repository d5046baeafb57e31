//! Flows and addresses, for display.
//!
//! Workers report their flows in pages, one per command, so that reading stalls no worker.

use std::sync::Arc;

use netvm_policy::RuleId;
use netvm_switch::TICKS_PER_SECOND;
use netvm_wire::{FlowKey, MacAddr};

use crate::ids::{PortId, RoleId, WorkerId};
use crate::manager::Engine;
use crate::manager::publish::policy::now;
use crate::policy::Policy;
use crate::worker::{Command, FlowCounts, FlowPage};

/// An NF's verdict on a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowVerdict {
    /// The NF's role.
    pub role: RoleId,
    /// Drop the flow's packets; otherwise bypass the NF.
    pub drops: bool,
    /// Seconds until it expires if no packet follows.
    pub left: f64,
}

/// A flow in a worker's flow cache.
#[derive(Clone, Debug)]
pub struct FlowView {
    /// The worker.
    pub worker: WorkerId,
    /// The ingress port.
    pub port: PortId,
    /// The flow's header fields. Fields that no rule matches and that vary within a flow are zero.
    pub key: FlowKey,
    /// The rules that its packets match, the deciding one last; empty for a port's default.
    pub rules: Vec<RuleId>,
    /// Packets since it was cached.
    pub packets: u64,
    /// Bytes since it was cached.
    pub bytes: u64,
    /// Seconds since the last packet.
    pub idle: f64,
    /// Seconds since it was cached.
    pub age: f64,
    /// The NFs' verdicts that have not expired.
    pub verdicts: Vec<FlowVerdict>,
}

/// An address in the switch's forwarding database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Its VLAN; 0 on ports that are not VLAN-aware.
    pub vlan: u16,
    /// The address.
    pub mac: MacAddr,
    /// Its port.
    pub port: PortId,
}

/// A request to read flows, and what has arrived so far.
pub(crate) struct FlowReader {
    ticket: u64,
    /// Workers that have more pages.
    left: usize,
    most: usize,
    flows: Vec<FlowView>,
    counts: Vec<FlowCounts>,
    policy: Arc<Policy>,
    done: Done,
}

/// Receives the flows, and each worker's cache counters.
type Done = Box<dyn FnOnce(Vec<FlowView>, Vec<FlowCounts>) + Send>;

impl FlowReader {
    /// Takes a page's rows. Skips rows of another policy generation, whose decision numbers are invalid in this one.
    fn take(&mut self, page: &mut FlowPage) {
        let seconds = |ticks: u32| f64::from(ticks) / f64::from(TICKS_PER_SECOND);
        let room = self.most.saturating_sub(self.flows.len());
        let is_current = page.generation == self.policy.generation;
        for row in page.rows.drain(..).take(room).filter(|_| is_current) {
            let verdicts = row.verdicts.iter().flatten().map(|(verdict, left)| FlowVerdict {
                role: verdict.role,
                drops: verdict.drops,
                left: seconds(*left),
            });
            self.flows.push(FlowView {
                worker: page.worker,
                port: row.port,
                key: row.key,
                rules: self.policy.decision(row.decision).rules.to_vec(),
                packets: row.packets,
                bytes: row.bytes,
                idle: seconds(row.idle),
                age: seconds(row.age),
                verdicts: verdicts.collect(),
            });
        }
        page.rows.clear();
        if let Some(counts) = self.counts.get_mut(page.worker.index()) {
            *counts = page.counts;
        }
    }
}

impl Engine {
    /// Reads at most `most` flows of all workers, page by page. [`Engine::service`] calls `done` with them.
    pub fn read_flows(
        &mut self,
        most: usize,
        done: impl FnOnce(Vec<FlowView>, Vec<FlowCounts>) + Send + 'static,
    ) {
        let ticket = self.workers.new_ticket();
        self.readers.push(FlowReader {
            ticket,
            left: self.workers.len(),
            most,
            flows: Vec::new(),
            counts: vec![FlowCounts::default(); self.workers.len()],
            policy: self.policy(),
            done: Box::new(done),
        });
        self.workers.send_all(|worker| Command::ReadFlows(Box::new(FlowPage::new(worker, ticket))));
    }

    /// Handles a page: requests the worker's next page, or completes the request.
    pub(crate) fn flows_read(&mut self, mut page: Box<FlowPage>) {
        let readers = &mut self.readers;
        let Some(n) = readers.iter().position(|reader| reader.ticket == page.ticket) else { return };
        let reader = &mut readers[n];
        reader.take(&mut page);
        if page.cursor.is_some() && reader.flows.len() < reader.most {
            self.workers.send(page.worker, Command::ReadFlows(page));
            return;
        }
        reader.left -= 1;
        if reader.left == 0 {
            let reader = readers.swap_remove(n);
            (reader.done)(reader.flows, reader.counts);
        }
    }

    /// The addresses in the switch's forwarding database.
    #[must_use]
    pub fn addresses(&self) -> Vec<Address> {
        let Some(switching) = &self.rules.policy().switching else { return Vec::new() };
        let entries = switching.fdb.entries(now());
        entries.map(|entry| Address { vlan: entry.vlan, mac: entry.mac, port: PortId(entry.port) }).collect()
    }
}
