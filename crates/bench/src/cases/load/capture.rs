// SPDX-License-Identifier: Apache-2.0
//! `capture`: packets of 64 bytes that pass a core, captured whole to files on tmpfs by a reader on another core.
//!
//! ```text
//!  core A   source ─▶ engine ─▶ sink
//!                       │ ring of records
//!  core B               └▶ reader ─▶ pcapng files on /dev/shm
//! ```
//!
//! - `pass`: nothing is captured.
//! - `capture`: every received packet is captured, at full rate. The capture loses packets that the reader does not
//!   take in time, and counts them. Figures count only packets in the files.
//! - `capture-filter`: the same with a filter that rejects every packet (`udp port 9`): the cost of filtering.
//! - `capture-RATE`: at an offered load of RATE million packets per second, the share that the capture loses.
//! - `tcpdump`, `dpdk-dumpcap`, `dpdk-pdump`: other programs on the same two cores (`peers::capture`).

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use netvm_api::CaptureInfo;
use netvm_capture_client::{CaptureError, Files, Limits, Output, Session, Summary, Target, compile, run};
use netvm_capture_ring::Instruction;
use netvm_engine::CaptureSpec;
use netvm_model::{Action, Idle, PortKind, SourceConfig};

use crate::cli::BenchArgs;
use crate::error::BenchError;
use crate::machine::Cores;
use crate::measure::harness::{Comparison, Figure, Plan, Subject, alternate};
use crate::measure::report::{Row, Unit};
use crate::peers::capture::Stored;
use crate::peers::capture::dpdk::{Dpdk, Tool};
use crate::peers::capture::tcpdump::{self, LINE_RATE, Tcpdump};
use crate::peers::testpmd;
use crate::setup::layout::Layout;
use crate::setup::rig::Rig;
use crate::setup::sandbox;

/// Packet size in bytes.
const PACKET: u16 = 64;
const BUFFERS: u32 = 4096;
/// Offered rates in million packets per second.
const RATES: [u32; 3] = [2, 5, 10];
/// Size of each of the two files in bytes. They limit the memory that the benchmark needs.
const FILE: u64 = 256 << 20;

/// Runs the benchmark.
///
/// # Errors
/// [`BenchError`] if any case has no figure.
pub fn measure(args: &BenchArgs) -> Result<Vec<Row>, BenchError> {
    let cores = args.cores()?;
    // First of all: this enters new namespaces, which only later threads share.
    let peers = if args.skip_peers {
        eprintln!("skipping peers (--skip-peers)");
        None
    } else {
        Some(Peers::start(cores)?)
    };
    let mut subjects = vec![
        Subject::new("pass", move |plan| {
            let (mut rig, _) = start(cores, None)?;
            Ok(vec![Figure::new("pass", Unit::Mpps, rig.measure("pass", plan.warm_up, plan.window)?.mpps())])
        }),
        Subject::new("capture", move |plan| {
            captured(Case { name: "capture", filter: "", rate: None }, cores, plan)
        }),
        Subject::new("capture-filter", move |plan| {
            captured(Case { name: "capture-filter", filter: "udp port 9", rate: None }, cores, plan)
        }),
    ];
    for rate in RATES {
        let name = format!("capture-{rate}M");
        subjects.push(Subject::new(name.clone(), move |plan| {
            captured(Case { name: &name, filter: "", rate: Some(rate) }, cores, plan)
        }));
    }
    let mut comparisons = vec![Comparison::new("capture-filter passed", "pass")];
    if let Some(peers) = &peers {
        peers.add(&mut subjects);
        let names = ["tcpdump", Tool::Dumpcap.name(), Tool::Pdump.name()];
        comparisons.extend(names.map(|peer| Comparison::new("capture", peer)));
    }
    alternate(&args.plan(), &mut subjects, &comparisons)
}

/// Other programs that capture.
struct Peers {
    tcpdump: Tcpdump,
    /// `None` if two DPDK processes cannot share memory on this machine.
    dpdk: Option<Dpdk>,
}

impl Peers {
    fn start(cores: Cores) -> Result<Self, BenchError> {
        tcpdump::find()?;
        testpmd::find()?;
        let sandbox = sandbox::enter()?;
        let tcpdump = Tcpdump::start(&sandbox, PACKET, cores)?;
        let dpdk = Dpdk::prepare(&sandbox, cores)
            .inspect_err(|error| {
                eprintln!("SKIP: {} and {}: {error}", Tool::Dumpcap.name(), Tool::Pdump.name());
            })
            .ok();
        Ok(Self { tcpdump, dpdk })
    }

    fn add<'a>(&'a self, subjects: &mut Vec<Subject<'a>>) {
        let tcpdump = &self.tcpdump;
        subjects.push(Subject::new("tcpdump", move |plan: &Plan| {
            let stored = tcpdump.trial(LINE_RATE, plan.window)?;
            Ok(stored_figures("tcpdump", stored))
        }));
        let Some(dpdk) = &self.dpdk else { return };
        for tool in [Tool::Dumpcap, Tool::Pdump] {
            let measure = move |plan: &Plan| Ok(stored_figures(tool.name(), dpdk.measure(tool, plan)?));
            subjects.push(Subject::new(tool.name(), measure));
        }
    }
}

fn stored_figures(name: &str, stored: Stored) -> Vec<Figure> {
    vec![
        Figure::new(format!("{name} passed"), Unit::Mpps, stored.offered_mpps()),
        Figure::new(name, Unit::Mpps, stored.mpps()),
        Figure::new(format!("{name} lost"), Unit::Percent, stored.lost_percent()),
    ]
}

/// An engine that passes packets from a source to a sink, and the name of the source.
fn start(cores: Cores, rate: Option<u32>) -> Result<(Rig, &'static str), BenchError> {
    let mut layout = Layout::new(cores.engine, Idle::Poll);
    layout.group("capture", BUFFERS, 2048);
    let kind = match rate {
        None => PortKind::Null { size: PACKET },
        Some(millions) => {
            let rate = u64::from(millions) * 1_000_000;
            PortKind::Source(SourceConfig { size: PACKET, rate: Some(rate), ..SourceConfig::default() })
        }
    };
    let from = layout.port("in", kind, 1500);
    let to = layout.port("out", PortKind::Sink, 1500);
    layout.rule(from, Action::Port(to));
    Ok((Rig::start(&layout.build(), &[])?, "in"))
}

/// A case with a capture.
#[derive(Clone, Copy)]
struct Case<'a> {
    name: &'a str,
    filter: &'a str,
    /// The offered rate in million packets per second.
    rate: Option<u32>,
}

fn captured(case: Case<'_>, cores: Cores, plan: &Plan) -> Result<Vec<Figure>, BenchError> {
    let Case { name, filter, rate } = case;
    let failed = |what: String| BenchError::Guest { problem: what };
    let (mut rig, place) = start(cores, rate)?;
    let filter = compile(filter).map_err(|error| failed(error.to_string()))?;
    let instruction = |(code, jt, jf, k)| Instruction { code, jt, jf, k };
    let spec = CaptureSpec {
        at: vec![place.to_owned()],
        filter: filter.into_iter().map(instruction).collect(),
        ring_bytes: 32 << 20,
        ..CaptureSpec::default()
    };
    let (workers, room) = (rig.engine().workers().count(), rig.engine().room_for_workers());
    let prepared = spec.prepare(workers, room).map_err(|error| failed(error.to_string()))?;
    let started = rig.engine().start_capture(&spec, prepared).map_err(|error| failed(error.to_string()))?;
    let info = CaptureInfo {
        interfaces: started
            .interfaces
            .iter()
            .map(|place| netvm_api::CaptureInterface {
                name: place.name(),
                description: place.description(),
                labels: std::collections::BTreeMap::new(),
            })
            .collect(),
        ..CaptureInfo::default()
    };
    let session = Session::of(info, started.rings).map_err(|error| failed(error.to_string()))?;
    let reader = Reader::start(session, cores.nf).map_err(BenchError::system("cannot write to /dev/shm"))?;
    let window = rig.measure(name, plan.warm_up, plan.window)?;
    let (summary, seconds) = reader.stop().map_err(|error| failed(error.to_string()))?;
    rig.engine().stop_capture(started.id);

    let total = summary.packets + summary.lost;
    let lost = summary.lost as f64 / total.max(1) as f64 * 100.0;
    let mut figures = vec![Figure::new(format!("{name} passed"), Unit::Mpps, window.mpps())];
    if total > 0 {
        let per_second = |count: u64| count as f64 / seconds;
        // A block has 36 bytes and options besides the packet; the figure counts all written bytes.
        figures.push(Figure::new(name, Unit::Mpps, per_second(summary.packets) / 1e6));
        figures.push(Figure::new(
            format!("{name} written"),
            Unit::MillionPerSecond,
            per_second(summary.written) / 1e6,
        ));
        figures.push(Figure::new(format!("{name} lost"), Unit::Percent, lost));
    }
    Ok(figures)
}

/// The reader's thread.
struct Reader {
    thread: JoinHandle<Result<Summary, CaptureError>>,
    stop: Arc<AtomicBool>,
    started: Instant,
    folder: PathBuf,
}

impl Reader {
    fn start(session: Session, core: u32) -> std::io::Result<Self> {
        let folder = PathBuf::from(format!("/dev/shm/netvm-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let target = Target::File(folder.join("capture.pcapng"), Some(Files { count: 2, bytes: FILE }));
        let mut output = Output::open(target)?;
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut set = rustix::thread::CpuSet::new();
            set.set(core as usize);
            // Without permission to pin itself, the reader runs on any core.
            let _ = rustix::thread::sched_setaffinity(None, &set);
            run(session, &mut output, Limits { packets: None, stop: Some(&flag) })
        });
        Ok(Self { thread, stop, started: Instant::now(), folder })
    }

    /// Ends the reader; returns its summary and for how many seconds it ran.
    fn stop(self) -> Result<(Summary, f64), CaptureError> {
        self.stop.store(true, Ordering::Relaxed);
        let seconds = self.started.elapsed().as_secs_f64();
        let summary = self.thread.join().unwrap_or(Err(CaptureError::Ended(0)))?;
        // If this fails, the next run replaces the files.
        let _ = std::fs::remove_dir_all(&self.folder);
        Ok((summary, seconds))
    }
}
