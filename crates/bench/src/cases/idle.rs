//! `idle`: what an engine and three NFs cost while nothing happens, and what the first packet after that pays.
//!
//! ```text
//!  probe ── veth ── engine ── NF ── NF ── NF ── engine ── veth ── probe
//! ```
//!
//! Everything waits adaptively: after a while without packets the worker sleeps until its port has something, and the NFs
//! until they are woken. The processor time is that of the engine's whole process, its manager included, and of the NFs.
//! Then single packets follow, each long enough after the one before that everything sleeps again; what is stated is the
//! whole round trip, the probe's own sending and waking included. For comparison, `next-packet` is the round trip of a
//! packet that is sent as soon as the one before is back, and `first-packet-delay` the difference: what sleeping cost.

use std::time::Duration;

use netvm_config::model::{Idle, Output, PortKind};

use crate::cli::{BenchArgs, Cores};
use crate::error::BenchError;
use crate::harness::{Figure, Plan, Subject, alternate};
use crate::layout::Layout;
use crate::nf::{Kind, NfSpec};
use crate::probe::{ENGINE_END, Probe, enter_private_network};
use crate::report::{Row, Unit};
use crate::rig::Rig;
use crate::stats::median;

/// Between two single packets: many times what anything spins before it sleeps.
const PAUSE: Duration = Duration::from_millis(50);

/// Measures.
///
/// # Errors
/// [`BenchError`] when any case has no figure.
pub fn measure(args: &BenchArgs) -> Result<Vec<Row>, BenchError> {
    let cores = args.cores()?;
    enter_private_network()?;
    let packets = if args.quick { 20 } else { 200 };
    let af_xdp = || PortKind::AfXdp { interface: ENGINE_END.to_owned(), generic: false };
    let af_packet = || PortKind::AfPacket { interface: ENGINE_END.to_owned() };
    let mut subjects = [
        Subject::new("af-xdp", move |plan| idle("af-xdp", af_xdp(), packets, cores, plan)),
        Subject::new("af-packet", move |plan| idle("af-packet", af_packet(), packets, cores, plan)),
    ];
    alternate(&args.plan(), &mut subjects, &[])
}

fn idle(
    name: &str,
    port: PortKind,
    packets: usize,
    cores: Cores,
    plan: &Plan,
) -> Result<Vec<Figure>, BenchError> {
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
    let mut probe = Probe::open()?;
    let (mut first, mut next, mut delay) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..packets {
        rig.run(PAUSE)?;
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
