// SPDX-License-Identifier: Apache-2.0
//! Statistics that netvmd itself collects: the workers' load, and buffers reclaimed from NFs that ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use netvm_api::EventKind;
use netvm_clock as clock;
use netvm_engine::{
    Engine, GroupId, LastMove, Notice, PortId, ProgramChange, ProgramFault, StormClass, SwitchingEvent,
};
use netvm_flowmon::export::View;
use netvm_model::{Host, PairSide};
use prometheus_client::registry::Registry;

use super::connection_log::ConnectionEvents;
use super::refusals;
use crate::engine_thread::{EngineGone, EngineHandle};
use crate::events::Events;
use crate::runtime::lock;

/// Interval of the measurements.
const PERIOD: Duration = Duration::from_secs(1);

/// What netvmd itself counts and measures.
#[derive(Debug)]
pub(crate) struct Statistics {
    started: Instant,
    /// The workers' load in percent.
    load: Arc<Mutex<Vec<f64>>>,
    reclaims: Reclaims,
    flows: Option<View>,
    connections: ConnectionEvents,
    /// The last reply to a scrape of the metrics, and its time.
    last_scrape: Mutex<Option<(Instant, Arc<Registry>)>>,
}

impl Statistics {
    /// Starts to measure. `flows`: the exporter of flows, if flows are counted. `connections`: their log.
    pub(crate) async fn start(
        engine: &EngineHandle,
        reclaims: Reclaims,
        flows: Option<View>,
        connections: ConnectionEvents,
    ) -> Result<Self, EngineGone> {
        let cycles = engine.call(busy_cycles).await?;
        let load = Arc::new(Mutex::new(vec![0.0; cycles.len()]));
        tokio::spawn(measure(Arc::clone(&load), engine.clone(), cycles));
        tokio::spawn(refusals::watch(engine.clone()));
        let (started, last_scrape) = (Instant::now(), Mutex::default());
        Ok(Self { started, load, reclaims, flows, connections, last_scrape })
    }

    /// The time since the start.
    pub(crate) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// The share of the last second that a worker spent on packets, in percent.
    pub(crate) fn load(&self, worker: usize) -> f64 {
        lock(&self.load).get(worker).copied().unwrap_or_default()
    }

    /// The buffers reclaimed from NFs of a trust group that ended.
    pub(crate) fn reclaimed(&self, group: &str) -> Reclaim {
        lock(&self.reclaims.0).get(group).copied().unwrap_or_default()
    }

    /// What happens to connections.
    pub(crate) const fn connections(&self) -> &ConnectionEvents {
        &self.connections
    }

    /// The exporter of flows, if flows are counted.
    pub(crate) const fn flows(&self) -> Option<&View> {
        self.flows.as_ref()
    }

    /// The last reply to a scrape, if it is not older than `age`.
    pub(crate) fn last_scrape(&self, age: Duration) -> Option<Arc<Registry>> {
        let last = lock(&self.last_scrape);
        last.as_ref().filter(|(made, _)| made.elapsed() < age).map(|(_, registry)| Arc::clone(registry))
    }

    /// Keeps the reply to a scrape.
    pub(crate) fn keep_scrape(&self, registry: &Arc<Registry>) {
        *lock(&self.last_scrape) = Some((Instant::now(), Arc::clone(registry)));
    }
}

/// Measures the workers' load until the engine ends. `before`: the workers' cycles at the beginning.
async fn measure(load: Arc<Mutex<Vec<f64>>>, engine: EngineHandle, mut before: Vec<u64>) {
    let mut then = Instant::now();
    loop {
        tokio::time::sleep(PERIOD).await;
        let Ok(after) = engine.call(busy_cycles).await else { return };
        let now = Instant::now();
        let possible = now.duration_since(then).as_secs_f64() * clock::cycles_per_second() as f64;
        let percent = |(after, before): (&u64, &u64)| {
            (after.wrapping_sub(*before) as f64 / possible * 100.0).clamp(0.0, 100.0)
        };
        *lock(&load) = after.iter().zip(&before).map(percent).collect();
        (then, before) = (now, after);
    }
}

/// By worker: cycles spent on packets so far.
fn busy_cycles(engine: &mut Engine) -> Vec<u64> {
    engine.workers().map(|worker| worker.counters.busy_cycles.get()).collect()
}

/// Buffers reclaimed from NFs of a trust group that ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reclaim {
    /// Their number.
    pub(crate) buffers: u64,
    /// The longest time from an NF's end to the return of its buffers.
    pub(crate) longest: Duration,
}

/// Reclaimed buffers by trust group.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reclaims(Arc<Mutex<BTreeMap<String, Reclaim>>>);

impl Reclaims {
    fn add(&self, group: &str, buffers: u64, time: Duration) {
        let mut reclaims = lock(&self.0);
        let reclaim = reclaims.entry(group.to_owned()).or_default();
        reclaim.buffers += buffers;
        reclaim.longest = reclaim.longest.max(time);
    }

    /// Turns an engine notice into an event, and updates the figures.
    pub(crate) fn record(&self, events: &Events, engine: &Engine, notice: Notice) {
        let host = engine.host();
        let nf = |role| host.nf(role).map_or_else(|| format!("(former role {role})"), |nf| nf.role.clone());
        let group = |id| host.group(id).map_or_else(|| GroupId::to_string(&id), |group| group.name.clone());
        let (kind, subject, message) = match notice {
            Notice::Reclaimed { instance, role, buffers, first_sweep, total } => {
                if let Some(group) = host.nf(role).and_then(|nf| host.group(nf.group)) {
                    self.add(&group.name, buffers, first_sweep);
                }
                let (first, total) = (millis(first_sweep), millis(total));
                let message = format!(
                    "instance {instance} ended; {buffers} buffers reclaimed in {first:.1} ms, teardown done in {total:.1} ms"
                );
                (EventKind::Reclaimed, nf(role), message)
            }
            Notice::Audited { group, buffers } => {
                let Some(group) = host.group(group) else { return };
                self.add(&group.name, buffers, Duration::ZERO);
                let message = format!("the audit reclaimed {buffers} lost buffers; an NF misreported them");
                (EventKind::Audited, group.name.clone(), message)
            }
            Notice::StandbyTookOver { instance, role } => {
                (EventKind::StandbyTookOver, nf(role), format!("standby instance {instance} took over"))
            }
            Notice::Program { role, instance, change } => {
                let (kind, message) = program_event(change);
                let name = nf(role);
                return events.push(kind, &name, format!("nf {name}/{instance}: {message}"));
            }
            Notice::Hung { instance, role, stalled } => {
                let message = format!(
                    "instance {instance} hangs: no progress for {:.0} ms although packets wait for it and it could run",
                    millis(stalled)
                );
                (EventKind::NfHung, nf(role), message)
            }
            Notice::Starved { instance, role, starved } => {
                let message = format!(
                    "instance {instance} is starved: packets wait for it, but it got no core for {:.0} ms: give it `cores` that others leave idle, or raise the limit of its cgroup",
                    millis(starved)
                );
                (EventKind::NfStarved, nf(role), message)
            }
            Notice::QueueMoved { port, from, to } => {
                let name = host.port(port).map_or_else(String::new, |port| port.name.clone());
                (EventKind::QueueMoved, name, format!("a queue moved from worker {from} to worker {to}"))
            }
            Notice::Bond { port, carry } => {
                let carry: Vec<String> = carry.iter().map(|port| port_name(host, *port)).collect();
                let message = match carry.as_slice() {
                    [] => "no member carries packets".to_owned(),
                    members => format!("packets go by {}", members.join(", ")),
                };
                let name = port_name(host, port);
                return events.push(EventKind::BondChanged, &name, format!("port {name}: {message}"));
            }
            Notice::MulticastLimit { port, over_limit } => {
                let name = port_name(host, port);
                let message = format!(
                    "port {name}: its hosts have reported more multicast groups than they may join: {over_limit} reports \
                     changed nothing (`mcast_max_groups`; `netvm mdb`)"
                );
                return events.push(EventKind::MulticastLimit, &name, message);
            }
            Notice::WorkerAdded { worker, core } => {
                let message = format!("worker {worker} started on core {core}");
                return events.push(EventKind::WorkerAdded, "", message);
            }
            Notice::WorkerRemoved { worker, core } => {
                let message = format!("worker {worker} has left core {core}");
                return events.push(EventKind::WorkerRemoved, "", message);
            }
            Notice::WorkerMoved { worker, from, to } => {
                let message = format!("worker {worker} moved from core {from} to core {to}");
                return events.push(EventKind::WorkerMoved, "", message);
            }
            Notice::Recovered { instance, role } => {
                (EventKind::NfRecovered, nf(role), format!("instance {instance} makes progress again"))
            }
            Notice::GroupReset { group: id } => {
                let message = "an NF removed pages of the group's memory (fallocate or madvise); the group gets new memory, and its NFs start again";
                (EventKind::GroupReset, group(id), message.to_owned())
            }
            Notice::GroupNotReset { group: id, error } => (
                EventKind::GroupReset,
                group(id),
                format!("an NF removed pages of the group's memory: {error}"),
            ),
            Notice::Evicted { instance, role } => {
                (EventKind::NfEvicted, nf(role), format!("instance {instance} evicted"))
            }
            Notice::WakesMayWait { error } => {
                let message = format!(
                    "io_setup(2) failed: {}; workers signal NFs and guests by write(2), so a hostile one can stall them (check fs.aio-max-nr and system call filters)",
                    std::io::Error::from_raw_os_error(error)
                );
                return events.push(EventKind::WakesMayWait, "", message);
            }
            Notice::InterfacesNotKept { error: None } => {
                return tracing::warn!(
                    "the process that keeps containers' interfaces for the next netvmd had ended, and is started again"
                );
            }
            Notice::InterfacesNotKept { error: Some(error) } => {
                return tracing::warn!(
                    "containers lose their interfaces when netvmd ends, as the process that keeps them does not work: {error}"
                );
            }
            Notice::OutOfFiles => {
                let message = "no file descriptor is free: connections of guests are closed at once, and others may fail (raise \
                               the limit of open files: LimitNOFILE= of netvmd's unit, or `ulimit -n`)";
                return events.push(EventKind::OutOfFiles, "", message.to_owned());
            }
            Notice::PortFault { port, fault } => (EventKind::PortFault, port_name(host, port), fault),
            Notice::PortClosed { port, fault } => {
                (EventKind::PortFault, port_name(host, port), format!("closed until this is mended: {fault}"))
            }
            Notice::PortWaits { port, fault } => {
                let name = port_name(host, port);
                return events.push(EventKind::PortWaits, &name, format!("port {name} waits: {fault}"));
            }
            Notice::Switching { port, event } => {
                let (kind, message) = switching_event(host, event);
                (kind, port_name(host, port), message)
            }
        };
        let what = match kind {
            EventKind::Audited | EventKind::GroupReset => "group",
            EventKind::PortFault | EventKind::MacMoved | EventKind::MacFlapping | EventKind::Storm => "port",
            _ => "nf",
        };
        events.push(kind, &subject, format!("{what} {subject}: {message}"));
    }
}

/// The kind of an event of a program with two ports, and what happened.
fn program_event(change: ProgramChange) -> (EventKind, String) {
    match change {
        ProgramChange::Forwards(after) => {
            (EventKind::NfRecovered, format!("forwards packets, after {:.0} ms", millis(after)))
        }
        ProgramChange::TookOver => (EventKind::StandbyTookOver, "the standby took over".to_owned()),
        ProgramChange::Fails(fault) => {
            let why = match fault {
                ProgramFault::Ended => "its process has ended".to_owned(),
                ProgramFault::PortClosed => "one of its ports is closed".to_owned(),
                ProgramFault::Silent(side) => format!(
                    "no probe and no packet comes out of its {}: look at its own log; if it does not forward unknown frames, set `probe = false`",
                    if side == PairSide::Only { "port".to_owned() } else { format!("{} side", side.word()) }
                ),
                ProgramFault::Hung => "packets go in, and none comes out".to_owned(),
            };
            (EventKind::NfHung, format!("has failed: {why}"))
        }
    }
}

/// The kind of an event of L2 switching, and what happened.
fn switching_event(host: &Host, event: SwitchingEvent) -> (EventKind, String) {
    match event {
        SwitchingEvent::Moved(LastMove { vlan, mac, other }) => {
            let other = port_name(host, PortId(other));
            (EventKind::MacMoved, format!("{mac}{} moved here from port {other}", in_vlan(vlan)))
        }
        SwitchingEvent::Flapping { last, per_second } => {
            let message = format!("{} ({per_second} times in the last second)", flapping(host, last));
            (EventKind::MacFlapping, message)
        }
        SwitchingEvent::Storm { class, dropped } => {
            (EventKind::Storm, format!("{}: dropped {dropped} packets in the last second", storm(class)))
        }
    }
}

/// What an address that moves to and fro means.
pub(crate) fn flapping(host: &Host, LastMove { vlan, mac, other }: LastMove) -> String {
    let other = port_name(host, PortId(other));
    format!(
        "{mac}{} moves to and fro between this port and {other}: look for a loop of links, or two hosts with this address",
        in_vlan(vlan)
    )
}

/// Which limit of a port is exceeded.
pub(crate) fn storm(class: StormClass) -> String {
    let (what, key) = match class {
        StormClass::Broadcast => ("broadcasts", "broadcast"),
        StormClass::Multicast => ("multicasts", "multicast"),
        StormClass::UnknownUnicast => ("packets to unknown addresses", "unknown_unicast"),
    };
    format!("{what} exceed `storm_control.{key}`; look for a loop of links, or a host that floods")
}

fn in_vlan(vlan: u16) -> String {
    if vlan == 0 { String::new() } else { format!(" in VLAN {vlan}") }
}

fn port_name(host: &Host, port: PortId) -> String {
    host.port(port).map_or_else(|| port.to_string(), |port| port.name.clone())
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
