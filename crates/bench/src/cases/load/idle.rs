// SPDX-License-Identifier: Apache-2.0
//! `idle`: CPU time of an engine and three NFs without traffic, and the delay of the first packet afterwards.
//!
//! ```text
//!  probe ── veth ── engine ── NF ── NF ── NF ── engine ── veth ── probe
//! ```
//!
//! All wait adaptively: after a time without packets the worker sleeps until its port has some, and the NFs until they
//! are signalled. The CPU time covers the engine's whole process, manager included, and the NFs. Then single packets
//! follow, far enough apart that everything sleeps again; the figure is the whole round trip, the probe's sending and
//! wake-up included. `next-packet` is the round trip of a packet sent as soon as the previous one is back, and
//! `first-packet-delay` the difference, the cost of sleeping.

use std::time::Duration;

use netvm_model::{Idle, Output, PortKind};

use crate::cli::BenchArgs;
use crate::error::BenchError;
use crate::machine::Cores;
use crate::measure::harness::{Figure, Plan, Subject, alternate};
use crate::measure::probe::{ENGINE_END, PROBE_END, Probe, enter_private_network};
use crate::measure::report::{Row, Unit};
use crate::measure::stats::median;
use crate::nf::{Kind, NfSpec};
use crate::setup::layout::Layout;
use crate::setup::rig::Rig;

/// Interval between single packets: many times any spin time before a sleep.
const PACKET_INTERVAL: Duration = Duration::from_millis(50);

/// Runs the benchmark.
///
/// # Errors
/// [`BenchError`] if any case has no figure.
pub fn measure(args: &BenchArgs) -> Result<Vec<Row>, BenchError> {
    let cores = args.cores()?;
    enter_private_network()?;
    let packets = if args.quick { 20 } else { 200 };
    let af_xdp = || PortKind::AfXdp { interface: ENGINE_END.to_owned(), generic: false };
    let af_packet = || PortKind::AfPacket { interface: ENGINE_END.to_owned() };
    let mut subjects = [
        Subject::new("af-xdp", move |plan| {
            idle(Case { name: "af-xdp", port: af_xdp() }, packets, cores, plan)
        }),
        Subject::new("af-packet", move |plan| {
            idle(Case { name: "af-packet", port: af_packet() }, packets, cores, plan)
        }),
    ];
    alternate(&args.plan(), &mut subjects, &[])
}

/// A kind of port.
struct Case {
    name: &'static str,
    port: PortKind,
}

fn idle(case: Case, packets: usize, cores: Cores, plan: &Plan) -> Result<Vec<Figure>, BenchError> {
    let Case { name, port } = case;
    let mut layout = Layout::new(cores.engine, Idle::Adaptive);
    let group = layout.group("idle", 8192, 2048);
    let port = layout.port("veth", port, 1500);
    let roles = ["first", "second", "third"];
    let hops = roles.map(|role| layout.nf(role, group));
    layout.chain("three", port, &hops, Output::Ingress);
    let specs = roles.map(|role| NfSpec::adaptive(Kind::Forward, role, cores.nf));
    let mut rig = Rig::start(&layout.build(), &specs)?;

    let window = rig.measure(name, plan.warm_up, plan.window)?;
    let mut figures = vec![Figure::new(format!("idle-cpu-{name}"), Unit::Percent, window.cpu_percent())];
    let mut probe = Probe::open(PROBE_END)?;
    let (mut first, mut next, mut delay) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..packets {
        rig.run(PACKET_INTERVAL)?;
        let (asleep, awake) = (probe.round_trip()?, probe.round_trip()?);
        first.push(asleep);
        next.push(awake);
        delay.push(asleep - awake);
    }
    figures.push(Figure::new(format!("first-packet-{name}"), Unit::Micros, median(&first)));
    figures.push(Figure::new(format!("next-packet-{name}"), Unit::Micros, median(&next)));
    figures.push(Figure::new(format!("first-packet-delay-{name}"), Unit::Micros, median(&delay)));
    Ok(figures)
}
