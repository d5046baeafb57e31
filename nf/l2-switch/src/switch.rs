// SPDX-License-Identifier: Apache-2.0
//! The switch: frames in, a port verdict for each out.

use netlib::{Burst, MAX_COUNTERS, NetworkFunction, Outbox, Packet, PortId, ThreadContext, Verdict, clock};
use netvm_nf_common::LruTable;
use netvm_wire::MacAddr;

use crate::Args;
use crate::frame::Frame;

/// The NF's counters, in the order of `Counter`.
pub const COUNTERS: [&str; 11] = [
    "forwarded",
    "flooded",
    "filtered",
    "reserved",
    "bad-source",
    "not-a-port",
    "malformed",
    "moved",
    "evicted",
    "stations",
    "not-copied",
];

#[derive(Clone, Copy)]
enum Counter {
    Forwarded,
    Flooded,
    Filtered,
    Reserved,
    BadSource,
    NotAPort,
    Malformed,
    Moved,
    Evicted,
    Stations,
    NotCopied,
}

/// A thread's switch, with the stations that this thread has seen.
#[derive(Debug)]
pub struct Switch {
    args: Args,
    ports: Vec<PortId>,
    flood_port: Option<PortId>,
    /// The port where a station of a VLAN was last seen.
    stations: LruTable<(u16, MacAddr), PortId>,
    /// Ageing time in cycles.
    age: u64,
    now: u64,
    counters: [u64; COUNTERS.len()],
}

impl Switch {
    /// `context` resolves the names in the options.
    #[must_use]
    pub fn new(args: Args, context: &ThreadContext<'_>) -> Self {
        let mut this = Self {
            ports: Vec::new(),
            flood_port: None,
            stations: LruTable::new(args.stations as usize),
            age: clock::cycles_in_micros(args.age * 1_000_000),
            now: clock::cycles(),
            counters: [0; COUNTERS.len()],
            args,
        };
        this.look_up(context);
        this
    }

    fn look_up(&mut self, context: &ThreadContext<'_>) {
        self.ports = self.args.ports.iter().filter_map(|name| context.port(name)).collect();
        self.flood_port = self.args.flood_port.as_ref().and_then(|name| context.port(name));
    }

    #[inline]
    fn count(&mut self, counter: Counter) {
        self.counters[counter as usize] += 1;
    }

    fn discard(&mut self, counter: Counter) -> Verdict {
        self.count(counter);
        Verdict::Drop
    }

    fn forget(&mut self) {
        let since = self.now.saturating_sub(self.age);
        while self.stations.pop_unused_since(since).is_some() {}
    }

    #[inline]
    fn learn(&mut self, vlan: u16, source: MacAddr, ingress: PortId) {
        let station = (vlan, source);
        match self.stations.get(&station, self.now) {
            Some(port) if *port == ingress => {}
            Some(port) => {
                *port = ingress;
                self.count(Counter::Moved);
            }
            None => {
                if self.stations.insert(station, ingress, self.now).is_some() {
                    self.count(Counter::Evicted);
                }
            }
        }
    }

    /// Sends a frame to all ports but the one that received it, or to the flood port alone. Each port but the last gets
    /// a copy.
    fn flood(&mut self, packet: &Packet<'_>, outbox: &mut Outbox<'_>) -> Verdict {
        let ingress = packet.ingress();
        if let Some(port) = self.flood_port {
            if port == ingress {
                return self.discard(Counter::Filtered);
            }
            self.count(Counter::Flooded);
            return Verdict::Port(port);
        }
        let mut last = None;
        for n in 0..self.ports.len() {
            let port = self.ports[n];
            if port == ingress {
                continue;
            }
            if let Some(before) = last.replace(port) {
                match outbox.clone_of(packet) {
                    Some(copy) => outbox.send(copy, Verdict::Port(before)),
                    None => self.count(Counter::NotCopied),
                }
            }
        }
        match last {
            Some(port) => {
                self.count(Counter::Flooded);
                Verdict::Port(port)
            }
            None => self.discard(Counter::Filtered),
        }
    }

    #[inline]
    fn switch(&mut self, packet: &Packet<'_>, outbox: &mut Outbox<'_>) -> Verdict {
        let ingress = packet.ingress();
        if !self.ports.contains(&ingress) {
            return self.discard(Counter::NotAPort);
        }
        let Some(frame) = Frame::read(packet.data()) else {
            self.count(Counter::Malformed);
            return self.args.malformed.verdict();
        };
        if frame.source.is_multicast() {
            return self.discard(Counter::BadSource);
        }
        self.learn(frame.vlan, frame.source, ingress);
        if frame.is_reserved() {
            return self.discard(Counter::Reserved);
        }
        if frame.destination.is_multicast() {
            return self.flood(packet, outbox);
        }
        let oldest = self.now.saturating_sub(self.age);
        let known = self.stations.peek(&(frame.vlan, frame.destination));
        match known.filter(|(seen, _)| *seen >= oldest) {
            Some((_, port)) if *port == ingress => self.discard(Counter::Filtered),
            Some((_, port)) if self.ports.contains(port) => {
                let port = *port;
                self.count(Counter::Forwarded);
                Verdict::Port(port)
            }
            _ => self.flood(packet, outbox),
        }
    }
}

impl NetworkFunction for Switch {
    #[inline]
    fn burst(&mut self, burst: &mut Burst<'_>) {
        self.now = clock::cycles();
        burst.for_each_with(|packet, outbox| self.switch(&packet, outbox));
    }

    fn changed(&mut self, context: &ThreadContext<'_>) {
        self.look_up(context);
        // Port ids may name other ports now.
        self.stations.clear();
    }

    fn tick(&mut self) {
        self.now = clock::cycles();
        self.forget();
    }

    fn report(&self, counters: &mut [u64; MAX_COUNTERS]) {
        counters[..self.counters.len()].copy_from_slice(&self.counters);
        counters[Counter::Stations as usize] = self.stations.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use netlib::sim::Simulator;
    use netvm_nf_common::testing;
    use netvm_wire::{EtherType, FrameBuilder};
    use proptest::prelude::*;
    use std::collections::HashMap;

    const PORTS: [&str; 4] = ["a", "b", "c", "up"];
    const A: PortId = PortId(0);
    const B: PortId = PortId(1);
    const C: PortId = PortId(2);
    const UP: PortId = PortId(3);

    fn with(args: &[&str]) -> (Simulator, Switch) {
        let simulator = Simulator::new(&PORTS, &[]).unwrap();
        let args = Args::try_parse_from([&["nf"], args].concat()).unwrap();
        args.check().unwrap();
        let nf = Switch::new(args, &simulator.context());
        (simulator, nf)
    }

    fn mac(last: u8) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, last])
    }

    fn frame(source: u8, destination: u8, vlan: u16) -> Vec<u8> {
        let builder = FrameBuilder::new(mac(source), mac(destination));
        let tagged = if vlan == 0 { builder } else { builder.vlan(testing::vlan(vlan)) };
        testing::built(&tagged.ether_type(EtherType(0x9000)).payload(&[0; 46]))
    }

    fn counter(nf: &Switch, name: &str) -> u64 {
        let mut counters = [0; MAX_COUNTERS];
        nf.report(&mut counters);
        counters[COUNTERS.iter().position(|counter| *counter == name).unwrap()]
    }

    #[test]
    fn stations_are_learnt_and_found_in_their_vlan() {
        let (mut simulator, mut nf) = with(&["--ports", "a,b,c", "--flood-port", "up"]);
        let mut send = |ingress, frame: &[u8]| simulator.inject(&mut nf, ingress, frame).verdict;
        assert_eq!(send(A, &frame(1, 2, 0)), Verdict::Port(UP), "2 is unknown");
        assert_eq!(send(B, &frame(2, 1, 0)), Verdict::Port(A));
        assert_eq!(send(A, &frame(1, 2, 0)), Verdict::Port(B));
        assert_eq!(send(A, &frame(1, 2, 5)), Verdict::Port(UP), "2 is unknown in VLAN 5");
        assert_eq!(send(C, &frame(2, 1, 0)), Verdict::Port(A), "2 has moved to c");
        assert_eq!(send(A, &frame(1, 2, 0)), Verdict::Port(C));
        assert_eq!(send(C, &frame(3, 2, 0)), Verdict::Drop, "3 and 2 are behind one port");
        assert_eq!(send(UP, &frame(4, 2, 0)), Verdict::Drop, "up is not a port of the switch");
        let counted = ["flooded", "forwarded", "moved", "filtered", "not-a-port", "stations"];
        assert_eq!(counted.map(|name| counter(&nf, name)), [2, 4, 1, 1, 1, 4]);
    }

    #[test]
    fn two_ports_flood_to_each_other() {
        let (mut simulator, mut nf) = with(&["--ports", "a,c"]);
        let mut broadcast = frame(1, 0, 0);
        broadcast[..6].fill(0xff);
        let mut send = |ingress, frame: &[u8]| simulator.inject(&mut nf, ingress, frame).verdict;
        assert_eq!(send(A, &broadcast), Verdict::Port(C));
        assert_eq!(send(C, &frame(2, 9, 0)), Verdict::Port(A));
    }

    #[test]
    fn reserved_destinations_are_dropped() {
        let (mut simulator, mut nf) = with(&["--ports", "a,b", "--flood-port", "a"]);
        let mut lldp = frame(1, 2, 0);
        lldp[..6].copy_from_slice(&[0x01, 0x80, 0xc2, 0, 0, 0x0e]);
        let mut forged = frame(1, 2, 0);
        forged[6] = 3;
        for (ingress, bytes) in [(A, &lldp[..]), (A, &forged), (A, &frame(1, 2, 0)), (A, &[1; 13])] {
            assert_eq!(simulator.inject(&mut nf, ingress, bytes).verdict, Verdict::Drop);
        }
        let counted = ["reserved", "bad-source", "filtered", "malformed"];
        assert_eq!(counted.map(|name| counter(&nf, name)), [1; 4]);
    }

    #[test]
    fn malformed_frames_pass_if_configured() {
        let (mut simulator, mut nf) = with(&["--ports", "a,b", "--malformed", "pass"]);
        assert_eq!(simulator.inject(&mut nf, A, &[1; 13]).verdict, Verdict::Next);
    }

    #[test]
    fn silent_stations_are_forgotten() {
        let (mut simulator, mut nf) = with(&["--ports", "a,b,c", "--flood-port", "up"]);
        nf.age = clock::cycles_in_micros(20_000);
        simulator.inject(&mut nf, A, &frame(1, 2, 0));
        assert_eq!(simulator.inject(&mut nf, B, &frame(2, 1, 0)).verdict, Verdict::Port(A));
        clock::advance(std::time::Duration::from_millis(40));
        assert_eq!(
            simulator.inject(&mut nf, B, &frame(2, 1, 0)).verdict,
            Verdict::Port(UP),
            "before any tick"
        );
        nf.tick();
        assert_eq!(counter(&nf, "stations"), 1);
    }

    #[test]
    fn the_table_is_bounded() {
        let (mut simulator, mut nf) = with(&["--ports", "a,b", "--stations", "10"]);
        for source in 0..40 {
            simulator.inject(&mut nf, A, &frame(source, 200, 0));
        }
        assert_eq!((counter(&nf, "stations"), counter(&nf, "evicted")), (10, 30));
    }

    #[test]
    fn stations_are_forgotten_when_ports_change() {
        let (mut simulator, mut nf) = with(&["--ports", "a,b"]);
        simulator.inject(&mut nf, A, &frame(1, 2, 0));
        nf.changed(&simulator.context());
        assert_eq!(counter(&nf, "stations"), 0);
    }

    #[test]
    fn frames_for_all_leave_by_every_other_port() {
        let (mut simulator, mut nf) = with(&["--ports", "a,b,c,up"]);
        let mut broadcast = frame(1, 0, 0);
        broadcast[..6].fill(0xff);
        for (ingress, others) in [(B, [A, C, UP]), (UP, [A, B, C])] {
            for bytes in [&broadcast, &frame(2, 9, 0)] {
                let sent = simulator.exchange(&mut nf, &[(ingress, bytes)]);
                let ports: Vec<_> = sent.iter().map(|outcome| outcome.verdict).collect();
                assert_eq!(ports, others.map(Verdict::Port));
                assert!(sent.iter().all(|outcome| outcome.bytes == *bytes));
            }
        }
        assert_eq!((counter(&nf, "flooded"), counter(&nf, "not-copied")), (4, 0));
    }

    #[test]
    fn wrong_options_are_refused() {
        let check = |args: &[&str]| Args::try_parse_from([&["nf"], args].concat()).unwrap().check();
        assert!(check(&["--ports", "a"]).is_err() && check(&["--ports", "a,b"]).is_ok());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Compares with a map that never forgets.
        #[test]
        fn behaves_as_a_plain_switch(steps in prop::collection::vec((0u16..3, 0u8..6, 0u8..6, 0u16..3), 1..100)) {
            let (mut simulator, mut nf) = with(&["--ports", "a,b,c", "--flood-port", "up"]);
            let mut seen: HashMap<(u16, u8), PortId> = HashMap::new();
            for (ingress, source, destination, vlan) in steps {
                let ingress = PortId(ingress);
                seen.insert((vlan, source), ingress);
                let expected = match seen.get(&(vlan, destination)) {
                    Some(port) if *port == ingress => Verdict::Drop,
                    Some(port) => Verdict::Port(*port),
                    None => Verdict::Port(UP),
                };
                let outcome = simulator.inject(&mut nf, ingress, &frame(source, destination, vlan));
                prop_assert_eq!(outcome.verdict, expected);
            }
        }

        #[test]
        fn no_bytes_harm_it(frames in testing::hostile()) {
            let (mut simulator, mut nf) = with(&["--ports", "a,b"]);
            let outcomes = testing::survives(&mut simulator, &mut nf, &frames);
            prop_assert!(outcomes.iter().zip(&frames).all(|(outcome, frame)| outcome.bytes == *frame));
        }
    }
}
