//! Applies per-flow verdicts of NFs. In: packets with their decisions. Out: each mbuf marked with its flow, for later
//! verdicts, and [`Action::DropFlow`](crate::worker::state::lookup_results::Action) or `SkipHops` for packets of flows
//! with verdicts.
//!
//! Predicted cost: one lookup for each packet of a port whose chains allow such verdicts, 10 cycles; nothing for others.

use netvm_flow::Slot;

use super::classifier::Classifier;
use crate::ids::ChainId;
use crate::policy::Outcome;
use crate::worker::state::BURST;
use crate::worker::state::burst::{Burst, Ingress};
use crate::worker::state::flow_verdicts::note_flows;
use crate::worker::state::lookup_results::PackedAction;

#[cold]
pub(crate) fn apply(cl: &mut Classifier<'_>, ingress: &Ingress<'_>, burst: &mut Burst) {
    let Burst { batch, results } = burst;
    let (port, snapshot) = (ingress.origin.port, ingress.origin.cx.snapshot);
    let count = batch.len().min(BURST);
    let keys = &results.keys[..count];
    note_flows(&cl.flows.cache, port, (keys, &results.slots[..count]), batch);
    let mut slots = [Slot::FIRST; BURST];
    let mut found = cl.flows.verdicts.look_up(port, keys, cl.tick, &mut slots[..count]);
    while found != 0 {
        let n = found.trailing_zeros() as usize;
        found &= found - 1;
        let chain = chain_of(ingress, results.decisions[n]);
        if let Some(path) = chain.and_then(|chain| snapshot.chain(chain))
            && let Some(action) = cl.flows.verdicts.action_on(slots[n], path)
        {
            results.actions[n] = PackedAction::new(action);
        }
    }
}

/// The chain that a decision leads to.
fn chain_of(ingress: &Ingress<'_>, decision: u32) -> Option<ChainId> {
    let decision = ingress.origin.cx.snapshot.policy.decision(decision);
    match decision.outcome.resolved(ingress.policy.forward, ingress.policy.undecided) {
        Outcome::Chain(chain) => Some(chain),
        _ => None,
    }
}
