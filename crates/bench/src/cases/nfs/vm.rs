// SPDX-License-Identifier: Apache-2.0
//! `vm`: the engine's cost for packets to an NF in a VM, against the same program as a process.
//!
//! ```text
//!  core A   source -> engine -> ring             ring -> engine, checks -> sink
//!  core B                         process NF, or QEMU and the NF in its guest
//! ```
//!
//! The rings, the memory and the program are the same. The source waits for room, so the engine spends no work on
//! drops.
//!
//! While the engine waits for a slow NF, it polls more often than it finds packets, and stalls while they arrive from
//! the other core. So a VM without KVM is also compared with an equally slow process.
//!
//! `vhost`: an ordinary guest on a vhost-user port, in which a program with an AF_PACKET socket sends packets back. A
//! fixed number of packets circulates, so that the guest always has some and few are dropped.

use std::cell::Cell;
use std::time::{Duration, Instant};

use netvm_clock as clock;
use netvm_model::{Action, Idle, Output, PortKind, VhostDma, VhostMode};
use netvm_vm::{Card, CardKind};

use crate::cli::VmArgs;
use crate::error::BenchError;
use crate::machine::Cores;
use crate::measure::harness::{Comparison, Figure, Plan, Subject, alternate};
use crate::measure::report::{Row, Unit};
use crate::setup::guest::{self, BOOT, Guest, NfImage, Processor, beside, pinned};
use crate::setup::layout::{Layout, lossless, paced};
use crate::setup::rig::Rig;

/// Few buffers, so that they stay in the caches.
const BUFFERS: u32 = 4096;
/// Frame size in bytes, without FCS.
const FRAME: u16 = 60;
const ROLE: &str = "forward";
const PROGRAM: &str = "netvm-simple-forward";
/// The ordinary guest's program.
const FORWARDER: &str = "netvm-bench-packet";
const MANAGER_INTERVAL: Duration = Duration::from_millis(20);

/// Runs the benchmark.
///
/// # Errors
/// [`BenchError`] if any case has no figure.
pub fn measure(args: &VmArgs) -> Result<Vec<Row>, BenchError> {
    let cores = args.bench.cores()?;
    let program = beside(PROGRAM, "netvm-nf-simple-forward")?;
    let accel = guest::accel(&args.accel);
    let image = NfImage { program: program.clone(), arguments: vec!["--poll".to_owned()], files: Vec::new() };
    let guest = Guest::nf(&image, Processor { accel, core: cores.nf })?;
    let ordinary = Guest::ordinary(&beside(FORWARDER, "netvm-bench")?, accel, cores.nf)?;
    let process = |name, plan: &Plan, delay: f64| {
        run(name, cores, plan, |rig| {
            let mut command = pinned(cores.nf, &program);
            command.args(["--poll", "--role", ROLE, &format!("--delay-cycles={delay:.0}")]);
            rig.launch_program(ROLE, command)
        })
    };
    // Cycles per packet in the VM.
    let vm_cycles = Cell::new(0.0);
    let mut subjects = [
        Subject::new("process", |plan| process("process", plan, 0.0)),
        Subject::new("vm", |plan| {
            let figures = run("vm", cores, plan, |rig| rig.launch_guest(ROLE, &guest))?;
            vm_cycles.set(cycles_per_packet(&figures));
            Ok(figures)
        }),
        Subject::new("slow-process", |plan| {
            let mut delay = vm_cycles.get() / 2.0;
            let mut figures = process("slow-process", plan, delay)?;
            // Twice, because the rest of a packet's cost shrinks when the delay grows.
            for _ in 0..2 {
                delay = (delay + vm_cycles.get() - cycles_per_packet(&figures)).max(0.0);
                figures = process("slow-process", plan, delay)?;
            }
            Ok(figures)
        }),
        Subject::new("vhost", |plan| circulate(cores, plan, &ordinary)),
    ];
    let comparisons = [
        Comparison::new("vm", "process"),
        Comparison::new("vm engine cycles", "process engine cycles"),
        Comparison::new("vm engine cycles", "slow-process engine cycles"),
        Comparison::new("vm", "vhost"),
        Comparison::new("vm engine cycles", "vhost engine cycles"),
    ];
    alternate(&args.bench.plan(), &mut subjects, &comparisons)
}

/// Sends packets from the guest back to it; a source replaces lost packets.
fn circulate(cores: Cores, plan: &Plan, guest: &Guest) -> Result<Vec<Figure>, BenchError> {
    let mut layout = Layout::new(cores.engine, Idle::Poll);
    let source = layout.port("source", paced(FRAME, 5000), 1500);
    let path = guest.socket();
    let port = layout.port(
        "guest",
        PortKind::VhostUser { path: path.clone(), mode: VhostMode::Server, dma: VhostDma::Off },
        1500,
    );
    layout.rule(source, Action::Port(port));
    layout.rule(port, Action::Port(port));
    let mut rig = Rig::start(&layout.build(), &[])?;
    let mac = "02:00:00:00:00:01".to_owned();
    let card = Card {
        name: "guest".to_owned(),
        kind: CardKind::VhostUser,
        socket: path,
        connects: true,
        mac,
        queues: 1,
        mtu: None,
    };
    let _running = guest.start_with(card)?;
    let from_guest = |rig: &mut Rig| {
        let ports = rig.engine().ports();
        ports.iter().find(|view| view.id == port).map_or(0, |view| view.rx_packets)
    };
    let booting = Instant::now();
    while from_guest(&mut rig) == 0 {
        if booting.elapsed() > BOOT {
            let problem = format!("the ordinary guest sent no packet within {} s", BOOT.as_secs());
            return Err(BenchError::Guest { problem });
        }
        rig.run(MANAGER_INTERVAL)?;
    }
    let (start, before) = (Instant::now(), from_guest(&mut rig));
    let window = rig.watch(plan)?;
    window.warn_if_disturbed("vhost");
    let rate = (from_guest(&mut rig) - before) as f64 / start.elapsed().as_secs_f64();
    let cycles = window.busy_cycles() as f64 / (rate * window.seconds()).max(1.0);
    let mut figures = vec![
        Figure::new("vhost", Unit::Mpps, rate / 1e6),
        Figure::new("vhost engine cycles", Unit::CyclesPerPacket, cycles),
    ];
    figures.extend(window.stages("vhost"));
    Ok(figures)
}

fn run(
    name: &str,
    cores: Cores,
    plan: &Plan,
    launch: impl FnOnce(&mut Rig) -> Result<(), BenchError>,
) -> Result<Vec<Figure>, BenchError> {
    let mut layout = Layout::new(cores.engine, Idle::Poll);
    let group = layout.group(name, BUFFERS, 2048);
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
    let received = window.of_nf(0, netvm_region::NfCounter::Received);
    let bursts = window.of_nf(0, netvm_region::NfCounter::Bursts).max(1);
    figures.push(Figure::new(
        format!("{name} packets per burst"),
        Unit::Count,
        received as f64 / bursts as f64,
    ));
    Ok(figures)
}

/// Cycles per packet of the NF's core.
fn cycles_per_packet(figures: &[Figure]) -> f64 {
    let rate = figures.first().map_or(0.0, |figure| figure.value * 1e6);
    clock::cycles_per_second() as f64 / rate.max(1.0)
}
