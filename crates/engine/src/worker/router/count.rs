//! Counts what passes each interface of a router. In: a burst that was decided. Out: nothing but counts, which are with the
//! counters of the interface's punt port.
//!
//! Cost: the length of each packet, which is in the cache; an add for each run of packets with the same interface and verdict.

use dpdk::{Batch, Mbuf};

use super::head::TAG;
use super::{RouteVerdict, RouterBurst};
use crate::counters::{InterfaceCounters, WorkerCounters};
use crate::router::{InterfacePath, RouterPath};

/// Packets of a burst in a row.
#[derive(Clone, Copy)]
struct Run {
    /// Where they came in, by the interface's number.
    interface: u16,
    is_tagged: bool,
    verdict: RouteVerdict,
    packets: u64,
    bytes: u64,
}

impl Run {
    /// Counts them. `bytes` are of the packets as they are now, with the tag of the way out if there is one.
    fn count(&self, router: &RouterPath, counters: &WorkerCounters) {
        let of = |number: u16| router.interface(number).map(|one| (one, counters_of(one, counters)));
        let without_tags =
            |tagged: bool| if tagged { self.bytes - self.packets * TAG as u64 } else { self.bytes };
        let out = match self.verdict {
            RouteVerdict::Out { interface, .. } => of(interface),
            RouteVerdict::Punt { .. } | RouteVerdict::Drop(_) => None,
        };
        let bytes = without_tags(out.map_or(self.is_tagged, |(out, _)| out.vlan.is_some()));
        if let Some((_, counters)) = of(self.interface) {
            counters.rx_packets.add(self.packets);
            counters.rx_bytes.add(bytes);
            if let RouteVerdict::Drop(_) = self.verdict {
                counters.rx_dropped.add(self.packets);
            }
        }
        if let Some((_, counters)) = out {
            counters.tx_packets.add(self.packets);
            counters.tx_bytes.add(bytes);
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
    /// Counts the packets of a burst by the interfaces where they came in and leave. `is_alike`: all came in by one interface and
    /// have one verdict.
    #[inline]
    pub(crate) fn count(
        &self,
        router: &RouterPath,
        (batch, is_alike): (&Batch, bool),
        counters: &WorkerCounters,
    ) {
        let packets = batch.as_slice();
        let run = |n: usize| Run {
            interface: self.heads[n].interface(),
            is_tagged: self.heads[n].is_tagged(),
            verdict: self.verdicts[n],
            packets: 0,
            bytes: 0,
        };
        if is_alike {
            let bytes = packets.iter().map(length).sum();
            return Run { packets: packets.len() as u64, bytes, ..run(0) }.count(router, counters);
        }
        let mut current = run(0);
        for (n, mbuf) in packets.iter().enumerate() {
            let head = &self.heads[n];
            let is_other = (head.interface(), head.is_tagged()) != (current.interface, current.is_tagged);
            if is_other || self.verdicts[n] != current.verdict {
                std::mem::replace(&mut current, run(n)).count(router, counters);
            }
            current.packets += 1;
            current.bytes += length(mbuf);
        }
        current.count(router, counters);
    }
}
