// SPDX-License-Identifier: Apache-2.0
//! The simplest NF: forwards packets. Without options it does not read them, which shows the cost of netvm alone.
#![forbid(unsafe_code)]

use std::hint::{black_box, spin_loop};

use clap::Parser;
use netlib::{Burst, MAX_COUNTERS, NetworkFunction, Packet, PortId, ThreadContext, Verdict, clock};
use netvm_nf_common::{CommonArgs, Failure};

/// The program's name.
pub const NAME: &str = "netvm-simple-forward";

/// The NF's counters.
pub const COUNTERS: [&str; 1] = ["no-port"];

/// Forward packets to the next hop, to a port, or from port to port as a bump in the wire
#[derive(Clone, Debug, Default, Parser)]
#[command(name = NAME, version)]
pub struct Args {
    /// Common options.
    #[command(flatten)]
    pub common: CommonArgs,
    /// Send every packet to this port [default: to the next hop]
    #[arg(long, value_name = "PORT", conflicts_with = "map")]
    pub out: Option<String>,
    /// Send packets from port A to port B, and so on: A=B,B=A is a bump in the wire
    #[arg(long, value_name = "A=B,...", value_delimiter = ',', value_parser = pair)]
    pub map: Vec<(String, String)>,
    /// Read the first byte of every packet, as an NF that inspects packets would
    #[arg(long)]
    pub touch: bool,
    /// Spend this many cycles on every packet
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub delay_cycles: u64,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((from, to)) if !from.is_empty() && !to.is_empty() => Ok((from.to_owned(), to.to_owned())),
        _ => Err("expected PORT=PORT".to_owned()),
    }
}

/// Runs the NF until it is stopped.
///
/// # Errors
/// [`Failure`] if it cannot attach.
pub fn run(args: &Args) -> Result<(), Failure> {
    let options = args.common.options(NAME, &COUNTERS);
    netvm_nf_common::run(&options, None, |context| SimpleForward::new(args.clone(), context))
}

/// The verdicts of packets, with names resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdicts {
    /// The same for all packets.
    All(Verdict),
    /// The egress port by ingress port id; `None` or out of range if not mapped.
    ByIngress(Vec<Option<PortId>>),
}

/// A thread's forwarder.
#[derive(Debug)]
pub struct SimpleForward {
    args: Args,
    verdicts: Verdicts,
    /// Packets dropped for want of a port.
    no_port: u64,
}

impl SimpleForward {
    /// `context` resolves the names in the options.
    #[must_use]
    pub fn new(args: Args, context: &ThreadContext<'_>) -> Self {
        let verdicts = Self::verdicts(&args, context);
        Self { args, verdicts, no_port: 0 }
    }

    fn verdicts(args: &Args, context: &ThreadContext<'_>) -> Verdicts {
        if let Some(out) = &args.out {
            return Verdicts::All(context.port(out).map_or(Verdict::Drop, Verdict::Port));
        }
        if args.map.is_empty() {
            return Verdicts::All(Verdict::Next);
        }
        let mut ports = Vec::new();
        for (from, to) in &args.map {
            if let Some(PortId(from)) = context.port(from) {
                let from = usize::from(from);
                ports.resize(ports.len().max(from + 1), None);
                ports[from] = context.port(to);
            }
        }
        Verdicts::ByIngress(ports)
    }

    #[inline]
    fn verdict(&mut self, packet: &Packet<'_>) -> Verdict {
        let verdict = match &self.verdicts {
            Verdicts::All(verdict) => *verdict,
            Verdicts::ByIngress(ports) => {
                let port = ports.get(usize::from(packet.ingress().0)).copied().flatten();
                port.map_or(Verdict::Drop, Verdict::Port)
            }
        };
        self.no_port += u64::from(verdict == Verdict::Drop);
        verdict
    }
}

impl NetworkFunction for SimpleForward {
    #[inline]
    fn packet(&mut self, packet: &mut Packet<'_>) -> Verdict {
        if self.args.touch {
            black_box(packet.data().first());
        }
        if self.args.delay_cycles > 0 {
            let start = clock::cycles();
            while clock::cycles().wrapping_sub(start) < self.args.delay_cycles {
                spin_loop();
            }
        }
        self.verdict(packet)
    }

    #[inline]
    fn burst(&mut self, burst: &mut Burst<'_>) {
        if self.args.touch || self.args.delay_cycles > 0 {
            return burst.for_each(|packet| self.packet(packet));
        }
        if let Verdicts::All(verdict) = self.verdicts {
            if verdict == Verdict::Drop {
                self.no_port += burst.len() as u64;
            }
            return burst.set_all(verdict);
        }
        // The descriptor holds the ingress port, so the packet's bytes stay out of this core's cache.
        for n in 0..burst.len() {
            if let Some(packet) = burst.packet(n) {
                let verdict = self.verdict(&packet);
                burst.set(n, verdict);
            }
        }
    }

    fn changed(&mut self, context: &ThreadContext<'_>) {
        self.verdicts = Self::verdicts(&self.args, context);
    }

    fn report(&self, counters: &mut [u64; MAX_COUNTERS]) {
        counters[0] = self.no_port;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlib::sim::Simulator;
    use netvm_nf_common::testing;
    use proptest::prelude::*;

    fn parsed(args: &[&str]) -> Result<Args, clap::Error> {
        Args::try_parse_from([&[NAME], args].concat())
    }

    fn with(args: &[&str]) -> (Simulator, SimpleForward) {
        let simulator = Simulator::new(&["a", "b", "c"], &[]).unwrap();
        let nf = SimpleForward::new(parsed(args).unwrap(), &simulator.context());
        (simulator, nf)
    }

    fn verdicts(args: &[&str], ingress: &[u16]) -> (Vec<Verdict>, u64) {
        let (mut simulator, mut nf) = with(args);
        let frame = testing::udp("10.0.0.1:1", "10.0.0.2:2", b"x");
        let list: Vec<_> = ingress.iter().map(|port| (PortId(*port), frame.as_slice())).collect();
        let outcomes = simulator.inject_all(&mut nf, &list);
        assert!(outcomes.iter().all(|outcome| outcome.bytes == frame));
        let mut counters = [0; MAX_COUNTERS];
        nf.report(&mut counters);
        (outcomes.iter().map(|outcome| outcome.verdict).collect(), counters[0])
    }

    #[test]
    fn packets_go_where_the_options_say() {
        let port = |n| Verdict::Port(PortId(n));
        for more in [&[][..], &["--touch"], &["--delay-cycles", "100"]] {
            let verdicts = |args: &[&str]| verdicts(&[args, more].concat(), &[0, 1, 2, 9]);
            assert_eq!(verdicts(&[]), (vec![Verdict::Next; 4], 0));
            assert_eq!(verdicts(&["--out", "c"]), (vec![port(2); 4], 0));
            assert_eq!(verdicts(&["--out", "none"]), (vec![Verdict::Drop; 4], 4));
            let bump = vec![port(1), port(0), Verdict::Drop, Verdict::Drop];
            assert_eq!(verdicts(&["--map", "a=b,b=a"]), (bump, 2));
            let half = vec![Verdict::Drop, Verdict::Drop, port(0), Verdict::Drop];
            assert_eq!(verdicts(&["--map", "c=a", "--map", "b=none"]), (half, 3));
        }
    }

    #[test]
    fn a_delay_takes_its_time() {
        let (mut simulator, mut nf) = with(&["--delay-cycles", "100000"]);
        let start = clock::cycles();
        simulator.inject_all(&mut nf, &[(PortId(0), [0; 60].as_slice()); 20]);
        assert!(clock::cycles().wrapping_sub(start) >= 2_000_000);
    }

    #[test]
    fn names_are_looked_up_again_when_they_change() {
        let (simulator, mut nf) = with(&["--out", "c"]);
        nf.verdicts = Verdicts::All(Verdict::Drop);
        nf.changed(&simulator.context());
        assert_eq!(nf.verdicts, Verdicts::All(Verdict::Port(PortId(2))));
    }

    #[test]
    fn wrong_options_are_refused() {
        for args in [&["--map", "a"][..], &["--map", "a=,b=a"], &["--out", "a", "--map", "a=b"]] {
            assert!(parsed(args).is_err(), "{args:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_bytes_harm_it(frames in testing::hostile()) {
            let (mut simulator, mut nf) = with(&["--map", "a=b,b=a", "--touch"]);
            let outcomes = testing::survives(&mut simulator, &mut nf, &frames);
            prop_assert!(outcomes.iter().zip(&frames).all(|(outcome, frame)| outcome.bytes == *frame));
        }
    }
}
