// SPDX-License-Identifier: Apache-2.0
//! `netvmd replay`: sends a capture through a chain of NF processes into another capture, without daemon, configuration
//! and privileges.
//!
//! Reads the capture twice: first for its longest frame, which sets the buffer size; then packet by packet, as fast as
//! the chain takes them, so that no queue overflows. It skips what cannot be replayed, and says what and where: frames
//! longer than any buffer, records that cannot be read, and everything after a place where the file is truncated or
//! damaged. Frames that were cut at capture are played as they are, padded, or skipped ([`CutFrames`]).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use netvm_engine::{DropReason, Engine, Notice};
use netvm_model::{
    Action, Actions, Balance, Chain, ChainId, DEFAULT_ALLOCATE, DEFAULT_HANG_TIMEOUT, Group, GroupId, Host,
    Match, NfConfig, NfLimits, NfStart, OnFailure, Output, PortConfig, PortId, PortKind, RoleId, Rule,
    RuleId, RuleParts,
};

use super::chain;
use super::error::ReplayError;
use super::files::{Contents, CutFrames, Input, Output as OutputFile};
use super::limits::{HEADROOM, STALL_TIMEOUT};
use super::report::{ReplayNf, ReplayReport};
use crate::engine_thread::{EngineHandle, EngineThread};
use crate::events::Events;
use crate::process::Confinement;
use crate::process::cores::allowed;
use crate::supervisor::Supervisor;

/// Number of buffers; enough to fill every ring of a chain.
const BUFFERS: u32 = 8192;
/// Time for attached NFs to read the next-hop table.
const TABLE_READ_TIME: Duration = Duration::from_millis(150);
/// Interval of progress checks.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A replay.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The capture to read; `-` for standard input.
    pub input: PathBuf,
    /// The capture to write; `-` for standard output. An existing file is replaced when the replay has succeeded.
    pub output: PathBuf,
    /// NFs in order, separated by commas: a name (`simple-forward` for the program `netvm-simple-forward`) or a path,
    /// and arguments, quoted as for a shell.
    pub chain: String,
    /// What to do with frames of which the capture has only the beginning.
    pub cut_frames: CutFrames,
}

/// Replays a capture. NF processes die with the calling thread.
///
/// # Errors
/// [`ReplayError`]; the output is as it was before.
pub async fn replay(replay: &Replay) -> Result<ReplayReport, ReplayError> {
    let of_input = |source| ReplayError::Input { path: replay.input.clone(), source };
    let of_output = |source| ReplayError::Output { path: replay.output.clone(), source };
    let commands = chain::commands(&replay.chain).ok_or(ReplayError::Quote)?;
    check_chain(&commands)?;
    check_files(replay)?;
    let input = Input::open(&replay.input).map_err(of_input)?;
    let contents = Contents::of(input.path(), replay.cut_frames)?;
    let output = OutputFile::create(&replay.output).map_err(of_output)?;
    let host = host_for(&commands, &contents, contents.path(input.path()), output.path());
    let port_skips = contents.skipped() > 0 && !contents.is_copied();
    let report = ReplayReport {
        input: replay.input.clone(),
        output: replay.output.clone(),
        skipped: contents.skipped(),
        warnings: contents.warnings(&replay.input),
        ..pass(&host, port_skips).await?
    };
    output.finish().map_err(of_output)?;
    Ok(report)
}

/// Sends the packets of a host's capture through its NFs. `skips`: the capture has frames that cannot be replayed, so
/// its port will report one.
async fn pass(host: &Host, skips: bool) -> Result<ReplayReport, ReplayError> {
    let cores = allowed().map_err(ReplayError::Cores)?;
    let faults = Arc::new(Mutex::new(Vec::new()));
    let note = Arc::clone(&faults);
    let on_notice = move |_: &Engine, notice| {
        if let Notice::PortFault { fault, .. } = notice {
            note.lock().unwrap_or_else(PoisonError::into_inner).push(fault);
        }
    };
    let thread = EngineThread::start(host.engine.clone(), false, Events::default(), on_notice).await?;
    let engine = thread.handle();
    let supervisor = Supervisor::new(engine.clone(), Arc::new(Confinement::prepare()?), cores);
    let outcome = run(engine, &supervisor, host).await;
    supervisor.shut_down().await;
    // Closing the ports flushes the output.
    let closed = engine
        .call(|engine| engine.apply(&Host { engine: engine.host().engine.clone(), ..Host::default() }))
        .await;
    drop(thread);
    let report = outcome?;
    closed??;
    let faults = faults.lock().unwrap_or_else(PoisonError::into_inner);
    // A port reports the first fault of its input, and the first one of its output.
    let is_whole = !report.dropped.contains_key(DropReason::PortDown.name());
    let expected = if skips && is_whole { 1 } else { 0 };
    match faults.get(expected..).and_then(<[String]>::last) {
        Some(fault) => Err(ReplayError::Capture(fault.clone())),
        None => Ok(report),
    }
}

async fn run(
    engine: &EngineHandle,
    supervisor: &Supervisor,
    host: &Host,
) -> Result<ReplayReport, ReplayError> {
    let prepared = supervisor.prepare(host, false).await?;
    let (wanted, all) = (host.clone(), host.nfs.len());
    // NFs first: packets that arrive before an NF knows the next one would be reordered.
    let idle = Host { ports: Vec::new(), rules: Vec::new(), ..host.clone() };
    engine.call(move |engine| engine.apply(&idle)).await??;
    supervisor.reconcile(prepared);
    let mut waited = Duration::ZERO;
    while waited < TABLE_READ_TIME && supervisor.status().iter().all(|status| status.failures == 0) {
        tokio::time::sleep(POLL_INTERVAL).await;
        let active = |engine: &mut Engine| {
            engine.instances().iter().filter(|nf| nf.state == netvm_engine::InstanceState::Active).count()
        };
        waited = if engine.call(active).await? == all { waited + POLL_INTERVAL } else { Duration::ZERO };
    }
    engine.call(move |engine| engine.apply(&wanted)).await??;
    let (mut last, mut still) = (Seen::default(), Duration::ZERO);
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        let seen = engine.call(|engine| Seen::of(engine)).await?;
        if let Some(dead) = supervisor.status().into_iter().find(|status| status.failures > 0) {
            let how = dead.last_exit.unwrap_or_else(|| "it did not start".to_owned());
            return Err(ReplayError::NfEnded { role: dead.role, how, packets: seen.written });
        }
        if seen.done && seen.out == 0 && seen.read == seen.written + seen.dropped {
            break;
        }
        still = if seen == last { still + POLL_INTERVAL } else { Duration::ZERO };
        if still > STALL_TIMEOUT {
            return Err(ReplayError::Stalled { packets: seen.read, written: seen.written, out: seen.out });
        }
        last = seen;
    }
    Ok(engine.call(|engine| report(engine)).await?)
}

/// Progress of the replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    done: bool,
    read: u64,
    written: u64,
    dropped: u64,
    out: u32,
}

impl Seen {
    fn of(engine: &Engine) -> Self {
        let ports = engine.ports();
        let memories = engine.groups().into_iter().flat_map(|group| group.memories);
        Self {
            done: ports.iter().all(|port| port.done.unwrap_or(true)),
            read: ports.iter().map(|port| port.rx_packets).sum(),
            written: ports.iter().map(|port| port.tx_packets).sum(),
            dropped: drops(engine).values().sum(),
            out: memories.map(|memory| memory.out).sum(),
        }
    }
}

/// Drops by reason, each packet once: in the chain, at the port, or for an invalid position in the chain.
fn drops(engine: &Engine) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    let ports = engine.ports().into_iter().flat_map(|port| port.drops);
    for (reason, count) in engine.chains().into_iter().flat_map(|chain| chain.drops).chain(ports) {
        *all.entry(reason.name().to_owned()).or_default() += count;
    }
    all
}

/// The result, without names of files and warnings.
fn report(engine: &Engine) -> ReplayReport {
    let seen = Seen::of(engine);
    let nf = |instance: netvm_engine::InstanceView| ReplayNf {
        role: engine.host().nf(instance.role).map(|nf| nf.role.clone()).unwrap_or_default(),
        received: instance.threads.iter().map(|thread| thread.standard[0]).sum(),
        counters: instance.own.into_iter().collect(),
    };
    let mut instances = engine.instances();
    instances.sort_by_key(|instance| instance.role);
    ReplayReport {
        input: PathBuf::new(),
        output: PathBuf::new(),
        packets_in: seen.read,
        packets_out: seen.written,
        skipped: 0,
        dropped: drops(engine),
        chain: instances.into_iter().map(nf).collect(),
        warnings: Vec::new(),
    }
}

fn check_chain(commands: &[Vec<String>]) -> Result<(), ReplayError> {
    if commands.iter().any(Vec::is_empty) {
        return Err(ReplayError::NoChain);
    }
    if commands.len() > netvm_model::MAX_HOPS {
        return Err(ReplayError::TooMany { count: commands.len() });
    }
    Ok(())
}

fn check_files(replay: &Replay) -> Result<(), ReplayError> {
    if let (Ok(input), Ok(output)) = (replay.input.canonicalize(), replay.output.canonicalize())
        && input == output
    {
        return Err(ReplayError::SameFile(replay.output.clone()));
    }
    Ok(())
}

fn host_for(commands: &[Vec<String>], contents: &Contents, input: &Path, output: &Path) -> Host {
    let kind =
        PortKind::Pcap { input: Some(input.to_owned()), output: Some(output.to_owned()), paced: false };
    let port = PortConfig::new(PortId(0), "capture", kind);
    let group = Group {
        id: GroupId(0),
        name: "replay".to_owned(),
        buffers: BUFFERS,
        buffer_size: contents.buffer_size,
        headroom: HEADROOM,
        large_buffers: 0,
        may_send_to: None,
    };
    let nfs: Vec<NfConfig> = (0u16..).zip(commands).map(|(id, command)| nf(id, command)).collect();
    let chain = Chain {
        id: ChainId(0),
        name: "replay".to_owned(),
        hops: nfs.iter().map(|nf| nf.id).collect(),
        on_failure: OnFailure::Drop,
        output: Output::Port(PortId(0)),
        reverse: None,
    };
    Host {
        groups: vec![group],
        ports: vec![port],
        nfs,
        chains: vec![chain],
        rules: vec![Rule::from(RuleParts {
            id: RuleId(0),
            name: String::new(),
            matches: Match::default(),
            actions: Actions { terminal: Some(Action::Chain(ChainId(0))), ..Actions::default() },
        })],
        ..Host::default()
    }
}

/// The NF that an element of the chain names. Each is a separate role, so that a program can occur twice.
fn nf(id: u16, words: &[String]) -> NfConfig {
    let name = words.first().map_or("", String::as_str);
    let mut command: Vec<String> = words.iter().map(|word| absolute(word)).collect();
    if let Some(program) = command.first_mut()
        && !program.contains('/')
        && !program.starts_with("netvm-")
    {
        *program = format!("netvm-{program}");
    }
    let name: String = name.rsplit('/').next().unwrap_or(name).chars().take(24).collect();
    let start = NfStart::Managed {
        scale: None,
        command,
        user: "nobody".to_owned(),
        replicas: 1,
        standby: 0,
        cores: Vec::new(),
        environment: Vec::new(),
        threads: 1,
        limits: NfLimits::default(),
    };
    NfConfig {
        id: RoleId(id),
        role: format!("{name}-{}", id + 1),
        group: GroupId(0),
        balance: Balance::default(),
        flow_verdicts: 0,
        steer: Vec::new(),
        hang_timeout: DEFAULT_HANG_TIMEOUT,
        allocate: DEFAULT_ALLOCATE,
        hold: 0,
        start,
    }
}

/// Makes an argument that names a file absolute: NFs start in the root directory.
fn absolute(word: &str) -> String {
    let is_path = !word.starts_with('-') && Path::new(word).is_file();
    let path = is_path.then(|| std::path::absolute(word).ok()).flatten();
    path.and_then(|path| path.to_str().map(str::to_owned)).unwrap_or_else(|| word.to_owned())
}
