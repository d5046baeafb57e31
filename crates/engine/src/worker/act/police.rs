//! In: packets under a rate limit. Out: the packets that conform.
//!
//! Predicted cost: the length of each packet (one line that the rx stage has read), and one update of the meter for each
//! burst: 2 cycles per packet in bursts of 64, more if workers share the meter's cache line.

use dpdk::Batch;
use netvm_switch::Meter;

use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::worker::state::{BURST, Datapath};

/// Drops packets that exceed a rate. The first packets of the burst conform.
pub(crate) fn police(dp: &Datapath, meter: &Meter, port: PortId, batch: &mut Batch) {
    limit(dp, meter, (port, DropReason::Policed), batch);
}

/// As [`police`], with another drop reason.
pub(crate) fn limit(dp: &Datapath, meter: &Meter, (port, reason): (PortId, DropReason), batch: &mut Batch) {
    let mut lengths = [0u32; BURST];
    for (length, mbuf) in lengths.iter_mut().zip(batch.as_slice()) {
        *length = mbuf.pkt_len();
    }
    let admitted = meter.admit_run(dp.clock.now, &lengths[..batch.len()]);
    let mut excess = batch.split_off(admitted);
    if !excess.is_empty() {
        dp.drop_at_port(port, reason, &mut excess);
    }
}
