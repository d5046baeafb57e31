// SPDX-License-Identifier: Apache-2.0
//! Hops that are programs with two ports. In: packets for such a hop, and packets that a program's port has received.
//! Out: by the program's port; and to the hop after it. The position in the chain is a property of the port, so a
//! packet that comes back carries nothing. A program's own packets go the same way.
//!
//! [Probes](super::super::packet::probe) end here, and are counted.
//!
//! Cost: one cache line of each packet that comes back, which later stages read, too. Several programs: a key per
//! packet on the way in.

use dpdk::{Batch, PortNumber};
use netvm_wire::FlowKey;

use super::hop::Hop;
use super::routed::is_routable;
use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::snapshot::{PairReturn, PairTarget, Passed, Side, Target};
use crate::worker::next::{ChainHop, Dispatch, Next, PairEntry, Position, Step};
use crate::worker::packet::keys::key_of;
use crate::worker::packet::probe::is_probe;
use crate::worker::state::Datapath;
use crate::worker::state::burst::Context;

/// Sends packets to the only program of a hop, or to one for each flow.
pub(crate) fn choose(cx: Context<'_>, hop: Hop) -> Next {
    let Hop { chain, position } = hop;
    match hop.target(cx.snapshot) {
        Some(Target::Pair(target)) if target.ports.len() == 1 && !target.routes => {
            Next::IntoPair(entry(target, hop, target.ports[0]))
        }
        _ => Next::PairOfFlow(chain, position),
    }
}

const fn entry(target: &PairTarget, hop: Hop, port: PortId) -> PairEntry {
    let at = ChainHop { chain: hop.chain, hop: target.hop };
    PairEntry { port, at, from: hop.position.entered_from(), side: target.side }
}

/// Chooses the program for each packet by its flow. What a program that routes does not get goes to the next hop.
pub(crate) fn choose_each(burst: &mut Dispatch<'_>, hop: Hop) -> Step {
    let Dispatch { cx, batch, split, .. } = burst;
    let Some(Target::Pair(target)) = hop.target(cx.snapshot) else {
        return Step::All(Next::drop_in(hop.chain, DropReason::NfDown));
    };
    let behind = match hop.position.entered_from() {
        Some(from) => Position::Later(from, target.hop + 1),
        None => Position::Inside(target.hop + 1),
    };
    for (next, mbuf) in split.nexts.iter_mut().zip(batch.as_slice()) {
        let key = key_of(mbuf).ok();
        let tuple = key.as_ref().and_then(FlowKey::five_tuple);
        let nth = tuple.map_or(0, |tuple| tuple.symmetric_hash()) % target.ports.len() as u64;
        *next = if target.routes && !key.as_ref().is_some_and(is_routable) {
            Next::Hop(hop.chain, behind)
        } else {
            Next::IntoPair(entry(target, hop, target.ports[nth as usize]))
        };
    }
    Step::Each
}

/// Takes probes out of what a program's port has received.
pub(crate) fn take_probes(dp: &Datapath, port: PortId, batch: &mut Batch) {
    if batch.as_slice().iter().any(is_probe) {
        let probes = batch.partition(|mbuf| !is_probe(mbuf));
        if let Some(counters) = dp.counters.ports.get(port.index()) {
            counters.probes.add(probes.len() as u64);
        }
    }
}

/// Where packets go that had entered the program by a side and have come back, and what they have passed.
pub(crate) fn go_on(
    dp: &Datapath,
    back: &PairReturn,
    side: Option<Side>,
    batch: &mut Batch,
) -> Result<(Next, ChainHop), Next> {
    let passed = side.and_then(|side| back.passed[usize::from(side)]);
    let Some(Passed { chain, hop, from }) = passed else {
        return Err(Next::drop_at(back.port, DropReason::NotOfHop));
    };
    if !back.is_up {
        return Err(Next::drop_at(back.port, DropReason::LateFromHop));
    }
    if let Some(counters) = dp.counters.ports.get(back.port.index()) {
        counters.from_hop.add(batch.len() as u64);
    }
    if let Some(from) = from {
        batch.as_mut_slice().iter_mut().for_each(|mbuf| mbuf.set_port(PortNumber(from.0)));
    }
    Ok((Next::Hop(chain, Position::Inside(hop + 1)), ChainHop { chain, hop }))
}
