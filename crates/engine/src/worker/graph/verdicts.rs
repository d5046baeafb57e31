// SPDX-License-Identifier: Apache-2.0
//! Tells the flow monitor what rules have decided of the packets that it has counted, and what NAT makes of flows.

use dpdk::Mbuf;
use netvm_conntrack::Zone;
use netvm_flowmon::{Decided, Record, Verdict};

use crate::ids::PortId;
use crate::policy::Outcome;
use crate::snapshot::Snapshot;
use crate::worker::act::decision;
use crate::worker::next::{Next, Side};
use crate::worker::state::Datapath;
use crate::worker::state::connections::{WorkerConnections, rule_number};
use crate::worker::state::lookup_results::{Action, PacketAction};

/// A port that has received packets.
#[derive(Clone, Copy)]
pub(crate) struct At<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) port: PortId,
}

/// Notes the actions of packets.
#[inline(never)]
pub(crate) fn note(dp: &mut Datapath, at: At<'_>, packets: &[Mbuf], action: impl Fn(usize) -> PacketAction) {
    let Some(monitor) = &mut dp.monitor else { return };
    let mut last: Option<(PacketAction, Decided)> = None;
    monitor.decided(packets, |n| {
        let action = action(n);
        match last {
            Some((known, decided)) if known == action => decided,
            _ => last.insert((action, decided(at, action))).1,
        }
    });
}

/// Which rule an action is of, and what becomes of the packet.
fn decided(at: At<'_>, action: PacketAction) -> Decided {
    let At { snapshot, port: from } = at;
    let decision = snapshot.policy.decision(action.decision);
    let decider = decision.rules.last().filter(|_| decision.outcome != Outcome::Undecided);
    let is_filtered = matches!(action.action.unpack(), Action::Filter | Action::WrongVlan | Action::DropFlow);
    let verdict = match decision::outcome(snapshot, Side::Ingress(from), action) {
        Next::Reject { .. } => Verdict::Rejected,
        Next::Drop(..) => Verdict::Dropped,
        _ if is_filtered => Verdict::Dropped,
        _ => Verdict::Forwarded,
    };
    Decided { rule: decider.map_or(0, |rule| rule_number(*rule)), verdict }
}

/// Adds to the record of a flow what NAT makes of it.
#[cold]
pub(crate) fn complete(
    record: &mut Record,
    snapshot: &Snapshot,
    connections: &Option<Box<WorkerConnections>>,
) {
    let tracking = snapshot.policy.ingress(PortId(record.ingress)).and_then(|ingress| ingress.tracking);
    // A port that does not track may lead to a router that does.
    let zone = Zone(tracking.map_or(0, |tracking| tracking.zone));
    if let (Some(connections), Some(_)) = (connections, &snapshot.nat) {
        connections.complete(record, zone);
    }
}
