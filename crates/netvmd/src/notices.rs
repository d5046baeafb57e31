//! What the engine did by itself: said in the log, and remembered where the API shows it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use netvm_engine::{Engine, Notice};

/// What was reclaimed from NFs of a trust group that are gone.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reclaim {
    /// Buffers, all together.
    pub(crate) buffers: u64,
    /// The longest that it took until those were back that an NF held when it ended.
    pub(crate) longest: Duration,
}

/// By the name of the trust group.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reclaims(Arc<Mutex<BTreeMap<String, Reclaim>>>);

impl Reclaims {
    /// What was reclaimed in a group.
    pub(crate) fn of(&self, group: &str) -> Reclaim {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(group).copied().unwrap_or_default()
    }

    fn add(&self, group: &str, buffers: u64, time: Duration) {
        let mut reclaims = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let reclaim = reclaims.entry(group.to_owned()).or_default();
        reclaim.buffers += buffers;
        reclaim.longest = reclaim.longest.max(time);
    }

    /// Takes note of what happened. `engine` knows the names that belong to numbers.
    pub(crate) fn hear(&self, engine: &Engine, notice: Notice) {
        let host = engine.host();
        let nf = |role| host.nf(role).map_or_else(|| format!("(former role {role})"), |nf| nf.role.clone());
        match notice {
            Notice::Reclaimed { instance, role, buffers, first_sweep, total } => {
                tracing::info!(
                    "nf {}: instance {instance} has gone, {buffers} buffers taken back (in {:.1} ms; all settled in {:.1} ms)",
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
                    "group {}: {buffers} buffers were with nobody and are back; an NF had lied about them",
                    group.name
                );
                self.add(&group.name, buffers, Duration::ZERO);
            }
            Notice::StandbyTookOver { instance, role } => {
                tracing::info!("nf {}: standby instance {instance} takes packets now", nf(role));
            }
            Notice::WakesMayWait { error } => {
                tracing::warn!(
                    "NFs and guests are woken by writing to eventfds, as io_setup(2) fails: {} (is fs.aio-max-nr used up, or a system call filter in the way?); a hostile one can make workers wait",
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
