//! `latency`: time of packets in the engine and its NFs, from reception until the device has them again, at 10, 50 and
//! 90 % of the highest lossless rate (NetVM, figure 13).
//!
//! A built-in source sends single packets at even intervals to a port, without NFs and through chains of one and three.
//! The engine polls on core A. One NF polls on core B; three share core B and wait adaptively, so their latencies include
//! the scheduler's. The engine follows one packet at a time (`netvm stats --latency`), at most one in 20 microseconds.
//!
//! No peer: testpmd does not measure the time of packets from `net_null`.

use netvm_config::model::{Action, Idle, Output, PortKind, SourceConfig};
use netvm_engine::Span;

use crate::cli::BenchArgs;
use crate::error::BenchError;
use crate::machine::Cores;
use crate::measure::harness::{Figure, Plan, Subject, alternate};
use crate::measure::report::{Row, Unit};
use crate::nf::{Kind, NfSpec};
use crate::setup::layout::{Layout, lossless};
use crate::setup::rig::Rig;

const BUFFERS: u32 = 8192;
const FRAME: u16 = 60;
/// NFs of the chain.
const LENGTHS: [usize; 3] = [0, 1, 3];
/// Shares of the highest lossless rate, in percent.
const LOADS: [u64; 3] = [10, 50, 90];

/// Runs the benchmark.
///
/// # Errors
/// [`BenchError`] if any case has no figure.
pub fn measure(args: &BenchArgs) -> Result<Vec<Row>, BenchError> {
    let cores = args.cores()?;
    let case =
        |length| Subject::new(format!("nfs-{length}"), move |plan: &Plan| latencies(length, cores, plan));
    let mut subjects = LENGTHS.map(case);
    alternate(&args.plan(), &mut subjects, &[])
}

fn start(length: usize, cores: Cores, source: PortKind) -> Result<Rig, BenchError> {
    let mut layout = Layout::new(cores.engine, Idle::Poll);
    let group = layout.group("latency", BUFFERS, 2048);
    let source = layout.port("source", source, 1500);
    let roles: Vec<String> = (1..=length).map(|n| format!("nf{n}")).collect();
    let hops: Vec<_> = roles.iter().map(|role| layout.nf(role, group)).collect();
    if hops.is_empty() {
        layout.rule(source, Action::Port(source));
    } else {
        layout.chain("latency", source, &hops, Output::Port(source));
    }
    let spec =
        |role: &String| NfSpec { poll: length == 1, ..NfSpec::adaptive(Kind::Forward, role, cores.nf) };
    Rig::start(&layout.build(), &roles.iter().map(spec).collect::<Vec<_>>())
}

fn latencies(length: usize, cores: Cores, plan: &Plan) -> Result<Vec<Figure>, BenchError> {
    let what = format!("nfs-{length}");
    let highest = {
        let mut rig = start(length, cores, lossless(FRAME))?;
        rig.measure(&what, plan.warm_up, plan.window)?.mpps()
    };
    let mut figures = vec![Figure::new(format!("{what} highest rate"), Unit::Mpps, highest)];
    for load in LOADS {
        let rate = (highest * 1e4 * load as f64) as u64;
        let source = SourceConfig { size: FRAME, rate: Some(rate), burst: 1, ..SourceConfig::default() };
        let mut rig = start(length, cores, PortKind::Source(source))?;
        rig.engine().reset_latencies();
        rig.run(plan.warm_up)?;
        rig.engine().reset_latencies();
        rig.run(plan.window)?;
        let views = rig.engine().latencies();
        let Some(view) = views.iter().find(|view| matches!(view.span, Span::Ports(..))) else {
            let seconds = plan.window.as_secs_f64();
            return Err(BenchError::Nothing { what: format!("{what} at {load} %"), seconds });
        };
        for (name, share) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)] {
            let micros = view.quantile(share).as_secs_f64() * 1e6;
            figures.push(Figure::new(format!("{what} {load}% {name}"), Unit::Micros, micros));
        }
        let samples = view.histogram.len() as f64;
        figures.push(Figure::new(format!("{what} {load}% samples"), Unit::Count, samples));
    }
    Ok(figures)
}
