// SPDX-License-Identifier: Apache-2.0
//! Divides the flows among another number of workers. In: their new owners. Out: the same flows, each with its new
//! owner, in order.
//!
//! ```text
//!  1  ports whose packets go to owners stop; packets that arrive wait in their devices
//!  2  what was received before has left the rings between workers, and NFs have returned it
//!  3  workers learn the new owners, and give these the verdicts that NFs have given on their flows
//!  4  the ports start again
//! ```
//!
//! The flow monitor of a former owner keeps what it has counted, and exports it when the flow has been idle for long
//! enough; the new owner starts another record.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use netvm_conntrack::FlowOwners;

use crate::ids::{LinkId, WorkerId};
use crate::manager::nfs::Nfs;
use crate::manager::workers::{COMMAND_TIMEOUT, Workers};
use crate::worker::{Command, Event, MovedFlow, MovedFlows};

/// Gives the flows with verdicts to these owners, which all workers know.
pub(crate) fn move_verdicts(owners: &Arc<FlowOwners>, nfs: &Nfs, workers: &mut Workers) {
    for from in workers.ids() {
        let mut part = Some(MovedFlows::new(owners));
        while let Some(flows) = part.filter(|flows| flows.cursor.is_some()) {
            part = take(from, flows, workers);
            if let Some(flows) = &mut part {
                for (to, mut flows) in by_owner(owners, flows.flows.drain(..)) {
                    change_links(&mut flows, &nfs.links_between(from, to));
                    workers.send(to, Command::GiveFlows(MovedFlows::of(owners, flows)));
                }
            }
        }
    }
    workers.wait_for_all();
}

/// A part of a worker's flows that others own now.
fn take(from: WorkerId, flows: Box<MovedFlows>, workers: &mut Workers) -> Option<Box<MovedFlows>> {
    workers.send(from, Command::TakeFlows(flows));
    workers.wait_for(COMMAND_TIMEOUT, |_, event| match event {
        Event::FlowsTaken(flows) => ControlFlow::Break(flows),
        other => ControlFlow::Continue(Some(other)),
    })
}

fn by_owner(
    owners: &FlowOwners,
    flows: impl Iterator<Item = MovedFlow>,
) -> BTreeMap<WorkerId, Vec<MovedFlow>> {
    let mut by_owner: BTreeMap<WorkerId, Vec<MovedFlow>> = BTreeMap::new();
    for flow in flows {
        by_owner.entry(flow.owner(owners)).or_default().push(flow);
    }
    by_owner
}

/// Changes the links of the flows' verdicts to those of another worker.
fn change_links(flows: &mut [MovedFlow], links: &BTreeMap<LinkId, LinkId>) {
    for verdict in flows.iter_mut().flat_map(|flow| &mut flow.verdicts) {
        // The NF may have ended.
        let link = verdict.and_then(|verdict| links.get(&verdict.link).copied());
        *verdict = verdict.zip(link).map(|(verdict, link)| verdict.on(link));
    }
}
