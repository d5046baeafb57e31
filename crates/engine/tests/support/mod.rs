// SPDX-License-Identifier: Apache-2.0
//! An engine with real NF processes, and what tests of it share.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "../../../notify/tests/support/crowd.rs"]
pub mod crowd;
pub mod fuse;
pub mod guest;
pub mod guests;
pub mod hostile_guest;
pub mod hostile_rig;
pub mod nf;
pub mod pcap;
pub mod vm;
pub mod wakes;

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_attach::{Hello, Ready};
use netvm_engine::{
    ApplyError, ChainId, Engine, GroupId, InstanceId, Notice, Policy, PortId, RoleId, StartTraceError,
    TraceId, TraceSpec, TracedPacket,
};
use netvm_model::{
    Action, Actions, Balance, Chain, EngineConfig, Group, Host, Match, NfConfig, NfStart, OnFailure, Output,
    PortConfig, PortKind, Rule, RuleId, RuleParts, SourceConfig,
};
use netvm_region::{Control, NfCounter};

/// An attached NF.
pub struct Nf {
    pub id: InstanceId,
    pub role: String,
    pub child: Child,
    socket: OwnedFd,
}

/// The configuration with cores for as many workers as `NETVM_TEST_WORKERS` says, if it has none.
pub fn with_workers(config: &EngineConfig) -> EngineConfig {
    let wanted = std::env::var("NETVM_TEST_WORKERS").map_or(1, |number| number.parse().unwrap());
    let mut config = config.clone();
    if config.cores.is_empty() && wanted > 1 {
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        let cores = (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
        config.cores = cores.take(wanted).map(|core| core as u32).collect();
    }
    config
}

/// An engine whose configurations get its own cores if they have none.
pub struct Workers(Engine);

impl Workers {
    pub fn apply(&mut self, host: &Host) -> Result<(), ApplyError> {
        let engine = self.with_own_cores(&host.engine);
        self.0.apply(&Host { engine, ..host.clone() })
    }

    pub fn apply_with(&mut self, host: Host, policy: Arc<Policy>) -> Result<(), ApplyError> {
        let engine = self.with_own_cores(&host.engine);
        self.0.apply_with(Host { engine, ..host }, policy)
    }

    fn with_own_cores(&self, config: &EngineConfig) -> EngineConfig {
        let mut config = config.clone();
        if config.cores.is_empty() {
            config.cores.clone_from(&self.0.host().engine.cores);
        }
        config
    }
}

impl Deref for Workers {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.0
    }
}

impl DerefMut for Workers {
    fn deref_mut(&mut self) -> &mut Engine {
        &mut self.0
    }
}

/// An engine and its NFs.
pub struct Rig {
    pub engine: Workers,
    pub nfs: Vec<Nf>,
    pub notices: Vec<Notice>,
}

impl Rig {
    /// Without `cores`, it has as many workers as `NETVM_TEST_WORKERS` says; one without it.
    pub fn new(config: &EngineConfig) -> Self {
        let engine = Engine::start(&with_workers(config), false).unwrap_or_else(|error| panic!("{error}"));
        Self { engine: Workers(engine), nfs: Vec::new(), notices: Vec::new() }
    }

    /// The control memory of an NF, in which its rings are.
    pub fn control_of(&self, id: InstanceId) -> Control {
        let fds = self.engine.descriptors(id).unwrap();
        Control::open(fds.control.try_clone_to_owned().unwrap()).unwrap()
    }

    /// Starts an NF process and admits it.
    pub fn attach(&mut self, role: &str, kind: &str, standby: bool) -> InstanceId {
        let (socket, nf_end) = netvm_attach::pair().unwrap();
        let number = nf_end.as_raw_fd();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "support::nf::nf_process", "--nocapture"]).env(nf::KIND, kind);
        command.env(netvm_attach::ROLE_VARIABLE, role).env(netvm_attach::FD_VARIABLE, number.to_string());
        command.stdout(std::process::Stdio::null());
        // SAFETY: only async-signal-safe calls between fork and exec.
        unsafe {
            command.pre_exec(move || {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if libc::fcntl(number, libc::F_SETFD, 0) < 0 {
                    Err(std::io::Error::last_os_error())
                } else {
                    Ok(())
                }
            });
        }
        let child = command.spawn().unwrap();
        drop(nf_end);
        let (hello, _) = netvm_attach::receive::<Hello>(&socket).unwrap();
        let id = self.engine.admit(&hello, standby).unwrap_or_else(|error| panic!("{error}"));
        netvm_attach::welcome(&socket, &self.engine.descriptors(id).unwrap()).unwrap();
        netvm_attach::receive::<Ready>(&socket).unwrap();
        self.engine.activate(id);
        self.nfs.push(Nf { id, role: role.to_owned(), child, socket });
        id
    }

    /// Serves the engine until `done` or for `limit`; returns whether it was done.
    pub fn until(&mut self, limit: Duration, mut done: impl FnMut(&Engine) -> bool) -> bool {
        netvm_testing::within(limit, || {
            self.engine.service();
            self.notices.extend(self.engine.notices());
            done(&self.engine)
        })
    }

    /// Waits until an NF's threads have counted `count` received packets in sum. An NF publishes its counters after it
    /// has sent a burst, so its packets may have left a little earlier.
    pub fn until_received(&mut self, id: InstanceId, count: u64) -> bool {
        self.until(Duration::from_secs(5), |engine| {
            let views = engine.instances();
            let nf = views.iter().find(|view| view.id == id).unwrap();
            nf.threads.iter().map(|thread| thread.standard[NfCounter::Received as usize]).sum::<u64>()
                == count
        })
    }

    /// Kills an NF with SIGKILL, and reports it to the engine once its process has ended.
    pub fn kill(&mut self, id: InstanceId) {
        let mut nf = self.take(id);
        nf.child.kill().unwrap();
        nf.child.wait().unwrap();
        self.engine.departed(id);
    }

    /// Waits until the process of an NF has ended by itself, and reports it to the engine.
    pub fn await_end(&mut self, id: InstanceId) {
        let mut nf = self.take(id);
        let has_ended = self.until(Duration::from_secs(20), |_| nf.child.try_wait().unwrap().is_some());
        assert!(has_ended, "{}", self.describe());
        self.engine.departed(id);
    }

    fn take(&mut self, id: InstanceId) -> Nf {
        let index = self.nfs.iter().position(|nf| nf.id == id).unwrap();
        self.nfs.remove(index)
    }

    /// Starts a trace of traffic.
    pub fn start_trace(&mut self, spec: &TraceSpec) -> Result<TraceId, StartTraceError> {
        let prepared = spec.prepare(self.engine.workers().count()).unwrap();
        self.engine.start_trace(spec, prepared)
    }

    /// The packets of a trace of traffic, which ends.
    pub fn traced(&mut self, trace: TraceId) -> Vec<TracedPacket> {
        let start = Instant::now();
        let mut packets = Vec::new();
        loop {
            let read = self.engine.read_trace(trace).unwrap();
            packets.extend(read.packets);
            if read.is_over {
                self.engine.stop_trace(trace);
                return packets;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "{packets:#?}\n{}", self.describe());
            self.until(Duration::from_millis(2), |_| false);
        }
    }

    /// Sent packets of a port.
    pub fn sent(&self, port: u16) -> u64 {
        self.engine.ports().iter().find(|view| view.id == PortId(port)).map_or(0, |view| view.tx_packets)
    }

    /// Buffers of all groups that are out with NFs.
    pub fn buffers_out(&self) -> u32 {
        self.engine.groups().iter().flat_map(|group| &group.memories).map(|memory| memory.out).sum()
    }

    /// Free buffers by group and region.
    pub fn free_buffers(&self) -> Vec<u32> {
        self.engine.groups().iter().flat_map(|group| &group.memories).map(|memory| memory.free).collect()
    }

    /// All counters, for messages.
    pub fn describe(&self) -> String {
        let drops: BTreeMap<_, _> = self.engine.chains().into_iter().map(|chain| (chain.id, chain)).collect();
        format!(
            "{drops:#?}\n{:#?}\n{:#?}\n{:#?}",
            self.engine.ports(),
            self.engine.instances(),
            self.engine.groups()
        )
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for nf in &mut self.nfs {
            let _ = nf.child.kill();
            let _ = nf.child.wait();
        }
    }
}

/// Whether no NF has a buffer.
pub fn nothing_is_out(engine: &Engine) -> bool {
    engine.groups().iter().flat_map(|group| &group.memories).all(|memory| memory.out == 0)
}

/// Whether every pool has all of its buffers.
pub fn all_is_free(engine: &Engine) -> bool {
    engine.groups().iter().flat_map(|group| &group.memories).all(|memory| memory.free == memory.buffers)
}

pub fn group(id: u16, buffers: u32, buffer_size: u32) -> Group {
    Group { id: GroupId(id), name: format!("group{id}"), buffers, buffer_size, ..Group::default() }
}

pub fn port(id: u16, name: &str, kind: PortKind) -> PortConfig {
    PortConfig::new(PortId(id), name, kind)
}

pub fn source(size: u16, count: Option<u64>, lossless: bool) -> PortKind {
    PortKind::Source(SourceConfig { size, flows: 64, lossless, count, ..SourceConfig::default() })
}

pub fn nf(id: u16, role: &str, group: u16) -> NfConfig {
    let start = NfStart::External { users: Vec::new() };
    NfConfig {
        id: RoleId(id),
        role: role.to_owned(),
        group: GroupId(group),
        balance: Balance::LeastOccupied,
        flow_verdicts: 0,
        steer: Vec::new(),
        hang_timeout: 1,
        allocate: 256,
        hold: 0,
        start,
    }
}

pub fn chain(id: u16, hops: &[u16], on_failure: OnFailure, output: u16) -> Chain {
    let hops = hops.iter().map(|role| RoleId(*role)).collect();
    Chain {
        id: ChainId(id),
        name: format!("chain{id}"),
        hops,
        on_failure,
        output: Output::Port(PortId(output)),
        reverse: None,
    }
}

/// Everything from a port goes into a chain; a rule for each port.
pub fn rule(port: u16, chain: u16) -> Rule {
    Rule::from(RuleParts {
        id: RuleId(port.into()),
        name: String::new(),
        matches: Match { from: vec![PortId(port)], ..Match::default() },
        actions: Actions { terminal: Some(Action::Chain(ChainId(chain))), ..Actions::default() },
    })
}

/// A source, a sink, and one chain of `roles` between them, all in one group.
pub fn line(roles: &[&str], count: Option<u64>, lossless: bool) -> Host {
    Host {
        groups: vec![group(0, 4096, 2048)],
        ports: vec![port(0, "in", source(60, count, lossless)), port(1, "out", PortKind::Sink)],
        nfs: (0..).zip(roles).map(|(id, role)| nf(id, role, 0)).collect(),
        chains: vec![chain(0, &(0..roles.len() as u16).collect::<Vec<_>>(), OnFailure::Drop, 1)],
        rules: vec![rule(0, 0)],
        ..Host::default()
    }
}

/// The same twice, each in a group of its own: from port 0 to port 1, and from port 2 to port 3.
pub fn two_lines(roles: [&[&str]; 2], sources: [PortKind; 2]) -> Host {
    let mut host = Host { groups: vec![group(0, 4096, 2048), group(1, 4096, 2048)], ..Host::default() };
    for ((n, roles), source) in (0..).zip(roles).zip(sources) {
        let (from, to) = (2 * n, 2 * n + 1);
        let ends = [port(from, &format!("in{n}"), source), port(to, &format!("out{n}"), PortKind::Sink)];
        host.ports.extend(ends.map(|port| PortConfig { group: Some(GroupId(n)), ..port }));
        let hops: Vec<u16> = (host.nfs.len() as u16..).take(roles.len()).collect();
        host.nfs.extend(hops.iter().zip(roles).map(|(id, role)| nf(*id, role, n)));
        host.chains.push(chain(n, &hops, OnFailure::Drop, to));
        host.rules.push(rule(from, n));
    }
    host
}

/// The host with one NF, `fw`, in a chain with this output; the caller adds the rules that lead to it.
pub fn behind_nf(host: Host, output: Output) -> Host {
    Host {
        groups: vec![group(0, 1024, 2048)],
        nfs: vec![nf(0, "fw", 0)],
        chains: vec![Chain { output, ..chain(0, &[0], OnFailure::Drop, 0) }],
        ..host
    }
}
