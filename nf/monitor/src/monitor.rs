//! The monitor: counts every packet and passes it to the next hop.

use netlib::{Burst, MAX_COUNTERS, NetworkFunction, Packet, ThreadContext, Verdict, clock};

use crate::{Args, Flows, Sink};

/// The NF's counters.
pub const COUNTERS: [&str; 10] =
    ["tcp", "udp", "sctp", "icmp", "other-ip", "arp", "other", "malformed", "flows", "evicted"];

/// Table slots scanned with each burst during a snapshot: some hundred nanoseconds.
const SLOTS_PER_BURST: usize = 32;
/// The same for a tick, ten times a second.
const SLOTS_PER_TICK: usize = 8192;

/// A thread's monitor.
#[derive(Debug)]
pub struct Monitor {
    args: Args,
    flows: Flows,
    sink: Option<Sink>,
    now: u64,
}

impl Monitor {
    /// `sink`: receives the snapshots for reports, if any.
    #[must_use]
    pub fn new(args: Args, sink: Option<Sink>, _context: &ThreadContext<'_>) -> Self {
        Self { flows: Flows::new(args.flows as usize), sink, now: clock::cycles(), args }
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
        match netvm_wire::parse(packet.data()) {
            Ok(headers) => {
                self.flows.count(&headers, packet.len(), self.now);
                Verdict::Next
            }
            Err(_) => {
                self.flows.count_malformed(packet.len());
                self.args.malformed.verdict()
            }
        }
    }

    #[inline]
    fn burst(&mut self, burst: &mut Burst<'_>) {
        self.now = clock::cycles();
        burst.for_each(|packet| self.packet(packet));
        if let Some(sink) = &mut self.sink {
            sink.gather(&self.flows, SLOTS_PER_BURST);
        }
    }

    fn tick(&mut self) {
        if let Some(sink) = &mut self.sink {
            sink.begin_if_due(usize::from(self.args.top), self.args.by);
            sink.gather(&self.flows, SLOTS_PER_TICK);
        }
    }

    fn report(&self, counters: &mut [u64; MAX_COUNTERS]) {
        let packets = self.flows.totals().parts().map(|amount| amount.packets);
        counters[..packets.len()].copy_from_slice(&packets);
        (counters[packets.len()], counters[packets.len() + 1]) = self.flows.counts();
    }
}

impl Drop for Monitor {
    /// Sends the last snapshot.
    fn drop(&mut self) {
        if let Some(sink) = &mut self.sink {
            sink.finish(&self.flows, usize::from(self.args.top), self.args.by);
        }
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
        let nf = Monitor::new(Args::parse_from([&["nf"], args].concat()), None, &simulator.context());
        (simulator, nf)
    }

    #[test]
    fn packets_pass_unchanged_and_are_counted() {
        let (mut simulator, mut nf) = with(&["--flows", "4"]);
        let frames = testing::every_kind();
        for frame in frames.iter().chain([&vec![0; 13]]) {
            let outcome = simulator.inject(&mut nf, PortId(0), frame);
            assert_eq!((outcome.verdict, &outcome.bytes), (Verdict::Next, frame));
        }
        let mut counters = [0; MAX_COUNTERS];
        nf.report(&mut counters);
        assert_eq!(counters[..8].iter().sum::<u64>(), frames.len() as u64 + 1);
        let evicted = counters[COUNTERS.iter().position(|name| *name == "evicted").unwrap()];
        assert!(counters[8] == 4 && evicted > 0, "{counters:?}");
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
