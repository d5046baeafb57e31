//! Follows the loads of roles: their number of replicas, if it depends on that, and what NFs are told.

use std::time::Duration;

use netvm_api::EventKind;
use netvm_engine::Engine;
use netvm_model::NfConfig;
use tokio::time::sleep;

use crate::daemon::{Daemon, loads};
use crate::engine_thread::EngineGone;

const INTERVAL: Duration = Duration::from_secs(1);

/// Runs until the engine has ended, or the future is dropped.
pub(super) async fn scale(daemon: &Daemon) {
    loop {
        sleep(INTERVAL).await;
        if follow(daemon).await.is_err() {
            return;
        }
    }
}

async fn follow(daemon: &Daemon) -> Result<(), EngineGone> {
    let are_told = daemon.engine().messages().are_taken();
    let measure = move |engine: &mut Engine| {
        let scales = engine.host().nfs.iter().any(NfConfig::scales);
        (scales || are_told).then(|| (engine.shared_host(), loads(engine)))
    };
    let Some((host, loads)) = daemon.engine().call(measure).await? else { return Ok(()) };
    daemon.engine().messages().tell_loads(|role| loads.get(&role).copied());
    // A change of the configuration starts and ends replicas itself.
    let Some(_changing) = daemon.try_change() else { return Ok(()) };
    for change in daemon.supervisor().scale(&host, |role| loads.get(&role).copied()).await? {
        let message = format!("nf {}: {}", change.role, change.what);
        daemon.engine().events().push(EventKind::NfScaled, &change.role, message);
    }
    Ok(())
}
