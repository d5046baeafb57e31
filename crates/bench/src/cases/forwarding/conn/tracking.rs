// SPDX-License-Identifier: Apache-2.0
//! netvm's side of `conn`: hosts that track, and what their connections cost.

use std::fs;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use netvm_engine::{ConnectionCounts, ConnectionFilter, ConnectionView};
use netvm_model::{
    Action, Actions, ConnectionsConfig, EngineConfig, Host, Idle, Match, PortId, PortKind, Rule, RuleId,
    RuleParts, SourceConfig,
};
use netvm_wire::{ConnState, IpProto};

use crate::error::BenchError;
use crate::machine::Cores;
use crate::measure::harness::{Figure, Measured, Plan};
use crate::measure::report::Unit;
use crate::setup::layout::Layout;
use crate::setup::rig::Rig;
use crate::setup::traffic::{Traffic, Turns};

/// Few buffers, so that they stay in the caches.
const BUFFERS: u32 = 4096;
/// Without FCS.
const FRAME: u16 = 60;
/// Most connections of a worker, if not the traffic has more.
const LIMIT: u32 = 2_000_000;
/// Time limit for the engine to read its connections.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Most connections while others open and close. When the table is full, each new one ends a closed one.
const LIMIT_OF_NEW: u32 = 200_000;
/// Connections of a table that counts as full: those whose time is over end meanwhile, too.
const FULL: u64 = 180_000;
/// Seconds without a packet, in all states in which a packet is to come.
const STAYS: u32 = 3600;

/// Two ports with buffers of their own.
fn ports(core: u32, input: &PortKind) -> Host {
    let mut layout = Layout::new(core, Idle::Poll);
    let group = layout.group("conn", BUFFERS, 2048);
    layout.port("in", input.clone(), 1500);
    layout.port("out", PortKind::Sink, 1500);
    let mut host = layout.build();
    for port in &mut host.ports {
        port.group = Some(group);
    }
    host
}

/// Room for this many connections, which do not time out, except for closed ones.
pub(super) fn room_for(engine: &mut EngineConfig, connections: u64) {
    let mut config =
        ConnectionsConfig { limit: LIMIT.max(connections as u32), ..ConnectionsConfig::default() };
    for (name, seconds) in config.timeouts.each() {
        *seconds = if ["tcp_time_wait", "tcp_close"].contains(&name) { 1 } else { STAYS };
    }
    engine.connections = config;
}

/// A rule that forwards packets of these states; of all, if there are none.
fn forward(host: &mut Host, state: Vec<ConnState>, [from, to]: [u16; 2]) {
    let id = RuleId(host.rules.len() as u32);
    let matches = Match { from: vec![PortId(from)], state, ..Match::default() };
    let actions = Actions { terminal: Some(Action::Port(PortId(to))), ..Actions::default() };
    host.rules.push(Rule::from(RuleParts { id, name: String::new(), matches, actions }));
}

/// Tracks what a port receives, and forwards it to another.
fn track_port(host: &mut Host, from: u16, to: u16) {
    host.ports[usize::from(from)].policy.track = true;
    forward(host, vec![ConnState::Established, ConnState::Related], [from, to]);
    forward(host, vec![ConnState::New], [from, to]);
}

/// A host that tracks the traffic of its first port.
fn tracking(core: u32, connections: u64) -> Host {
    let mut host = ports(core, &PortKind::Null { size: FRAME });
    room_for(&mut host.engine, connections);
    track_port(&mut host, 0, 1);
    host
}

/// Starts a host. Until the traffic is attached, the first port receives stale buffer contents, so its rules come after
/// it.
fn start(host: &Host, traffic: Traffic) -> Result<(Rig, impl Sized + use<>), BenchError> {
    let silent = Host { ports: host.ports[..1].to_vec(), rules: Vec::new(), ..host.clone() };
    let mut rig = Rig::start(&silent, &[])?;
    let traffic = traffic.attach()?;
    rig.engine().apply(host)?;
    Ok((rig, traffic))
}

/// Measures what a rig forwards.
fn rate(name: &str, rig: &mut Rig, plan: &Plan) -> Measured {
    let window = rig.watch(plan)?;
    window.check_sound(name)?;
    window.warn_if_disturbed(name);
    window.check_forwarded(name)?;
    let cycles = window.engine_cycles_per_packet();
    Ok(vec![
        Figure::new(name, Unit::Mpps, window.per_core(window.sent())),
        Figure::new(format!("{name} engine cycles"), Unit::CyclesPerPacket, cycles),
    ])
}

/// A rule, and no tracking.
pub(super) fn stateless(name: &str, traffic: Traffic, cores: Cores, plan: &Plan) -> Measured {
    let mut host = ports(cores.engine, &PortKind::Null { size: FRAME });
    forward(&mut host, Vec::new(), [0, 1]);
    let (mut rig, _traffic) = start(&host, traffic)?;
    rate(name, &mut rig, plan)
}

/// Established connections.
pub(super) fn track(name: &str, count: u64, cores: Cores, plan: &Plan) -> Measured {
    let traffic = Traffic::of_connections(count, Turns::BothWays);
    let (mut rig, _traffic) = start(&tracking(cores.engine, count), traffic)?;
    rig.await_connections(count, true)?;
    rate(name, &mut rig, plan)
}

/// The UDP connections. For 10,000 of them the engine reads the whole table.
fn datagrams(rig: &mut Rig, most: usize) -> Result<Vec<ConnectionView>, BenchError> {
    let (done, views) = mpsc::channel();
    let filter = ConnectionFilter { protocol: Some(IpProto::UDP), ..ConnectionFilter::default() };
    rig.engine().connections().read(filter, most, move |views| {
        // The receiver is gone after an error only.
        let _ = done.send(views);
    });
    let start = Instant::now();
    while start.elapsed() < TIMEOUT {
        if let Ok(views) = views.try_recv() {
            return Ok(views);
        }
        rig.run(Duration::from_millis(5))?;
    }
    Err(BenchError::NoConnections { connections: 0, count: most as u64, seconds: TIMEOUT.as_secs_f64() })
}

/// Connections that open and close, beside established ones.
pub(super) fn new(name: &str, established: u64, cores: Cores, plan: &Plan) -> Measured {
    let traffic = Traffic::of_connections(established, Turns::BesideNew);
    let mut host = tracking(cores.engine, established);
    host.engine.connections.limit = LIMIT_OF_NEW;
    let (mut rig, _traffic) = start(&host, traffic)?;
    rig.await_connections(established, true)?;
    rig.await_connections(FULL, false)?;
    let (before, start) = (rig.engine().connection_counts(), Instant::now());
    let window = rig.watch(plan)?;
    let (after, elapsed) = (rig.engine().connection_counts(), start.elapsed());
    window.check_sound(name)?;
    window.warn_if_disturbed(name);
    window.check_forwarded(name)?;
    let old = datagrams(&mut rig, established as usize + 1)?;
    let kept = old.iter().filter(|view| view.age >= elapsed).count() as u64;
    let ended = |counts: ConnectionCounts| counts.expired + counts.evicted;
    // The counters of connections cover the warm-up, too.
    let share = window.seconds() / elapsed.as_secs_f64();
    let per_core = |count: u64| window.per_core((count as f64 * share) as u64);
    let more = |what: &str, unit, value| Figure::new(format!("{name} {what}"), unit, value);
    Ok(vec![
        Figure::new(name, Unit::MillionPerSecond, per_core(after.begun - before.begun)),
        more("ended", Unit::MillionPerSecond, per_core(ended(after) - ended(before))),
        more("packets", Unit::Mpps, window.per_core(window.sent())),
        more("lost", Unit::Count, established.saturating_sub(kept) as f64),
        more("dropped", Unit::Count, window.dropped_in_all() as f64),
    ])
}

/// Two sources of tracked connections, in different zones, each to a sink.
pub(super) fn two_sources(cores: &[u32], connections: u64) -> Host {
    let flows = (connections / 2) as u32;
    let source = SourceConfig { size: FRAME, flows, lossless: true, ..SourceConfig::default() };
    let mut layout = Layout::new(cores[0], Idle::Adaptive);
    for name in ["in0", "in1"] {
        layout.port(name, PortKind::Source(source.clone()), 1500);
    }
    for name in ["out0", "out1"] {
        layout.port(name, PortKind::Sink, 1500);
    }
    let mut host = layout.build();
    host.engine.cores = cores.to_vec();
    room_for(&mut host.engine, connections);
    for n in [0, 1] {
        track_port(&mut host, n, n + 2);
        host.ports[usize::from(n)].policy.zone = n;
    }
    host
}

/// What arrives of all these connections.
pub(super) fn workers(name: &str, host: &Host, connections: u64, plan: &Plan) -> Measured {
    let mut rig = Rig::start(host, &[])?;
    rig.await_connections(connections / 2 * 2, false)?;
    let window = rig.measure(name, plan.warm_up, plan.window)?;
    window.check_forwarded(name)?;
    Ok(vec![Figure::new(name, Unit::Mpps, window.mpps())])
}

/// Resident memory of this process in bytes, with its huge pages.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of = |line: &str| {
        let (name, rest) = line.split_once(':')?;
        ["VmRSS", "HugetlbPages"]
            .contains(&name)
            .then(|| rest.split_whitespace().next()?.parse::<u64>().ok())?
    };
    status.lines().filter_map(of).sum::<u64>() * 1024
}

/// What a full table takes.
pub(super) fn memory(name: &str, connections: u32, cores: Cores) -> Measured {
    let source = SourceConfig { size: FRAME, flows: connections, lossless: true, ..SourceConfig::default() };
    let mut host = ports(cores.engine, &PortKind::Source(source));
    room_for(&mut host.engine, connections.into());
    host.engine.connections.limit = connections;
    forward(&mut host, Vec::new(), [0, 1]);
    let mut rig = Rig::start(&host, &[])?;
    rig.run(Duration::from_millis(200))?;
    let before = resident();
    host.ports[0].policy.track = true;
    rig.engine().apply(&host)?;
    rig.await_connections(connections.into(), false)?;
    let bytes = resident().saturating_sub(before);
    Ok(vec![
        Figure::new(format!("{name} per connection"), Unit::Bytes, bytes as f64 / f64::from(connections)),
        Figure::new(format!("{name} of {connections}"), Unit::Bytes, bytes as f64),
    ])
}
