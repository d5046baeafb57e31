// SPDX-License-Identifier: Apache-2.0
//! `chains`: packets from the built-in source through NFs and back to it (Hwang, Ramakrishnan and Wood, NetVM, section
//! 5; figures 9 to 14 and table 1).
//!
//! ```text
//!  core A   source ── engine ──┐                               ┌── engine ── source
//!  core B                      └── NF 1 ── NF 2 ── ... NF N ──┘      processes, or VMs
//! ```
//!
//! The NFs are the sample NFs, and all of them share core B. With `--branch=yes`, 40 % of the flows leave after
//! the first NF, as in the paper (section 5.2).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use netvm_engine::{DropReason, LatencyView, Span};
use netvm_model::{Idle, Output, PortKind, RoleId, SourceConfig};
use netvm_region::NfCounter;
use serde::Serialize;

use super::receive::two_cores;
use super::trial::{Drops, Place as LostAt, TrialArgs, print};
use crate::error::BenchError;
use crate::measure::window::Window;
use crate::setup::guest::{self, Guest, NfImage, Processor, beside, pinned};
use crate::setup::huge_pages::HugePages;
use crate::setup::layout::Layout;
use crate::setup::rig::Rig;

/// Flows of the source: their addresses are 10.0.0.0 to 10.0.0.9.
const FLOWS: u32 = 10;
/// The addresses of four of them.
const BRANCH: &str = "10.0.0.0/30";
/// Files of the NFs: every packet leaves by the port that it came in by, and passes all rules.
const ROUTES: &str = "0.0.0.0/0 02:00:00:00:00:09 source\n";
const RULES: &str = "deny tcp from any to any port 23\nallow udp from 10.0.0.0/8 to any\n";

/// Memory of a buffer, and of what else is in huge pages.
const BUFFER_BYTES: u64 = 2560;
const OTHER_BYTES: u64 = 256 << 20;

/// What the last NF of a chain does. The ones before it forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Function {
    /// Forwards, without reading packets
    Forward,
    /// Routes by flow and prefix
    L3,
    /// Filters by rules
    Firewall,
}

/// Where NFs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Place {
    /// Processes
    Process,
    /// VMs
    Vm,
}

/// Pages of the memory for packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PageSize {
    /// Those of the processor
    Small,
    /// Huge ones, reserved for the trial
    Huge,
}

/// A level of a factor that is there or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum YesNo {
    /// It is
    Yes,
    /// It is not
    No,
}

/// Options of `chains`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct ChainsArgs {
    /// What the last NF does
    #[arg(long, value_enum, default_value = "forward")]
    pub function: Function,
    /// NFs, one after the other
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=8), default_value = "1")]
    pub nfs: u8,
    /// Replicas of a single NF; packets go to the one with the emptiest ring
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=8), default_value = "1", conflicts_with = "nfs")]
    pub replicas: u8,
    /// Where NFs run
    #[arg(long, value_enum, default_value = "process")]
    pub place: Place,
    /// QEMU's accelerator: emulation or KVM
    #[arg(long, value_parser = ["tcg", "kvm"], default_value = "tcg")]
    pub accel: String,
    /// Bytes of a frame, FCS included
    #[arg(long, value_parser = clap::value_parser!(u16).range(64..=1518), default_value = "64")]
    pub size: u16,
    /// Let 40 % of the flows leave after the first NF
    #[arg(long, value_enum, default_value = "no")]
    pub branch: YesNo,
    /// Packet buffers of the NFs' trust group
    #[arg(long, value_parser = clap::value_parser!(u32).range(1024..=1 << 21), default_value = "8192")]
    pub buffers: u32,
    /// Pages of that memory
    #[arg(long, value_enum, default_value = "small")]
    pub pages: PageSize,
    /// Cycles that `forward` spends on each packet, as an application's work
    #[arg(long, default_value_t = 0)]
    pub work: u32,
    /// The trials; without --rate the source sends as fast as the chain takes packets, and waits for room.
    #[command(flatten)]
    pub trials: TrialArgs,
}

/// Runs one trial, and prints its result.
///
/// # Errors
/// [`BenchError`] if the chain cannot be set up.
pub fn measure(args: &ChainsArgs) -> Result<(), BenchError> {
    let [engine, nf] = two_cores(&args.trials)?;
    let _reserved = match args.pages {
        PageSize::Small => None,
        PageSize::Huge => Some(HugePages::reserve(u64::from(args.buffers) * BUFFER_BYTES + OTHER_BYTES)?),
    };
    let files = tempfile::tempdir().map_err(BenchError::system("cannot make a folder"))?;
    for (name, text) in [("routes", ROUTES), ("rules", RULES)] {
        std::fs::write(files.path().join(name), text)
            .map_err(BenchError::system("cannot write an NF's file"))?;
    }
    let mut rig = Rig::start(&host(args, engine).build(), &[])?;
    let guests = launch(args, nf, files.path(), &mut rig)?;
    rig.engine().reset_latencies();
    rig.run(args.trials.warm_up)?;
    rig.engine().reset_latencies();
    let window = rig.measure("chains", Duration::ZERO, args.trials.seconds)?;
    window.check_forwarded("chains")?;
    let mut result = result(args, &window);
    if args.trials.rate.is_some() {
        let views = rig.engine().latencies();
        if let Some(view) = views.iter().find(|view| matches!(view.span, Span::Ports(..))) {
            result.extend(delays(view));
        }
    }
    // The guests' folders must outlive the guests.
    drop(rig);
    drop(guests);
    print(&Outcome { fields: result, sent_packets: window.received(), drops: drops(&window) })
}

/// A result as it is printed.
#[derive(Serialize)]
struct Outcome {
    #[serde(flatten)]
    fields: Fields,
    sent_packets: u64,
    drops: Drops,
}

/// Packets that were lost, by place: an NF's ring or a later one of its chain was full, or the engine had other
/// reasons.
fn drops(window: &Window) -> Drops {
    let nf = window.dropped(DropReason::ChainFull);
    let mut drops =
        Drops::from([(LostAt::Nf, nf), (LostAt::Engine, window.dropped_in_all().saturating_sub(nf))]);
    drops.retain(|_, count| *count > 0);
    drops
}

fn role(n: u8) -> String {
    format!("nf{n}")
}

fn host(args: &ChainsArgs, core: u32) -> Layout {
    let mut layout = Layout::new(core, Idle::Poll).with_huge_pages(args.pages == PageSize::Huge);
    let group = layout.group("chains", args.buffers, 2048);
    let source = SourceConfig {
        size: args.size - 4,
        flows: FLOWS,
        rate: args.trials.rate,
        lossless: args.trials.rate.is_none(),
        ..SourceConfig::default()
    };
    let source = layout.port("source", PortKind::Source(source), 1500);
    let hops: Vec<RoleId> = (1..=args.nfs).map(|n| layout.nf(&role(n), group)).collect();
    if args.branch == YesNo::Yes
        && let (Ok(network), Some(first)) = (BRANCH.parse(), hops.first())
    {
        layout.chain_of(network, source, std::slice::from_ref(first));
    }
    layout.chain("chains", source, &hops, Output::Port(source));
    layout
}

/// Starts the NFs. Returns what VMs need while they run.
fn launch(args: &ChainsArgs, core: u32, folder: &Path, rig: &mut Rig) -> Result<Vec<Guest>, BenchError> {
    let mut guests = Vec::new();
    for n in 1..=args.nfs {
        for _ in 0..args.replicas {
            let is_last = n == args.nfs;
            let program = Program::of(if is_last { args.function } else { Function::Forward }, args)?;
            let role = role(n);
            match args.place {
                Place::Process => {
                    let mut command = pinned(core, &program.path);
                    command.args(["--role", &role]).args(program.arguments(folder));
                    rig.launch_program(&role, command)?;
                }
                Place::Vm => {
                    let processor = Processor { accel: guest::accel(&args.accel), core };
                    let guest = Guest::nf(&program.image(folder), processor)?;
                    rig.launch_guest(&role, &guest)?;
                    guests.push(guest);
                }
            }
        }
    }
    Ok(guests)
}

/// A sample NF, and the file that it reads.
struct Program {
    path: PathBuf,
    file: Option<(&'static str, &'static str)>,
    options: Vec<String>,
}

impl Program {
    fn of(function: Function, args: &ChainsArgs) -> Result<Self, BenchError> {
        let (name, package, file) = match function {
            Function::Forward => ("netvm-simple-forward", "netvm-nf-simple-forward", None),
            Function::L3 => ("netvm-l3-forward", "netvm-nf-l3-forward", Some(("--routes", "routes"))),
            Function::Firewall => ("netvm-firewall", "netvm-nf-firewall", Some(("--rules", "rules"))),
        };
        let options = match function {
            Function::Forward if args.work > 0 => vec![format!("--delay-cycles={}", args.work)],
            _ => Vec::new(),
        };
        Ok(Self { path: beside(name, package)?, file, options })
    }

    /// Its arguments, with its file in `folder`.
    fn arguments(&self, folder: &Path) -> Vec<String> {
        let file = self.file.iter().flat_map(|(option, name)| {
            [(*option).to_owned(), folder.join(name).to_string_lossy().into_owned()]
        });
        file.chain(self.options.iter().cloned()).collect()
    }

    /// Its VM, in which files are in the root.
    fn image(&self, folder: &Path) -> NfImage {
        let files = self.file.iter().map(|(_, name)| (folder.join(name), (*name).to_owned())).collect();
        NfImage { program: self.path.clone(), arguments: self.arguments(Path::new("/")), files }
    }
}

type Fields = BTreeMap<String, f64>;

fn result(args: &ChainsArgs, window: &Window) -> Fields {
    let per_second = |packets: u64| packets as f64 / window.seconds();
    let nanos = |cycles: f64| cycles * 1e9 / netvm_clock::cycles_per_second() as f64;
    let (offered, received) = (window.received(), window.sent());
    let mut fields = Fields::new();
    let mut put = |name: &str, value: f64| {
        fields.insert(name.to_owned(), value);
    };
    put("offered", per_second(offered));
    put("received", per_second(received));
    put("mbps", per_second(received) * f64::from(args.size) * 8.0 / 1e6);
    put("loss", offered.saturating_sub(received) as f64 / offered.max(1) as f64);
    put("engine_ns", nanos(window.engine_cycles_per_packet()));
    for stage in window.stages("") {
        let name =
            stage.case.trim().strip_prefix("engine ").unwrap_or_default().replace(' ', "_").to_lowercase();
        put(&format!("{name}_ns"), nanos(stage.value));
    }
    // The last NF of the chain, and the share of the least busy replica.
    let count = usize::from(args.nfs) * usize::from(args.replicas);
    let taken = |nf: usize| window.of_nf(nf, NfCounter::Received);
    let per_packet = |counter| window.of_nf(count - 1, counter) as f64 / taken(count - 1).max(1) as f64;
    put("nf_ns", nanos(per_packet(NfCounter::Cycles) - per_packet(NfCounter::NfCycles)));
    put("application_ns", nanos(per_packet(NfCounter::NfCycles)));
    let sum: u64 = (0..count).map(taken).sum();
    let least = (0..count).map(taken).min().unwrap_or(0);
    put("least_share", least as f64 * count as f64 / sum.max(1) as f64);
    fields
}

/// The delays from reception to sending, in microseconds.
fn delays(view: &LatencyView) -> Fields {
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let quantiles = [("delay_p50", 0.5), ("delay_p99", 0.99)];
    let mut fields: Fields =
        quantiles.iter().map(|(name, share)| ((*name).to_owned(), micros(view.quantile(*share)))).collect();
    fields.insert("delay_mean".to_owned(), view.histogram.mean() / 1e3);
    fields
}
