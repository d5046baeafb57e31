//! Takes the packets that other workers have received and whose flows this worker owns. In: rings between workers. Out: the
//! same as for packets that this worker has received itself.
//!
//! Cost: see [`owner`](super::owner).

use arrayvec::ArrayVec;

use super::chain::entry::room_at_entry;
use super::rx::{Received, arrived, ingress};
use super::state::burst::{Burst, Context, Origin};
use super::state::handoff::Parcel;
use super::state::{BURST, Datapath};
use crate::ids::{MemoryId, PortId};
use crate::snapshot::Snapshot;

/// Handles packets that other workers received and this one owns. Returns their number.
pub(crate) fn take_arrivals(dp: &mut Datapath, snapshot: &Snapshot, burst: &mut Burst) -> usize {
    let mut count = 0;
    for peer in 0..dp.ports.handoff.peers() {
        if dp.ports.handoff.has_arrivals(peer) && has_room(dp, snapshot) {
            let mut parcels = ArrayVec::<Parcel, BURST>::new();
            dp.ports.handoff.take_received(peer, |parcel| parcels.push(parcel));
            count += parcels.len();
            handle(dp, snapshot, parcels, burst);
        }
    }
    count
}

/// Whether chains of ports that wait for room have it.
fn has_room(dp: &mut Datapath, snapshot: &Snapshot) -> bool {
    snapshot.waited_for.iter().all(|chain| room_at_entry(dp, snapshot, *chain, BURST) == BURST)
}

/// Handles packets, in runs from one port.
fn handle(dp: &mut Datapath, snapshot: &Snapshot, parcels: ArrayVec<Parcel, BURST>, burst: &mut Burst) {
    let mut from = None;
    for parcel in parcels {
        if let Some(before) = from
            && before != (parcel.port, parcel.memory)
        {
            handle_run(dp, snapshot, before, burst);
        }
        from = Some((parcel.port, parcel.memory));
        // A packet of another worker's guest may have pending offloads.
        dp.ports.has_offload_work |= !parcel.mbuf.is_plain();
        let _ = burst.batch.push(parcel.mbuf);
    }
    if let Some(last) = from {
        handle_run(dp, snapshot, last, burst);
    }
}

fn handle_run(dp: &mut Datapath, snapshot: &Snapshot, (port, memory): (PortId, MemoryId), burst: &mut Burst) {
    let origin = Origin::of(Context { snapshot, memory }, port);
    let origin = Origin { admitted: snapshot.waiting.has(port), ..origin };
    let bytes = burst.batch.as_slice().iter().map(|mbuf| u64::from(mbuf.pkt_len())).sum();
    arrived(dp, snapshot, port, &burst.batch);
    ingress(dp, Received { origin, bytes, taken: 0 }, burst);
    // Whatever the stages left.
    burst.batch.clear();
}
