//! `reclaim`: the time to reclaim the buffers of an NF killed (SIGKILL) under traffic.
//!
//! `first-sweep`: from the detection of its end until the buffers that it held were free. `all-back`: until those that
//! others had sent to it in the meantime were free, too. Afterwards only the buffers of living NFs may be out.

use std::time::{Duration, Instant};

use netvm_config::model::{Idle, Output};
use netvm_engine::Notice;

use crate::cli::BenchArgs;
use crate::error::BenchError;
use crate::harness::{Figure, Plan, Subject, alternate};
use crate::layout::{Layout, lossless};
use crate::machine::Cores;
use crate::nf::{Kind, NfSpec};
use crate::report::{Row, Unit};
use crate::rig::Rig;
use crate::stats::median;

const BUFFERS: u32 = 8192;
const KILLS: usize = 10;
/// Limit for the reclaim.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the benchmark.
///
/// # Errors
/// [`BenchError`] if any case has no figure or a buffer is lost.
pub fn measure(args: &BenchArgs) -> Result<Vec<Row>, BenchError> {
    let cores = args.cores()?;
    let mut subjects = [Subject::new("reclaim", move |plan| kills(cores, plan))];
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

/// Serves the engine until it reports the reclaim.
fn reclaimed(rig: &mut Rig) -> Result<Notice, BenchError> {
    let start = Instant::now();
    while start.elapsed() < TIMEOUT {
        rig.engine().service();
        let found = rig.engine().notices().find(|notice| matches!(notice, Notice::Reclaimed { .. }));
        if let Some(notice) = found {
            return Ok(notice);
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    let kind = "NF whose buffers were not reclaimed".to_owned();
    Err(BenchError::Unsound { what: "reclaim".to_owned(), kind, count: 1 })
}
