//! `vm`: what it costs the engine to carry packets to an NF in a VM, beside the same program as a process.
//!
//! ```text
//!  core A   source -> engine -> ring             ring -> engine, checks -> sink
//!  core B                         process NF, or QEMU and the NF in its guest
//! ```
//!
//! The rings, the memory and the program are the same. The source waits for room, so that the engine spends nothing on
//! packets that it would have to drop, and a slower NF is no dearer for that.

use std::path::PathBuf;

use netvm_config::model::{Idle, Output, PortKind};
use netvm_vm::Accel;

use crate::cli::{Cores, VmArgs};
use crate::error::BenchError;
use crate::guest::{Guest, pinned};
use crate::harness::{Comparison, Figure, Plan, Subject, alternate};
use crate::layout::{Layout, lossless};
use crate::report::{Row, Unit};
use crate::rig::Rig;

/// Cells: few, so that the memory stays in the processor's caches.
const CELLS: u32 = 4096;
/// Bytes of a frame without FCS.
const FRAME: u16 = 60;
const ROLE: &str = "forward";
const PROGRAM: &str = "netvm-simple-forward";

/// Measures.
///
/// # Errors
/// [`BenchError`] when any case has no figure.
pub fn measure(args: &VmArgs) -> Result<Vec<Row>, BenchError> {
    let cores = args.bench.cores()?;
    let program = program()?;
    let accel = if args.accel == "kvm" { Accel::Kvm } else { Accel::Tcg };
    let guest = Guest::new(&program, &["--poll"], accel, cores.nf)?;
    let mut subjects = [
        Subject::new("process", |plan| {
            run("process", cores, plan, |rig| {
                let mut command = pinned(cores.nf, &program);
                command.args(["--poll", "--role", ROLE]);
                rig.launch_program(ROLE, command)
            })
        }),
        Subject::new("vm", |plan| run("vm", cores, plan, |rig| rig.launch_guest(ROLE, &guest))),
    ];
    let cases = ["", " engine cycles", " engine deliver", " engine collect"];
    let compare = |case: &str| Comparison::new(format!("vm{case}"), format!("process{case}"));
    alternate(&args.bench.plan(), &mut subjects, &cases.map(compare))
}

fn run(
    name: &str,
    cores: Cores,
    plan: &Plan,
    launch: impl FnOnce(&mut Rig) -> Result<(), BenchError>,
) -> Result<Vec<Figure>, BenchError> {
    let mut layout = Layout::new(cores.engine, Idle::Poll);
    let group = layout.group(name, CELLS, 2048);
    let source = layout.port("source", lossless(FRAME), 1500);
    let sink = layout.port("sink", PortKind::Sink, 1500);
    let nf = layout.nf(ROLE, group);
    layout.chain(name, source, &[nf], Output::Port(sink));
    let mut rig = Rig::start(&layout.build(), &[])?;
    launch(&mut rig)?;
    let window = rig.measure(name, plan.warm_up, plan.window)?;
    window.check_forwarded(name)?;
    let mut figures = vec![Figure::new(name, Unit::Mpps, window.mpps())];
    let cycles = window.engine_cycles_per_packet();
    figures.push(Figure::new(format!("{name} engine cycles"), Unit::CyclesPerPacket, cycles));
    figures.extend(window.stages(name));
    let received = window.of_nf(0, netvm_region::StandardCounter::Received);
    let bursts = window.of_nf(0, netvm_region::StandardCounter::Bursts).max(1);
    figures.push(Figure::new(
        format!("{name} packets per burst"),
        Unit::Count,
        received as f64 / bursts as f64,
    ));
    Ok(figures)
}

/// The NF that both run, built beside this program.
fn program() -> Result<PathBuf, BenchError> {
    let own = std::env::current_exe().map_err(BenchError::system("this program's place"))?;
    let path = own.with_file_name(PROGRAM);
    if path.exists() {
        return Ok(path);
    }
    let problem =
        format!("{} is not there: cargo build --release -p netvm-nf-simple-forward", path.display());
    Err(BenchError::Guest { problem })
}
