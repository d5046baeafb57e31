// SPDX-License-Identifier: Apache-2.0
//! Ports whose wire is a list, and their packets.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use dpdk::{Batch, HEADROOM, Mbuf, Oversized, Unfinished};
use netvm_wire::partial::{Transport, transport};

use crate::interface::{Device, PortContext, TxBuffered};
use crate::memory::Memory;

/// Frames on the far side of a port.
#[derive(Default)]
pub(in crate::worker::tests) struct Wire {
    pub(in crate::worker::tests) to_engine: VecDeque<Vec<u8>>,
    pub(in crate::worker::tests) from_engine: Vec<Vec<u8>>,
    /// Frames from the engine when it last polled the port.
    pub(in crate::worker::tests) sent_at_poll: usize,
    /// Payload bytes of each packet that a received segment is to be cut into; `None`: frames come finished.
    pub(in crate::worker::tests) segment_size: Option<u16>,
    /// It takes no frames.
    pub(in crate::worker::tests) is_full: bool,
}

/// A port device that exchanges frames with a [`Wire`].
pub(super) struct WireDevice {
    wire: Arc<Mutex<Wire>>,
    unsent: Batch,
}

impl WireDevice {
    pub(super) fn new(wire: Arc<Mutex<Wire>>) -> Self {
        Self { wire, unsent: Batch::new() }
    }
}

impl TxBuffered for WireDevice {
    fn unsent(&mut self) -> &mut Batch {
        &mut self.unsent
    }
}

impl Device for WireDevice {
    fn receive(&mut self, memory: &Memory, out: &mut Batch, wanted: usize, _cx: &PortContext<'_>) {
        let wire = &mut *self.wire.lock().unwrap();
        wire.sent_at_poll = wire.from_engine.len();
        let count = wanted.min(wire.to_engine.len());
        for frame in wire.to_engine.drain(..count) {
            let segment = |size| segment_of(memory, &frame, size);
            let mut mbuf = wire.segment_size.map_or_else(|| mbuf_of(memory, &frame), segment);
            // Drivers leave what the last packet in the buffer had.
            mbuf.set_mark(1);
            out.add(mbuf);
        }
    }

    fn enqueue(&mut self, _memory: &Memory, batch: &mut Batch, cx: &PortContext<'_>) {
        self.buffer_tx(batch, cx);
    }

    fn flush(&mut self, cx: &PortContext<'_>) -> usize {
        let wire = &mut *self.wire.lock().unwrap();
        if wire.is_full {
            return 0;
        }
        let sent = self.unsent.len();
        cx.counters.tx_packets.add(sent as u64);
        wire.from_engine.extend(self.unsent.drain().map(|mbuf| bytes_of(&mbuf)));
        sent
    }

    fn is_flushed(&self) -> bool {
        self.unsent.is_empty()
    }

    fn drop_unsent(&mut self, cx: &PortContext<'_>) {
        self.drop_gathered(cx);
    }

    fn leaves_work(&self) -> bool {
        true
    }
}

/// A segment as the kernel gives it: in a large buffer if it is long, its checksum unfinished.
fn segment_of(memory: &Memory, frame: &[u8], size: u16) -> Mbuf {
    let Transport { l2, l3, v6, udp, .. } = transport(frame).unwrap();
    let l4 = if udp { 8 } else { 20 };
    let mut one = Batch::new();
    if frame.len() <= usize::from(l2 + l3 + l4 + size) {
        let mut mbuf = mbuf_of(memory, frame);
        mbuf.set_unfinished(Unfinished { l2, l3, udp }, v6);
        return mbuf;
    }
    memory.large.as_ref().unwrap().alloc_into(&mut one, 1);
    let mut mbuf = one.pop().unwrap();
    mbuf.set_bounds(HEADROOM, 0).unwrap();
    mbuf.copy_from(frame).unwrap();
    mbuf.set_oversized(Oversized { l2, l3, l4, size, v6, udp });
    mbuf
}

/// A packet of these bytes, in a large buffer if it is long.
pub(in crate::worker) fn mbuf_of(memory: &Memory, frame: &[u8]) -> Mbuf {
    const ROOM: usize = 512 - HEADROOM as usize;
    let mut one = Batch::new();
    let pool = if frame.len() <= ROOM { Some(&memory.pool) } else { memory.large.as_ref() };
    pool.unwrap().alloc_into(&mut one, 1);
    let mut mbuf = one.pop().unwrap();
    mbuf.set_bounds(HEADROOM, 0).unwrap();
    mbuf.copy_from(frame).unwrap();
    mbuf
}

pub(in crate::worker) fn bytes_of(mbuf: &Mbuf) -> Vec<u8> {
    let mut bytes = vec![0; mbuf.data_len().into()];
    mbuf.copy_to(&mut bytes);
    bytes
}
