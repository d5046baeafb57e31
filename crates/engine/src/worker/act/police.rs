// SPDX-License-Identifier: Apache-2.0
//! In: packets under a rate limit. Out: the packets that conform.
//!
//! Cost: the length of each packet (one line that the rx stage has read), and one update of the meter for each burst,
//! which takes longer if workers share the meter's cache line.

use dpdk::{Batch, Mbuf};
use netvm_switch::Meter;

use crate::worker::state::BURST;

/// Takes out the packets that exceed a rate. The first packets of the burst conform.
pub(crate) fn police(meter: &Meter, now: u64, batch: &mut Batch) -> Batch {
    let admitted = admitted(meter, now, batch.as_slice());
    batch.split_off(admitted)
}

/// How many packets conform, which are the first ones.
pub(crate) fn admitted(meter: &Meter, now: u64, packets: &[Mbuf]) -> usize {
    let mut lengths = [0u32; BURST];
    for (length, mbuf) in lengths.iter_mut().zip(packets) {
        *length = mbuf.pkt_len();
    }
    meter.admit_run(now, &lengths[..packets.len().min(BURST)])
}
