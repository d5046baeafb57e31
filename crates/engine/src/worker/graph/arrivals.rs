// SPDX-License-Identifier: Apache-2.0
//! In: packets that other workers have received and whose flows this worker owns. Out: where those go that it has
//! received itself. For their cost see [`owner`](crate::worker::owner).

use arrayvec::ArrayVec;

use super::handoff::send_all_handed_over;
use super::record;
use super::rx::{Received, arrived, ingress};
use crate::ids::PortId;
use crate::snapshot::Snapshot;
use crate::worker::chain::entry::room_at_entry;
use crate::worker::packet::bytes_of;
use crate::worker::state::burst::{Burst, Context};
use crate::worker::state::handoff::HandoffPacket;
use crate::worker::state::{BURST, Datapath};

/// Finishes what other workers have handed over so far; they may hand over more meanwhile. Returns false if some of it
/// still waits, because chains of ports that wait for room have none.
pub(crate) fn finish_handed_over(dp: &mut Datapath, snapshot: &Snapshot, burst: &mut Burst) -> bool {
    let mut is_done = true;
    for peer in 0..dp.ports.handoff.peers() {
        let mut left = dp.ports.handoff.arrivals(peer);
        while left > 0 {
            // As many as in a turn.
            dp.passed = 0;
            let taken = take_arrivals_of(dp, snapshot, peer, burst);
            if taken == 0 {
                is_done = false;
                break;
            }
            left = left.saturating_sub(taken);
        }
    }
    send_all_handed_over(dp);
    dp.flush_ports();
    is_done
}

/// Handles packets that other workers received and this one owns. Returns their number.
pub(crate) fn take_arrivals(dp: &mut Datapath, snapshot: &Snapshot, burst: &mut Burst) -> usize {
    (0..dp.ports.handoff.peers()).map(|peer| take_arrivals_of(dp, snapshot, peer, burst)).sum()
}

/// The same of one other worker, at most a burst.
fn take_arrivals_of(dp: &mut Datapath, snapshot: &Snapshot, peer: usize, burst: &mut Burst) -> usize {
    if !dp.ports.handoff.has_arrivals(peer) || !has_room(dp, snapshot) {
        return 0;
    }
    let mut packets = ArrayVec::<HandoffPacket, BURST>::new();
    dp.ports.handoff.take_received(peer, |packet| packets.push(packet));
    let count = packets.len();
    handle_received(dp, snapshot, packets, burst);
    count
}

/// Whether packets of ports that wait for room have it: in chains, and in rings to other workers.
fn has_room(dp: &mut Datapath, snapshot: &Snapshot) -> bool {
    if !snapshot.waiting.is_empty() && dp.ports.handoff.is_filling() {
        return false;
    }
    snapshot.waited_for.iter().all(|chain| room_at_entry(dp, snapshot, *chain, BURST) == BURST)
}

/// Handles packets, in runs from one port.
fn handle_received(
    dp: &mut Datapath,
    snapshot: &Snapshot,
    packets: ArrayVec<HandoffPacket, BURST>,
    burst: &mut Burst,
) {
    let mut from = None;
    for packet in packets {
        if let Some((port, memory)) = from
            && (port, memory) != (packet.port, packet.memory)
        {
            handle_run(dp, Context::new(snapshot, memory), port, burst);
        }
        from = Some((packet.port, packet.memory));
        // A packet of another worker's guest may have pending offloads.
        dp.ports.has_offload_work |= !packet.mbuf.is_plain();
        burst.batch.add(packet.mbuf);
    }
    if let Some((port, memory)) = from {
        handle_run(dp, Context::new(snapshot, memory), port, burst);
    }
}

fn handle_run(dp: &mut Datapath, cx: Context<'_>, port: PortId, burst: &mut Burst) {
    let cx = Context { admitted: cx.snapshot.waiting.has(port), ..cx };
    let bytes = bytes_of(&burst.batch);
    if dp.recorder.is_some() {
        record::taken_over(dp);
    }
    arrived(dp, cx.snapshot, port, &burst.batch);
    ingress(dp, Received { cx, port, bytes, taken: 0 }, burst);
}
