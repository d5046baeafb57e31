//! Figures that netvmd collects itself: the workers' load, and the buffers reclaimed from NFs that ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use netvm_engine::{Engine, Notice, WorkerCounters};
use netvm_region::clock;

use crate::engine_thread::{EngineGone, EngineHandle};

/// Interval of the measurements.
const PERIOD: Duration = Duration::from_secs(1);

/// The workers' load in percent.
#[derive(Clone, Debug)]
pub(crate) struct Load(Arc<Mutex<Vec<f64>>>);

impl Load {
    /// Starts a task that measures until the runtime ends.
    pub(crate) async fn start(engine: &EngineHandle) -> Result<Self, EngineGone> {
        let counters: Vec<Arc<WorkerCounters>> =
            engine.call(|engine| engine.workers().map(|worker| worker.counters).collect()).await?;
        let load = Self(Arc::new(Mutex::new(vec![0.0; counters.len()])));
        tokio::spawn(load.clone().measure(counters));
        Ok(load)
    }

    /// The share of the last second that a worker spent on packets, in percent.
    pub(crate) fn of(&self, worker: usize) -> f64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(worker).copied().unwrap_or_default()
    }

    async fn measure(self, counters: Vec<Arc<WorkerCounters>>) {
        let read = || -> Vec<u64> { counters.iter().map(|counters| counters.busy_cycles.get()).collect() };
        let (mut then, mut before) = (Instant::now(), read());
        loop {
            tokio::time::sleep(PERIOD).await;
            let (now, after) = (Instant::now(), read());
            let possible = now.duration_since(then).as_secs_f64() * clock::cycles_per_second() as f64;
            let percent = |(after, before): (&u64, &u64)| {
                (after.wrapping_sub(*before) as f64 / possible * 100.0).clamp(0.0, 100.0)
            };
            let shares = after.iter().zip(&before).map(percent).collect();
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = shares;
            (then, before) = (now, after);
        }
    }
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
    /// The figures of a group.
    pub(crate) fn of(&self, group: &str) -> Reclaim {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(group).copied().unwrap_or_default()
    }

    fn add(&self, group: &str, buffers: u64, time: Duration) {
        let mut reclaims = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let reclaim = reclaims.entry(group.to_owned()).or_default();
        reclaim.buffers += buffers;
        reclaim.longest = reclaim.longest.max(time);
    }

    /// Logs an engine notice and updates the figures.
    pub(crate) fn record(&self, engine: &Engine, notice: Notice) {
        let host = engine.host();
        let nf = |role| host.nf(role).map_or_else(|| format!("(former role {role})"), |nf| nf.role.clone());
        match notice {
            Notice::Reclaimed { instance, role, buffers, first_sweep, total } => {
                tracing::info!(
                    "nf {}: instance {instance} ended; {buffers} buffers reclaimed in {:.1} ms, teardown done in {:.1} ms",
                    nf(role),
                    millis(first_sweep),
                    millis(total)
                );
                if let Some(group) = host.nf(role).and_then(|nf| host.group(nf.group)) {
                    self.add(&group.name, buffers, first_sweep);
                }
            }
            Notice::Audited { group, buffers } => {
                let Some(group) = host.group(group) else { return };
                tracing::warn!(
                    "group {}: the audit reclaimed {buffers} lost buffers; an NF misreported them",
                    group.name
                );
                self.add(&group.name, buffers, Duration::ZERO);
            }
            Notice::StandbyTookOver { instance, role } => {
                tracing::info!("nf {}: standby instance {instance} took over", nf(role));
            }
            Notice::Hung { instance, role, stalled } => {
                tracing::error!(
                    "nf {}: instance {instance} hangs: no progress for {:.0} ms although packets wait for it",
                    nf(role),
                    millis(stalled)
                );
            }
            Notice::Recovered { instance, role } => {
                tracing::info!("nf {}: instance {instance} makes progress again", nf(role));
            }
            Notice::GroupReset { group } => {
                let name = host.group(group).map_or_else(|| group.to_string(), |group| group.name.clone());
                tracing::error!(
                    "group {name}: an NF removed pages of the group's memory (fallocate or madvise); the group gets new memory, and its NFs start again"
                );
            }
            Notice::GroupNotReset { group, error } => {
                let name = host.group(group).map_or_else(|| group.to_string(), |group| group.name.clone());
                tracing::error!("group {name}: an NF removed pages of the group's memory: {error}");
            }
            Notice::Evicted { instance, role } => {
                tracing::warn!("nf {}: instance {instance} evicted", nf(role));
            }
            Notice::WakesMayWait { error } => {
                tracing::warn!(
                    "io_setup(2) failed: {}; workers signal NFs and guests by write(2), so a hostile one can stall them (check fs.aio-max-nr and system call filters)",
                    std::io::Error::from_raw_os_error(error)
                );
            }
            Notice::PortFault { port, fault } => {
                let name = host.port(port).map_or_else(|| port.to_string(), |port| port.name.clone());
                tracing::error!("port {name}: {fault}");
            }
        }
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
