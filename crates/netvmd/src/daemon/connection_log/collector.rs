// SPDX-License-Identifier: Apache-2.0
//! The IPFIX collector of the log. A collector that is away or slow loses events, which are counted.

use std::net::SocketAddr;

use netvm_flowmon::export::{Exporter, NatEvent, StartError, Target, Transport, View};
use rtrb::{Producer, RingBuffer};

use crate::daemon::flows;

/// Events that wait for the exporter, in addition to those that it keeps itself.
const MAX_QUEUED: usize = 16_384;

/// The exporter of NAT events.
pub(super) struct Collector {
    exporter: Exporter,
    ring: Producer<NatEvent>,
}

impl Collector {
    /// Starts its thread.
    ///
    /// # Errors
    /// [`StartError`]. A collector that is away is none.
    pub(super) fn start(address: SocketAddr) -> Result<Self, StartError> {
        let target = Target { transport: Transport::Udp, host: address.to_string() };
        let exporter = Exporter::start(&flows::nat_options(target))?;
        let (ring, consumer) = RingBuffer::new(MAX_QUEUED);
        exporter.add_nat(consumer);
        Ok(Self { exporter, ring })
    }

    /// What it has sent and lost.
    pub(super) fn view(&self) -> View {
        self.exporter.view()
    }

    /// Queues an event. Returns false if it is lost, as the exporter is too slow.
    pub(super) fn push(&mut self, event: NatEvent) -> bool {
        self.ring.push(event).is_ok()
    }

    /// Sends what is queued, unless the collector is away.
    pub(super) fn end(self) {
        let Self { exporter, ring } = self;
        drop(ring);
        // The totals are in the view.
        let _ = exporter.finish();
    }
}
