//! In: packets that a rule mirrors. Out: a copy of each to the tx stage of another port. Cost:
//! [`copy`](crate::worker::tx::copy), and sending the copy.

use dpdk::Batch;

use crate::ids::{MemoryId, PortId};
use crate::worker::state::Datapath;
use crate::worker::tx::copy::copies_for;
use crate::worker::tx::transmit::transmit;

/// Sends a copy of each packet by a port. The port's egress rules do not apply.
pub(crate) fn mirror(dp: &mut Datapath, to: PortId, memory: MemoryId, batch: &Batch) {
    let mut copies = copies_for(dp, to, memory, batch.as_slice());
    transmit(dp, to, memory, &mut copies);
}
