//! In: packets that a rule mirrors. Out: a copy of each to the tx stage of another port. Cost: that of
//! [`copy`](crate::worker::tx::copy), and of sending the copy.

use dpdk::Batch;

use crate::drop_reason::DropReason;
use crate::ids::{MemoryId, PortId};
use crate::worker::state::Datapath;
use crate::worker::tx::copy::copies_of;
use crate::worker::tx::transmit::transmit;

/// Sends a copy of each packet by a port, whatever that port's own rules say. A copy that finds no buffer is a drop of
/// that port.
pub(crate) fn mirror(dp: &mut Datapath, to: PortId, memory: MemoryId, batch: &Batch) {
    let mut copies = Batch::new();
    let lost = copies_of(dp, memory, batch.as_slice(), &mut copies);
    if lost > 0
        && let Some(counters) = dp.counters.ports.get(to.index())
    {
        counters.drops.add(DropReason::NoBuffer, lost as u64);
    }
    transmit(dp, to, memory, &mut copies);
}
