// SPDX-License-Identifier: Apache-2.0
//! In: packets that other workers handed over, for ports for which only this worker has a tx queue. Out: to the tx
//! stage.
//!
//! A turn takes one burst from each other worker, as it does from each port. From a worker whose packets fill the ring
//! it takes up to [`MAX_BURSTS`]: these packets have cost more than those that still wait at a port.
//!
//! Cost: one slot of 16 bytes from another core for each packet, a quarter of a cache line. A turn without such packets
//! checks each ring once.

use arrayvec::ArrayVec;
use dpdk::Batch;

use super::record;
use super::tx::transmit;
use crate::ids::{MemoryId, PortId};
use crate::worker::state::handoff::{HandoffPacket, Held, WAIT_ABOVE};
use crate::worker::state::{BURST, Datapath};

/// Bursts that a turn takes from a ring that is filling up.
const MAX_BURSTS: usize = 4;

/// Sends packets that other workers handed over. Returns their number.
pub(crate) fn take_handoffs(dp: &mut Datapath) -> usize {
    let mut count = 0;
    for peer in 0..dp.ports.handoff.peers() {
        for _ in 0..MAX_BURSTS {
            let mut packets = ArrayVec::<HandoffPacket, BURST>::new();
            let waiting = dp.ports.handoff.take(peer, |packet| packets.push(packet));
            count += packets.len();
            send(dp, packets);
            if waiting < WAIT_ABOVE {
                break;
            }
        }
    }
    count
}

/// Sends all packets that other workers have handed over so far.
pub(crate) fn send_all_handed_over(dp: &mut Datapath) {
    for peer in 0..dp.ports.handoff.peers() {
        for _ in 0..dp.ports.handoff.waiting(peer).div_ceil(BURST) {
            let mut packets = ArrayVec::<HandoffPacket, BURST>::new();
            dp.ports.handoff.take(peer, |packet| packets.push(packet));
            send(dp, packets);
        }
    }
}

/// Sends packets that were held while their port moved. Returns what held them.
pub(crate) fn send_held(dp: &mut Datapath) -> Option<Box<Held>> {
    let mut held = dp.ports.handoff.release()?;
    loop {
        let mut packets = ArrayVec::<HandoffPacket, BURST>::new();
        packets.extend(std::iter::from_fn(|| held.pop()).take(BURST));
        if packets.is_empty() {
            return Some(held);
        }
        send(dp, packets);
        dp.flush_ports();
    }
}

/// Sends packets, in runs for one port.
fn send(dp: &mut Datapath, packets: ArrayVec<HandoffPacket, BURST>) {
    let mut run = Batch::new();
    let mut target = None;
    for packet in packets {
        if let Some((port, memory)) = target
            && (port, memory) != (packet.port, packet.memory)
        {
            send_run(dp, port, memory, &mut run);
        }
        target = Some((packet.port, packet.memory));
        // A packet of another worker's guest may have pending offloads.
        dp.ports.has_offload_work |= !packet.mbuf.is_plain();
        if packet.stamp != 0 {
            let from = PortId(packet.mbuf.port().0);
            dp.latency.take_over(from, packet.port, packet.stamp);
        }
        run.add(packet.mbuf);
    }
    if let Some((port, memory)) = target {
        send_run(dp, port, memory, &mut run);
    }
}

/// Sends packets for one port.
fn send_run(dp: &mut Datapath, port: PortId, memory: MemoryId, run: &mut Batch) {
    if dp.recorder.is_some() {
        record::sent_for_others(dp, port, run);
    }
    transmit(dp, port, memory, run);
}
