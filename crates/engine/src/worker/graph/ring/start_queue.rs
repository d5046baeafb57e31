// SPDX-License-Identifier: Apache-2.0
//! Packets that wait for programs with ports that are starting (`while_starting = "hold"`). In: packets for a hop whose
//! program does not forward yet. Out: the same packets, in order, to the same hop when a new snapshot says something
//! else of it: into the program, past it, or dropped. Those for which there is no room are dropped, and counted in
//! their chain.

use dpdk::Batch;

use crate::drop_reason::DropReason;
use crate::ids::MemoryId;
use crate::snapshot::Snapshot;
use crate::worker::chain::hop::Hop;
use crate::worker::graph::{observe, walk};
use crate::worker::next::{CountedAt, Next, Position};
use crate::worker::state::Datapath;
use crate::worker::state::burst::Context;
use crate::worker::state::nf_links::start_queue::{Waiting, WaitsAt};

/// Has packets wait for the program at a hop; the batch is empty afterwards.
#[cold]
pub(crate) fn wait(dp: &mut Datapath, cx: Context<'_>, hop: Hop, batch: &mut Batch) {
    let chain = hop.chain;
    let (Some(role), Some(to)) = (hop.waits_for(cx.snapshot), place_of(hop, cx.memory)) else {
        return walk(dp, cx, Next::drop_in(chain, DropReason::NfDown), batch);
    };
    let room = dp.start_queue.room(role);
    let mut excess = Batch::new();
    for (n, mbuf) in batch.drain().enumerate() {
        match n < room {
            true => dp.start_queue.push(Waiting { mbuf, role, to }),
            false => excess.add(mbuf),
        }
    }
    if !excess.is_empty() {
        observe::drop(dp, CountedAt::Chain(chain), DropReason::StartQueueFull, &mut excess);
    }
}

/// Where packets wait; `None` for an NF beside the chain, which is no program.
const fn place_of(hop: Hop, memory: MemoryId) -> Option<WaitsAt> {
    let Hop { chain, position } = hop;
    let (hop, from) = match position {
        Position::Entry(from) => (None, Some(from)),
        Position::Later(from, hop) => (Some(hop), Some(from)),
        Position::Inside(hop) => (Some(hop), None),
        Position::Aside { .. } => return None,
    };
    Some(WaitsAt { chain, hop, from, memory })
}

/// The position at which packets have waited.
const fn position_of(to: WaitsAt) -> Position {
    match (to.hop, to.from) {
        (None, Some(from)) => Position::Entry(from),
        (Some(hop), Some(from)) => Position::Later(from, hop),
        (Some(hop), None) => Position::Inside(hop),
        (None, None) => Position::Inside(0),
    }
}

/// Sends the packets that wait to where a new snapshot says.
pub(crate) fn release(dp: &mut Datapath, snapshot: &Snapshot) {
    let mut run = Batch::new();
    let mut of_run = None;
    // Those that have to wait further come behind.
    for _ in 0..dp.start_queue.len() {
        let Some(Waiting { mbuf, to, .. }) = dp.start_queue.pop() else { break };
        if of_run.is_some_and(|before| before != to) || run.len() == Batch::CAPACITY {
            send(dp, snapshot, of_run, &mut run);
        }
        of_run = Some(to);
        run.add(mbuf);
    }
    send(dp, snapshot, of_run, &mut run);
}

fn send(dp: &mut Datapath, snapshot: &Snapshot, to: Option<WaitsAt>, run: &mut Batch) {
    if let Some(to) = to {
        walk(dp, Context::new(snapshot, to.memory), Next::Hop(to.chain, position_of(to)), run);
    }
}

/// Drops the packets that wait, because the worker ends; or those in a memory that it gives up.
pub(crate) fn drop_waiting(dp: &mut Datapath, memory: Option<MemoryId>) {
    for _ in 0..dp.start_queue.len() {
        let Some(packet) = dp.start_queue.pop() else { return };
        if memory.is_some_and(|memory| memory != packet.to.memory) {
            dp.start_queue.push(packet);
            continue;
        }
        let mut one = Batch::from(packet.mbuf);
        observe::drop(dp, CountedAt::Chain(packet.to.chain), DropReason::NfDown, &mut one);
    }
}
