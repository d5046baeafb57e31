// SPDX-License-Identifier: Apache-2.0
//! The counters and captures of a port, for its devices.

use dpdk::Mbuf;

use crate::capture::{CaptureMeta, CapturePoint, WorkerCaptures};
use crate::counters::{PortCounters, WorkerCounters};
use crate::drop_reason::DropReason;
use crate::ids::PortId;

/// One worker's counters of a port, and its captures.
#[derive(Clone, Copy)]
pub(crate) struct PortContext<'a> {
    port: PortId,
    pub(crate) counters: &'a PortCounters,
    /// `None` while nothing is captured.
    captures: Option<&'a WorkerCaptures>,
}

impl<'a> PortContext<'a> {
    #[inline]
    pub(crate) fn new(
        port: PortId,
        counters: &'a WorkerCounters,
        captures: Option<&'a WorkerCaptures>,
    ) -> Self {
        Self { port, counters: &counters.ports[port.index()], captures }
    }

    /// Counts packets that the caller drops, and shows them to the captures.
    pub(crate) fn note_drops(&self, reason: DropReason, packets: &[Mbuf]) {
        self.counters.drops.add(reason, packets.len() as u64);
        if let Some(captures) = self.captures {
            captures.capture(&CaptureMeta::dropped(CapturePoint::Port(self.port), reason), packets);
        }
    }

    /// The same for one packet.
    pub(crate) fn note_drop(&self, reason: DropReason, packet: &Mbuf) {
        self.note_drops(reason, std::slice::from_ref(packet));
    }
}
