// SPDX-License-Identifier: Apache-2.0
//! What a worker keeps of flows that the kernel forwards in its place, or is to. In: flows, and what the kernel has
//! forwarded of them. Out: whether nobody needs to see their packets: the connection is open, every NF of the chain has
//! released the flow, and the flow monitor knows it. A worker that does not own a flow keeps nothing of it.

use netvm_conntrack::{Tuple, Unseen, Zone};
use netvm_wire::FlowKey;

use crate::ids::{ChainId, PortId};
use crate::snapshot::Snapshot;
use crate::worker::state::Datapath;
use crate::worker::state::flow_verdicts::Flow;

/// Flows of a visit: a worker looks at them between two turns.
pub(crate) const VISITED_AT_ONCE: usize = 64;

/// What is kept of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keeps {
    /// Its connection, which has to be open.
    pub(crate) connection: bool,
    /// The chain whose NFs must have released it.
    pub(crate) chain: Option<ChainId>,
    /// Its place in the flow monitor.
    pub(crate) monitored: bool,
}

impl Keeps {
    pub(crate) const NOTHING: Self = Self { connection: false, chain: None, monitored: false };

    /// An open connection.
    pub(crate) const CONNECTION: Self = Self { connection: true, ..Self::NOTHING };

    /// Whether the worker has to see how connections open and close.
    pub(crate) const fn sees_ends(&self) -> bool {
        self.connection || self.monitored
    }
}

/// A flow.
#[derive(Clone, Debug)]
pub(crate) struct Visited {
    /// The port that receives it, and its header fields.
    pub(crate) port: PortId,
    pub(crate) key: FlowKey,
    pub(crate) keeps: Keeps,
    /// What the kernel has forwarded of it since the last visit.
    pub(crate) unseen: Unseen,
    /// The answer of the worker: nobody needs to see its packets.
    pub(crate) may_pass: bool,
    /// For so many ticks without a packet, if NFs limit that.
    pub(crate) idle: Option<u32>,
    /// What NAT makes of its packets, if they are translated.
    pub(crate) after: Option<Tuple>,
}

/// Flows, at most [`VISITED_AT_ONCE`].
#[derive(Clone, Debug)]
pub(crate) struct Visit {
    /// By which the manager knows it.
    pub(crate) ticket: u64,
    pub(crate) flows: Vec<Visited>,
}

impl Visit {
    /// Has the worker answer.
    pub(crate) fn answer(&mut self, dp: &mut Datapath, snapshot: &Snapshot) {
        for flow in &mut self.flows {
            flow.answer(dp, snapshot);
        }
    }
}

impl Visited {
    fn answer(&mut self, dp: &mut Datapath, snapshot: &Snapshot) {
        let (now, flow) = (dp.clock.tick, Flow { port: self.port, key: self.key });
        self.idle = match self.keeps.chain {
            Some(chain) => {
                let path = snapshot.chain(chain);
                let idle = path.and_then(|path| dp.flows.verdicts.released(&flow, path, now));
                if idle.is_none() {
                    return;
                }
                idle
            }
            None => None,
        };
        if self.keeps.connection {
            let tracking = snapshot.policy.ingress(self.port).and_then(|ingress| ingress.tracking);
            let (Some(tracking), Some(connections)) = (tracking, dp.connections.as_deref_mut()) else {
                return;
            };
            let after = connections.table.passed(&self.key, Zone(tracking.zone), now, self.unseen);
            let Some(after) = after else { return };
            let is_same = (after.source, after.destination) == (self.key.source, self.key.destination)
                && [after.source_port, after.destination_port]
                    == [self.key.source_port, self.key.destination_port];
            self.after = Some(after).filter(|_| !is_same);
        }
        if self.keeps.monitored {
            let now = dp.clock.now;
            let Some(monitor) = &mut dp.monitor else { return };
            if !monitor.count_unseen(&self.key, self.unseen, now) {
                return;
            }
        }
        if self.keeps.chain.is_some() && self.unseen.packets > 0 {
            let packets = u32::try_from(self.unseen.packets).unwrap_or(u32::MAX);
            dp.flows.verdicts.passed(&flow, packets, self.unseen.bytes, now);
        }
        self.may_pass = true;
    }
}
