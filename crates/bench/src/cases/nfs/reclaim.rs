// SPDX-License-Identifier: Apache-2.0
//! `reclaim`: the time to reclaim the buffers of an NF killed (SIGKILL) under traffic, and to bypass one that hangs.
//!
//! - `first-sweep`: from the detection of the NF's end until the buffers that it held were free.
//! - `all-back`: until the buffers that others had sent to it in the meantime were also free. From then on, only living
//!   NFs may hold buffers.
//! - `hung-bypassed`: from SIGSTOP until packets pass the chain without the NF, `hang_timeout` included.
//! - `hung-back`: from SIGCONT until the NF gets packets again.

use std::time::{Duration, Instant};

use netvm_engine::{Engine, Notice};
use netvm_model::{Idle, OnFailure, Output};
use rustix::process::{Pid, Signal, kill_process};

use crate::cli::BenchArgs;
use crate::error::BenchError;
use crate::machine::Cores;
use crate::measure::harness::{Figure, Plan, Subject, alternate};
use crate::measure::report::{Row, Unit};
use crate::measure::stats::median;
use crate::nf::{Kind, NfSpec};
use crate::setup::layout::{Layout, lossless};
use crate::setup::rig::Rig;

const BUFFERS: u32 = 8192;
const KILLS: usize = 10;
const HANGS: usize = 3;
/// Time limit for each step.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the benchmark.
///
/// # Errors
/// [`BenchError`] if any case has no figure or a buffer is lost.
pub fn measure(args: &BenchArgs) -> Result<Vec<Row>, BenchError> {
    let cores = args.cores()?;
    let mut subjects = [
        Subject::new("reclaim", move |plan| kills(cores, plan)),
        Subject::new("hang", move |plan| hangs(cores, plan)),
    ];
    alternate(&args.plan(), &mut subjects, &[])
}

fn kills(cores: Cores, plan: &Plan) -> Result<Vec<Figure>, BenchError> {
    let mut layout = Layout::new(cores.engine, Idle::Poll);
    let group = layout.group("reclaim", BUFFERS, 2048);
    let source = layout.port("source", lossless(60), 1500);
    let roles = ["first", "second", "third"];
    let hops = roles.map(|role| layout.nf(role, group));
    layout.chain("three", source, &hops, Output::Port(source));
    let specs = roles.map(|role| NfSpec::adaptive(Kind::Forward, role, cores.nf));
    let mut rig = Rig::start(&layout.build(), &specs)?;

    let (mut sweeps, mut totals, mut buffers) = (Vec::new(), Vec::new(), Vec::new());
    for kill in 0..KILLS {
        rig.measure("reclaim", plan.warm_up / 4, plan.window / KILLS as u32)?.check_forwarded("reclaim")?;
        let mut victim = rig.remove(0);
        victim.kill()?;
        rig.engine().departed(victim.instance);
        let Notice::Reclaimed { buffers: count, first_sweep, total, .. } = reclaimed(&mut rig)? else {
            continue;
        };
        sweeps.push(first_sweep.as_secs_f64() * 1e6);
        totals.push(total.as_secs_f64() * 1e6);
        buffers.push(count as f64);
        rig.launch(&specs[kill % specs.len()])?;
    }
    Ok(vec![
        Figure::new("first-sweep", Unit::Micros, median(&sweeps)),
        Figure::new("first-sweep-worst", Unit::Micros, sweeps.iter().copied().fold(0.0, f64::max)),
        Figure::new("all-back", Unit::Micros, median(&totals)),
        Figure::new("buffers", Unit::Count, median(&buffers)),
    ])
}

/// Runs the manager until it reports that the buffers are reclaimed.
fn reclaimed(rig: &mut Rig) -> Result<Notice, BenchError> {
    serve_until(rig, "NF whose buffers were not reclaimed", |engine| {
        engine.notices().find(|notice| matches!(notice, Notice::Reclaimed { .. }))
    })
}

fn hangs(cores: Cores, plan: &Plan) -> Result<Vec<Figure>, BenchError> {
    let mut layout = Layout::new(cores.engine, Idle::Poll);
    let group = layout.group("hang", BUFFERS, 2048);
    let source = layout.port("source", lossless(60), 1500);
    let roles = ["first", "second"];
    let hops = roles.map(|role| layout.nf(role, group));
    let chain = layout.chain("two", source, &hops, Output::Port(source));
    layout.on_failure(chain, OnFailure::Bypass);
    let specs = roles.map(|role| NfSpec::adaptive(Kind::Forward, role, cores.nf));
    let mut rig = Rig::start(&layout.build(), &specs)?;

    let (mut bypassed, mut back) = (Vec::new(), Vec::new());
    for _ in 0..HANGS {
        rig.measure("hang", plan.warm_up / 4, plan.window / HANGS as u32)?.check_forwarded("hang")?;
        let second = rig.pid(1);
        let stopped = Instant::now();
        send(second, Signal::STOP)?;
        serve_until(&mut rig, "NF whose hang was not noticed", |engine| {
            engine.notices().find(|notice| matches!(notice, Notice::Hung { .. }))
        })?;
        let before = left(rig.engine());
        serve_until(&mut rig, "hung NF that was not bypassed", |engine| {
            (left(engine) > before).then_some(())
        })?;
        bypassed.push(stopped.elapsed().as_secs_f64() * 1e6);
        let continued = Instant::now();
        send(second, Signal::CONT)?;
        serve_until(&mut rig, "NF that did not recover", |engine| {
            engine.notices().find(|notice| matches!(notice, Notice::Recovered { .. }))
        })?;
        back.push(continued.elapsed().as_secs_f64() * 1e6);
    }
    Ok(vec![
        Figure::new("hung-bypassed", Unit::Micros, median(&bypassed)),
        Figure::new("hung-bypassed-worst", Unit::Micros, bypassed.iter().copied().fold(0.0, f64::max)),
        Figure::new("hung-back", Unit::Micros, median(&back)),
    ])
}

fn left(engine: &Engine) -> u64 {
    engine.chains().first().map_or(0, |chain| chain.left)
}

fn send(pid: u32, signal: Signal) -> Result<(), BenchError> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(rustix::io::Errno::SRCH);
    let sent = pid.and_then(|pid| kill_process(pid, signal));
    sent.map_err(std::io::Error::from).map_err(BenchError::system("cannot signal an NF"))
}

/// Runs the manager until `look` returns a value.
fn serve_until<T>(
    rig: &mut Rig,
    otherwise: &str,
    mut look: impl FnMut(&mut Engine) -> Option<T>,
) -> Result<T, BenchError> {
    let start = Instant::now();
    while start.elapsed() < TIMEOUT {
        rig.engine().service();
        if let Some(found) = look(rig.engine()) {
            return Ok(found);
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    Err(BenchError::Unsound { what: "reclaim".to_owned(), kind: otherwise.to_owned(), count: 1 })
}
