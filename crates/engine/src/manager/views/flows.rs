//! Flows and addresses, as people see them.

use std::sync::Arc;

use netvm_policy::RuleId;
use netvm_switch::TICKS_PER_SECOND;
use netvm_wire::{FlowKey, MacAddr};

use crate::ids::{PortId, RoleId, WorkerId};
use crate::manager::Engine;
use crate::manager::publish::policy::now;
use crate::policy::{Policy, Step};
use crate::worker::{Command, FlowCounts, FlowPage};

/// What an NF has said of a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowVerdict {
    /// The NF's role.
    pub role: RoleId,
    /// Drop the rest; otherwise: skip me.
    pub drops: bool,
    /// Seconds for which it holds, if no packet comes.
    pub left: f64,
}

/// A flow that a worker knows.
#[derive(Clone, Debug)]
pub struct FlowView {
    /// The worker.
    pub worker: WorkerId,
    /// The port that its packets come in by.
    pub port: PortId,
    /// The fields of its packets; those that no rule looks at and that change within a flow are zero.
    pub key: FlowKey,
    /// The rules that its packets match, the deciding one last; none for a port's default.
    pub rules: Vec<RuleId>,
    /// Packets since it is known.
    pub packets: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Seconds since the last one.
    pub idle: f64,
    /// Seconds since it is known.
    pub age: f64,
    /// What NFs have said of it, as far as it holds.
    pub words: Vec<FlowVerdict>,
}

/// An address that L2 switching knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Its VLAN; 0 where ports are not aware of any.
    pub vlan: u16,
    /// The address.
    pub mac: MacAddr,
    /// The port behind which it is.
    pub port: PortId,
}

/// Who reads flows, and what has come so far.
pub(crate) struct FlowReader {
    ticket: u64,
    /// Workers that have more.
    left: usize,
    most: usize,
    flows: Vec<FlowView>,
    counts: Vec<FlowCounts>,
    policy: Arc<Policy>,
    done: Option<Done>,
}

/// Gets the flows, and how each worker's cache does.
type Done = Box<dyn FnOnce(Vec<FlowView>, Vec<FlowCounts>) + Send>;

impl Engine {
    /// Reads at most `most` flows of all workers, in parts, and gives them to `done` from within [`Engine::service`].
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
            policy: Arc::clone(&self.rules.policy),
            done: Some(Box::new(done)),
        });
        self.workers.send_all(|worker| Command::ReadFlows(Box::new(FlowPage::new(worker, ticket))));
    }

    /// A part has come: the next one is asked for.
    pub(crate) fn flows_read(&mut self, mut page: FlowPage) {
        let Some(n) = self.readers.iter().position(|reader| reader.ticket == page.ticket) else { return };
        let reader = &mut self.readers[n];
        let seconds = |ticks: u32| f64::from(ticks) / f64::from(TICKS_PER_SECOND);
        let room = reader.most.saturating_sub(reader.flows.len());
        let rows = page.rows.drain(..).take(room).filter(|_| page.generation == reader.policy.generation);
        reader.flows.extend(rows.map(|row| {
            FlowView {
                worker: page.worker,
                port: row.port,
                key: row.key,
                rules: reader.policy.decision(row.decision).rules.to_vec(),
                packets: row.packets,
                bytes: row.bytes,
                idle: seconds(row.idle),
                age: seconds(row.age),
                words: row
                    .verdicts
                    .iter()
                    .flatten()
                    .map(|(word, left)| FlowVerdict {
                        role: word.role,
                        drops: word.drops,
                        left: seconds(*left),
                    })
                    .collect(),
            }
        }));
        page.rows.clear();
        if let Some(counts) = reader.counts.get_mut(page.worker.index()) {
            *counts = page.counts;
        }
        if page.cursor.is_some() && reader.flows.len() < reader.most {
            self.workers.send(page.worker, Command::ReadFlows(Box::new(page)));
            return;
        }
        reader.left -= 1;
        if reader.left == 0 {
            let mut reader = self.readers.swap_remove(n);
            if let Some(done) = reader.done.take() {
                done(reader.flows, reader.counts);
            }
        }
    }

    /// What would become of a packet of `length` bytes, of which `headers` are the first, that came in by a port; it is
    /// not sent.
    #[must_use]
    pub fn trace(&self, from: PortId, headers: &[u8], length: usize) -> Vec<Step> {
        let mut steps = self.rules.policy.trace(from, headers, length, now());
        if let Some(Step::Router(router)) = steps.last() {
            self.trace_routed(*router, from, headers, length, &mut steps);
        }
        steps
    }

    /// The addresses that L2 switching knows.
    #[must_use]
    pub fn addresses(&self) -> Vec<Address> {
        let Some(switching) = &self.rules.policy.switching else { return Vec::new() };
        let entries = switching.fdb.entries(now());
        entries.map(|entry| Address { vlan: entry.vlan, mac: entry.mac, port: PortId(entry.port) }).collect()
    }
}
