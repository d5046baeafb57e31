// SPDX-License-Identifier: Apache-2.0
//! Applies per-flow verdicts of NFs. In: packets with their decisions. Out: each mbuf marked with its flow, for later
//! verdicts, and [`Action::DropFlow`](crate::worker::state::lookup_results::Action) or `SkipHops` for packets of flows
//! with verdicts.
//!
//! Cost: one lookup for each packet of a port whose chains allow such verdicts; nothing for others.

use netvm_flow::Slot;

use super::classifier::Classifier;
use super::scope::Scope;
use crate::ids::ChainId;
use crate::policy::Outcome;
use crate::worker::state::BURST;
use crate::worker::state::burst::Burst;
use crate::worker::state::flow_verdicts::note_flows;
use crate::worker::state::lookup_results::PackedAction;

#[cold]
pub(crate) fn apply(cl: &mut Classifier<'_>, scope: &Scope<'_>, burst: &mut Burst) {
    let Burst { batch, results, .. } = burst;
    let (port, snapshot) = (scope.side.port(), scope.snapshot);
    let count = batch.len().min(BURST);
    let keys = &results.keys[..count];
    note_flows(&cl.flows.cache, port, results, batch);
    let mut slots = [Slot::FIRST; BURST];
    let mut found = cl.flows.verdicts.look_up(port, keys, cl.tick, &mut slots[..count]);
    while found != 0 {
        let n = found.trailing_zeros() as usize;
        found &= found - 1;
        let chain = chain_of(scope, results.decisions[n]);
        if let Some(path) = chain.and_then(|chain| snapshot.chain(chain))
            && let Some(action) = cl.flows.verdicts.action_on(slots[n], path)
        {
            results.actions[n] = PackedAction::new(action);
        }
    }
}

/// The chain that a decision leads to.
fn chain_of(scope: &Scope<'_>, decision: u32) -> Option<ChainId> {
    match scope.outcome(scope.snapshot.policy.decision(decision)) {
        Outcome::Chain(chain) => Some(chain),
        _ => None,
    }
}
