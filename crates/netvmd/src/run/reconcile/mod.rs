// SPDX-License-Identifier: Apache-2.0
//! Brings back into their desired state what this machine has changed: interfaces and ports, and NFs, VMs and routers
//! that could not be started when netvmd began, because the machine lacked something: a program, a disk, a user. The
//! latter are listed as problems, and looked up again until they can be started.

mod closed_ports;
mod folders;
mod interfaces;

use std::time::Duration;

use tokio::time::sleep;

use crate::daemon::{ApplyError, Daemon};

/// Interval of the look-ups, which read user databases and disks.
const INTERVAL: Duration = Duration::from_secs(5);

/// Runs until the future is dropped.
pub(super) async fn reconcile(daemon: &Daemon) {
    tokio::join!(interfaces::follow(daemon), retry(daemon), end_leases(daemon));
}

/// Removes live ports whose owner has ended them since the state directory was read, and before the API was served.
async fn end_leases(daemon: &Daemon) {
    if let Err(error) = daemon.end_leases().await {
        tracing::warn!("ports whose owners have removed their leases stay: {error}");
    }
}

async fn retry(daemon: &Daemon) {
    loop {
        sleep(INTERVAL).await;
        if let Err(error) = start_waiting(daemon).await {
            tracing::debug!("cannot look up again what was missing: {error}");
        }
    }
}

async fn start_waiting(daemon: &Daemon) -> Result<(), ApplyError> {
    let (supervisor, machines, routers) = (daemon.supervisor(), daemon.machines(), daemon.routers());
    let (nfs, vms, all) = (supervisor.waiting(), machines.waiting(), routers.waiting());
    if nfs.is_empty() && vms.is_empty() && all.is_empty() {
        return Ok(());
    }
    // An apply looks them up itself.
    let Some(_changing) = daemon.try_change() else { return Ok(()) };
    let host = daemon.running().await?;
    if !all.is_empty() && routers.make_possible(&host).await.len() < all.len() {
        routers.settle(&host).await;
    }
    if !nfs.is_empty() {
        // The NFs that can be started now start; the others go on waiting.
        supervisor.reconcile_live(supervisor.prepare(&host, false).await?).await?;
    }
    if !vms.is_empty() {
        machines.reconcile(machines.prepare(&host, &host, false).await?);
    }
    Ok(())
}
