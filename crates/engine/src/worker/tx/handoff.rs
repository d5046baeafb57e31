//! In: packets that other workers handed over, for ports for which only this worker has a tx queue. Out: to [`transmit`].
//!
//! A turn takes one burst from each other worker, as it does from each port. From a worker whose packets fill the ring it takes
//! up to [`MOST_BURSTS`]: these packets have cost more than those that still wait at a port.
//!
//! Predicted cost: one slot of 16 bytes from another core for each packet, a quarter of a cache line: 30 to 100 cycles. A
//! turn without such packets checks each ring once.

use arrayvec::ArrayVec;
use dpdk::Batch;

use super::transmit::transmit;
use crate::ids::PortId;
use crate::worker::state::handoff::{Parcel, WAIT_ABOVE};
use crate::worker::state::{BURST, Datapath};

/// Bursts that a turn takes from a ring that is filling up.
const MOST_BURSTS: usize = 4;

/// Sends packets that other workers handed over. Returns their number.
pub(crate) fn take_handoffs(dp: &mut Datapath) -> usize {
    let mut count = 0;
    for peer in 0..dp.ports.handoff.peers() {
        for _ in 0..MOST_BURSTS {
            let mut parcels = ArrayVec::<Parcel, BURST>::new();
            let waiting = dp.ports.handoff.take(peer, |parcel| parcels.push(parcel));
            count += parcels.len();
            send(dp, parcels);
            if waiting < WAIT_ABOVE {
                break;
            }
        }
    }
    count
}

/// Sends packets, in runs for one port.
fn send(dp: &mut Datapath, parcels: ArrayVec<Parcel, BURST>) {
    let mut run = Batch::new();
    let mut target = None;
    for parcel in parcels {
        if let Some((port, memory)) = target
            && (port, memory) != (parcel.port, parcel.memory)
        {
            transmit(dp, port, memory, &mut run);
        }
        target = Some((parcel.port, parcel.memory));
        // A packet of another worker's guest may have pending offloads.
        dp.ports.has_offload_work |= !parcel.mbuf.is_plain();
        if parcel.stamp != 0 {
            let from = PortId(parcel.mbuf.port().0);
            dp.latency.take_over((from, parcel.port), parcel.stamp);
        }
        let _ = run.push(parcel.mbuf);
    }
    if let Some((port, memory)) = target {
        transmit(dp, port, memory, &mut run);
    }
}
