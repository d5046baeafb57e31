//! NFs, VMs and routers that could not be started when netvmd began, because this machine lacked something: a program, a
//! disk, a user. They are listed as problems, and looked up again until they can be started.

use std::time::Duration;

use tokio::time::sleep;

use crate::daemon::{ApplyError, Daemon};

/// Interval of the look-ups, which read user databases and disks.
const INTERVAL: Duration = Duration::from_secs(5);

/// Looks up what waits, until the future is dropped.
pub(super) async fn retry(daemon: &Daemon) {
    loop {
        sleep(INTERVAL).await;
        if let Err(error) = try_all(daemon).await {
            tracing::debug!("cannot look up again what was missing: {error}");
        }
    }
}

async fn try_all(daemon: &Daemon) -> Result<(), ApplyError> {
    let (nfs, vms) = (daemon.supervisor().waiting().len(), daemon.machines().waiting().len());
    let routers = daemon.routers().waiting().len();
    if nfs + vms + routers == 0 {
        return Ok(());
    }
    // An apply looks them up itself.
    let Some(_changing) = daemon.try_change() else { return Ok(()) };
    let host = daemon.running().await?;
    if routers > 0 && daemon.routers().make_possible(&host).await.len() < routers {
        daemon.routers().settle(&host).await;
    }
    if nfs > 0 {
        // The NFs that can be started now start; the others go on waiting.
        let prepared = daemon.supervisor().prepare(&host, false).await?;
        daemon.supervisor().reconcile_live(prepared).await?;
    }
    if vms > 0 {
        daemon.machines().reconcile(daemon.machines().prepare((&host, &host), false).await?);
    }
    Ok(())
}
