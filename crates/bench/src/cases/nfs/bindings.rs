// SPDX-License-Identifier: Apache-2.0
//! `bindings`: the same NF in Rust, C, Go and Python, each with its language's binding and one call per packet.
//!
//! ```text
//!  core A   null port -> engine -> ring          ring -> engine, checks -> null port
//!  core B                           the NF, which reads the first byte of each packet and sends it on
//! ```
//!
//! `./dev bench bindings` builds the programs and names their folder in `NETVM_BINDINGS`.

use std::path::{Path, PathBuf};
use std::process::Command;

use netvm_model::{Idle, Output, PortKind};
use netvm_region::NfCounter;

use crate::cli::BenchArgs;
use crate::error::BenchError;
use crate::machine::Cores;
use crate::measure::harness::{Comparison, Figure, Plan, Subject, alternate};
use crate::measure::report::{Row, Unit};
use crate::setup::layout::Layout;
use crate::setup::rig::Rig;

/// The role that every program serves.
const ROLE: &str = "touch";
/// Few buffers, so that they stay in the caches.
const BUFFERS: u32 = 4096;
/// Packet size in bytes, as DPDK's null device counts.
const PACKET: u16 = 64;

/// A program of one language.
#[derive(Clone)]
struct Program {
    name: &'static str,
    words: Vec<PathBuf>,
}

/// Runs the benchmark.
///
/// # Errors
/// [`BenchError`] if any case has no figure.
pub fn measure(args: &BenchArgs) -> Result<Vec<Row>, BenchError> {
    let cores = args.cores()?;
    let folder = std::env::var_os("NETVM_BINDINGS").map(PathBuf::from).ok_or(BenchError::NoBindings)?;
    let own = crate::machine::own_program()?;
    let mut subjects = Vec::new();
    let mut comparisons = Vec::new();
    for program in programs(&folder, own) {
        let name = program.name;
        subjects.push(Subject::new(name, move |plan| touch(cores, &program, plan)));
        if name != "rust" {
            comparisons.push(Comparison::new(name, "rust"));
        }
    }
    alternate(&args.plan(), &mut subjects, &comparisons)
}

fn programs(folder: &Path, own: &Path) -> Vec<Program> {
    let beside = |name: &str| own.with_file_name(name);
    let python = |name, more: &[&str]| {
        let words = ["python3".into(), folder.join("touch.py")];
        Program { name, words: words.into_iter().chain(more.iter().map(PathBuf::from)).collect() }
    };
    let rust = ["--touch", "--poll", "--role", ROLE].map(PathBuf::from);
    vec![
        Program { name: "rust", words: [beside("netvm-simple-forward")].into_iter().chain(rust).collect() },
        Program { name: "c", words: vec![folder.join("touch-c")] },
        Program { name: "go", words: vec![folder.join("touch-go")] },
        python("python", &[]),
        python("python-burst", &["--burst"]),
    ]
}

fn touch(cores: Cores, program: &Program, plan: &Plan) -> Result<Vec<Figure>, BenchError> {
    let mut layout = Layout::new(cores.engine, Idle::Poll);
    let group = layout.group("bindings", BUFFERS, 2048);
    let null = layout.port("null", PortKind::Null { size: PACKET }, 1500);
    let nf = layout.nf(ROLE, group);
    layout.chain("bindings", null, &[nf], Output::Port(null));
    let mut rig = Rig::start(&layout.build(), &[])?;
    let mut command = Command::new("taskset");
    command.arg("--cpu-list").arg(cores.nf.to_string()).args(&program.words);
    rig.launch_program(ROLE, command)?;
    let window = rig.measure(program.name, plan.warm_up, plan.window)?;
    window.check_forwarded(program.name)?;
    let packets = window.of_nf(0, NfCounter::Received).max(1) as f64;
    let cycles = window.of_nf(0, NfCounter::Cycles) as f64;
    Ok(vec![
        Figure::new(program.name, Unit::Mpps, window.mpps()),
        Figure::new(format!("{} nf cycles", program.name), Unit::CyclesPerPacket, cycles / packets),
    ])
}
