// SPDX-License-Identifier: Apache-2.0
//! Counts packets through each interface of a router. In: a burst with its verdicts. Out: counts, stored with the
//! counters of the interface's punt port.
//!
//! Cost: the length of each packet, which is in the cache; an add for each run of packets with the same interface and
//! verdict.

use dpdk::{Batch, Mbuf};

use super::head::TAG;
use super::{RouteVerdict, RouterBurst, prefetch};
use crate::counters::{InterfaceCounters, WorkerCounters};
use crate::router::{InterfacePath, RouterPath};

/// Counts of packets that one interface received.
struct Received {
    /// The interface's number.
    interface: u16,
    packets: u64,
    bytes: u64,
    dropped: u64,
}

impl Received {
    const fn by(interface: u16) -> Self {
        Self { interface, packets: 0, bytes: 0, dropped: 0 }
    }

    fn count(&self, router: &RouterPath, counters: &WorkerCounters) {
        let Some(interface) = router.interface(self.interface) else { return };
        let counters = counters_of(interface, counters);
        counters.rx_packets.add(self.packets);
        counters.rx_bytes.add(self.bytes);
        if self.dropped > 0 {
            counters.rx_dropped.add(self.dropped);
        }
    }
}

/// The counters of a router's interface.
pub(crate) fn counters_of<'a>(
    interface: &InterfacePath,
    counters: &'a WorkerCounters,
) -> &'a InterfaceCounters {
    &counters.ports[interface.punt.index()].interface
}

fn length(mbuf: &Mbuf) -> u64 {
    mbuf.pkt_len().into()
}

impl RouterBurst {
    /// Counts the packets of a burst by ingress and egress interface. `is_uniform`: all have the same ingress interface
    /// and verdict.
    #[inline]
    pub(crate) fn count(
        &self,
        router: &RouterPath,
        batch: &Batch,
        is_uniform: bool,
        counters: &WorkerCounters,
    ) {
        let packets = batch.as_slice();
        if router.has_many_interfaces() && !is_uniform {
            self.prefetch_counters(router, packets.len(), counters);
        }
        let mut received = Received::by(self.heads[0].interface());
        let mut first = 0;
        while first < packets.len() {
            let end = if is_uniform { packets.len() } else { self.end_of_run(first, packets.len()) };
            let (head, verdict) = (&self.heads[first], self.verdicts[first]);
            let count = (end - first) as u64;
            // Of the packets as they are now, with the tag of the way out if there is one.
            let mut bytes = match self.bytes {
                Some(bytes) if is_uniform => bytes,
                _ => packets[first..end].iter().map(length).sum(),
            };
            let out = match verdict {
                RouteVerdict::Out { interface, .. } => router.interface(interface),
                RouteVerdict::Punt { .. } | RouteVerdict::Drop(_) => None,
            };
            if out.map_or(head.is_tagged(), |out| out.vlan.is_some()) {
                bytes -= count * TAG as u64;
            }
            if let Some(out) = out {
                let counters = counters_of(out, counters);
                counters.tx_packets.add(count);
                counters.tx_bytes.add(bytes);
            }
            if head.interface() != received.interface {
                received.count(router, counters);
                received = Received::by(head.interface());
            }
            received.packets += count;
            received.bytes += bytes;
            if let RouteVerdict::Drop(_) = verdict {
                received.dropped += count;
            }
            first = end;
        }
        received.count(router, counters);
    }

    /// Fetches the counters of the interfaces by which packets leave: adds to them would wait for one after the other.
    fn prefetch_counters(&self, router: &RouterPath, packets: usize, counters: &WorkerCounters) {
        for verdict in &self.verdicts[..packets] {
            if let RouteVerdict::Out { interface, .. } = verdict
                && let Some(interface) = router.interface(*interface)
            {
                prefetch(std::ptr::from_ref(&counters_of(interface, counters).tx_packets).cast());
            }
        }
    }

    /// The end of the packets from `first` on that came in by one interface and have one verdict.
    #[inline(always)]
    fn end_of_run(&self, first: usize, count: usize) -> usize {
        let key = |n: usize| {
            let head = &self.heads[n];
            (self.verdicts[n], head.interface(), head.is_tagged())
        };
        let of = key(first);
        (first + 1..count).find(|n| key(*n) != of).unwrap_or(count)
    }
}
