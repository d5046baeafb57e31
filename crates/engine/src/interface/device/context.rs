//! The counters and captures of a port, for its devices.

use dpdk::Mbuf;

use crate::counters::{PortCounters, WorkerCounters};
use crate::drop_reason::DropReason;
use crate::ids::PortId;
use crate::tap::{Passing, Place, Taps};

/// One worker's counters of a port, and its captures.
#[derive(Clone, Copy)]
pub(crate) struct PortContext<'a> {
    port: PortId,
    pub(crate) counters: &'a PortCounters,
    /// `None` while nothing is captured.
    taps: Option<&'a Taps>,
}

impl<'a> PortContext<'a> {
    #[inline]
    pub(crate) fn new(port: PortId, counters: &'a WorkerCounters, taps: Option<&'a Taps>) -> Self {
        Self { port, counters: &counters.ports[port.index()], taps }
    }

    /// Counts packets that the caller drops, and shows them to the captures.
    pub(crate) fn note_drops(&self, reason: DropReason, packets: &[Mbuf]) {
        self.counters.drops.add(reason, packets.len() as u64);
        if let Some(taps) = self.taps {
            taps.show(&Passing::dropped(Place::Port(self.port), reason), packets);
        }
    }

    /// The same for one packet.
    pub(crate) fn note_drop(&self, reason: DropReason, packet: &Mbuf) {
        self.note_drops(reason, std::slice::from_ref(packet));
    }
}
