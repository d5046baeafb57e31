//! In: packets that other workers handed over, for ports for which only this worker has a tx queue. Out: to [`transmit`].
//!
//! Predicted cost: one slot of 16 bytes from another core for each packet, a quarter of a cache line: 30 to 100 cycles. A
//! turn without such packets checks each ring once.

use dpdk::Batch;

use super::transmit::transmit;
use crate::ids::PortId;
use crate::worker::state::{BURST, Datapath};

/// Sends packets that other workers handed over. Returns their number.
pub(crate) fn take_handoffs(dp: &mut Datapath) -> usize {
    let mut count = 0;
    for n in 0..dp.ports.handoff.from.len() {
        let mut run = Batch::new();
        let mut target = None;
        while run.len() < BURST
            && let Ok(parcel) = dp.ports.handoff.from[n].pop()
        {
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
            count += 1;
        }
        if let Some((port, memory)) = target {
            transmit(dp, port, memory, &mut run);
        }
    }
    count
}
