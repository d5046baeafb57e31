// SPDX-License-Identifier: Apache-2.0
//! Flows with verdicts that another worker owns from now on. The manager carries them, in parts, from the former owner
//! to the new one: `links` of a verdict are a worker's own, so the manager names those of the new owner.

use std::ops::Range;
use std::sync::Arc;

use arrayvec::ArrayVec;
use netvm_conntrack::FlowOwners;
use netvm_flow::{New, Options, Slot, Validity};
use netvm_wire::FlowKey;

use crate::ids::{PortId, WorkerId};
use crate::worker::packet::keys::owner_hash;
use crate::worker::state::flow_verdicts::{ANY_GENERATION, FlowVerdicts, MAX_VERDICTS, Verdict};

/// Slots of the table that one part covers, in some tens of microseconds.
const SLOTS: usize = 1024;

/// A flow, and the verdicts on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MovedFlow {
    pub(crate) port: PortId,
    pub(crate) key: FlowKey,
    /// Tick of its last packet.
    last_used: u32,
    pub(crate) verdicts: [Option<Verdict>; MAX_VERDICTS],
}

impl MovedFlow {
    /// The worker that owns it.
    pub(crate) fn owner(&self, owners: &FlowOwners) -> WorkerId {
        WorkerId(owners.of(owner_hash(&self.key)))
    }
}

/// Some of a worker's flows.
#[derive(Debug)]
pub(crate) struct MovedFlows {
    /// The owners from now on.
    owners: Arc<FlowOwners>,
    /// The next slot to read; `None` at the end.
    pub(crate) cursor: Option<usize>,
    /// Filled up to its capacity: a worker does not allocate.
    pub(crate) flows: Vec<MovedFlow>,
}

impl MovedFlows {
    /// Without flows, from the first slot on.
    pub(crate) fn new(owners: &Arc<FlowOwners>) -> Box<Self> {
        let flows = Vec::with_capacity(SLOTS);
        Box::new(Self { owners: Arc::clone(owners), cursor: Some(0), flows })
    }

    /// These flows, for their new owner.
    pub(crate) fn of(owners: &Arc<FlowOwners>, flows: Vec<MovedFlow>) -> Box<Self> {
        Box::new(Self { owners: Arc::clone(owners), cursor: None, flows })
    }

    /// Takes the next flows of a worker that others own now.
    pub(crate) fn take(&mut self, worker: WorkerId, table: &mut FlowVerdicts, now: u32) {
        let first = self.cursor.unwrap_or(0);
        let Self { owners, flows, .. } = self;
        let has_more = table.take_some(first..first + SLOTS, now, |flow| {
            let moves = flow.owner(owners) != worker && flows.len() < flows.capacity();
            if moves {
                flows.push(*flow);
            }
            moves
        });
        self.cursor = has_more.then_some(first + SLOTS);
    }
}

impl FlowVerdicts {
    /// Shows the flows with verdicts in these slots, at most [`SLOTS`], and removes those for which `take` says so.
    /// Returns whether there are more slots.
    fn take_some(&mut self, slots: Range<usize>, now: u32, mut take: impl FnMut(&MovedFlow) -> bool) -> bool {
        if !self.any() {
            return false;
        }
        let validity = Validity { generation: ANY_GENERATION, now };
        let entries = self.table.entries_from(slots.start, slots.len(), validity);
        let used: ArrayVec<Slot, SLOTS> = entries.map(|(slot, _)| slot).take(SLOTS).collect();
        for slot in used {
            self.remove_ended(slot, now);
            let verdicts = self.verdicts[slot.index()];
            let entry = self.table.entry(slot);
            let (port, key, last_used) = (PortId(entry.port()), entry.key(), entry.last_used);
            if verdicts.iter().flatten().next().is_none()
                || take(&MovedFlow { port, key, last_used, verdicts })
            {
                self.table.invalidate(slot);
            }
        }
        slots.end < self.table.capacity()
    }

    /// Records flows that another worker owned.
    pub(crate) fn add_moved(&mut self, moved: &MovedFlows, now: u32) {
        for flow in &moved.flows {
            let new = New { decision: 0, extra: 0, lifetime: Options::NEVER };
            let slot =
                self.table.insert(flow.port.0, &flow.key, new, Validity { generation: ANY_GENERATION, now });
            self.table.hit(slot, 0, 0, flow.last_used);
            self.verdicts[slot.index()] = flow.verdicts.map(|verdict| Some(self.renewed(verdict?)));
            self.any = true;
        }
    }
}
