// SPDX-License-Identifier: Apache-2.0
//! The monitor: counts every packet and passes it to the next hop.

use std::thread;
use std::time::{Duration, Instant};

use netlib::{Burst, MAX_COUNTERS, NetworkFunction, Packet, Verdict, clock};
use netvm_flowmon::Record;
use rtrb::Producer;

use crate::{Args, Flows, Sink};

/// The NF's counters.
pub const COUNTERS: [&str; 12] = [
    "tcp",
    "udp",
    "sctp",
    "icmp",
    "other-ip",
    "arp",
    "other",
    "malformed",
    "flows",
    "evicted",
    "records",
    "lost-records",
];

/// Table slots scanned with each burst: some hundred nanoseconds.
const SLOTS_PER_BURST: usize = 32;
/// The same for a tick, ten times a second, during a snapshot.
const SLOTS_PER_TICK: usize = 8192;
/// Ticks in which the whole table is checked for time-outs: a second.
const TICKS_PER_SCAN: usize = 10;
/// Longest wait for the exporter at the end.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// A thread's monitor.
#[derive(Debug)]
pub struct Monitor {
    args: Args,
    flows: Flows,
    sink: Option<Sink>,
    now: u64,
}

impl Monitor {
    /// `sink`: receives the snapshots for reports, if any. `records`: receives the records of flows; without, flows
    /// have no time-outs.
    #[must_use]
    pub fn new(args: Args, sink: Option<Sink>, records: Option<Producer<Record>>) -> Self {
        Self { flows: Flows::new(args.meter(records)), sink, now: clock::cycles(), args }
    }

    /// The counters.
    #[must_use]
    pub const fn flows(&self) -> &Flows {
        &self.flows
    }
}

impl NetworkFunction for Monitor {
    #[inline]
    fn packet(&mut self, packet: &mut Packet<'_>) -> Verdict {
        let (frame, at) = (packet.data(), (packet.ingress().0, self.now));
        match netvm_wire::parse(frame) {
            Ok(headers) => {
                self.flows.count(&headers, frame, at);
                Verdict::Next
            }
            Err(_) => {
                self.flows.count_malformed(frame, at);
                self.args.malformed.verdict()
            }
        }
    }

    #[inline]
    fn burst(&mut self, burst: &mut Burst<'_>) {
        self.now = clock::cycles();
        burst.for_each(|packet| self.packet(packet));
        self.flows.commit(SLOTS_PER_BURST, self.now);
        if let Some(sink) = &mut self.sink {
            sink.gather(&self.flows, SLOTS_PER_BURST);
        }
    }

    fn tick(&mut self) {
        self.now = clock::cycles();
        self.flows.commit(self.flows.slots() / TICKS_PER_SCAN, self.now);
        if let Some(sink) = &mut self.sink {
            sink.begin_if_due(usize::from(self.args.top), self.args.by);
            sink.gather(&self.flows, SLOTS_PER_TICK);
        }
    }

    fn report(&self, counters: &mut [u64; MAX_COUNTERS]) {
        let packets = self.flows.totals().parts().map(|amount| amount.packets);
        counters[..packets.len()].copy_from_slice(&packets);
        let flows = self.flows.counts();
        counters[packets.len()..packets.len() + flows.len()].copy_from_slice(&flows);
    }
}

impl Drop for Monitor {
    /// Sends the last snapshot, and the records of all flows.
    fn drop(&mut self) {
        self.flows.commit(0, self.now);
        if let Some(sink) = &mut self.sink {
            sink.finish(&self.flows, usize::from(self.args.top), self.args.by);
        }
        let end = Instant::now() + LAST_WAIT;
        self.flows.finish(|| {
            thread::sleep(Duration::from_millis(1));
            Instant::now() < end
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use netlib::PortId;
    use netlib::sim::Simulator;
    use netvm_nf_common::testing;
    use proptest::prelude::*;

    fn with(args: &[&str]) -> (Simulator, Monitor) {
        let simulator = Simulator::new(&["a", "b"], &[]).unwrap();
        let nf = Monitor::new(Args::parse_from([&["nf"], args].concat()), None, None);
        (simulator, nf)
    }

    #[test]
    fn packets_pass_unchanged_and_are_counted() {
        let (mut simulator, mut nf) = with(&["--flows", "4", "--table", "d-left"]);
        let frames = testing::every_kind();
        for frame in frames.iter().chain([&vec![0; 13]]) {
            let outcome = simulator.inject(&mut nf, PortId(0), frame);
            assert_eq!((outcome.verdict, &outcome.bytes), (Verdict::Next, frame));
        }
        let mut counters = [0; MAX_COUNTERS];
        nf.report(&mut counters);
        assert_eq!(counters[..8].iter().sum::<u64>(), frames.len() as u64 + 1);
        assert!((4..=16).contains(&counters[8]), "{counters:?}");
        let (_, nf) = with(&["--table", "null"]);
        assert_eq!(nf.flows().slots(), 0);
        let (mut simulator, mut nf) = with(&["--malformed", "drop"]);
        assert_eq!(simulator.inject(&mut nf, PortId(0), &[0; 13]).verdict, Verdict::Drop);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_bytes_harm_it(frames in testing::hostile()) {
            let (mut simulator, mut nf) = with(&[]);
            let outcomes = testing::survives(&mut simulator, &mut nf, &frames);
            for (outcome, frame) in outcomes.iter().zip(&frames) {
                prop_assert_eq!((outcome.verdict, &outcome.bytes), (Verdict::Next, frame));
            }
        }
    }
}
