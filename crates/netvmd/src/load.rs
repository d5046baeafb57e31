//! How busy the workers are: the share of the last second that each spent on packets.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use netvm_engine::WorkerCounters;
use netvm_region::clock;

use crate::engine_thread::{EngineGone, EngineHandle};

/// How often it is measured.
const PERIOD: Duration = Duration::from_secs(1);

/// Percent, by worker.
#[derive(Clone, Debug)]
pub(crate) struct Load(Arc<Mutex<Vec<f64>>>);

impl Load {
    /// Measures until the runtime ends.
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
