// SPDX-License-Identifier: Apache-2.0
//! Reads the loads of roles, once a second, for all that follows them: which rules apply, how many replicas a role has,
//! and what NFs are told.

use std::time::Duration;

use netvm_api::EventKind;
use netvm_engine::Engine;
use netvm_model::NfConfig;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::daemon::{Conditions, Daemon, Measured};
use crate::engine_thread::EngineGone;

const INTERVAL: Duration = Duration::from_secs(1);

/// Runs until the engine has ended, or the future is dropped.
pub(super) async fn adapt(daemon: &Daemon) {
    let (sender, measured) = watch::channel(Measured::default());
    // A change of rules may wait for a compilation, and replicas do not wait for it.
    tokio::join!(measure(daemon, sender), daemon.rules().adapt(measured.clone()), scale(daemon, measured));
}

/// Reads the loads while anything follows them.
async fn measure(daemon: &Daemon, measured: watch::Sender<Measured>) {
    loop {
        sleep(INTERVAL).await;
        let are_told = daemon.engine().messages().are_taken();
        let measure = move |engine: &mut Engine| {
            let host = engine.host();
            let are_followed = are_told || Conditions::are_in(host) || host.nfs.iter().any(NfConfig::scales);
            are_followed.then(|| Measured::of(engine))
        };
        match daemon.engine().call(measure).await {
            Ok(now) => now.into_iter().for_each(|now| drop(measured.send_replace(now))),
            Err(EngineGone) => return,
        }
    }
}

/// Tells NFs the loads, and lets the replicas of roles follow them.
async fn scale(daemon: &Daemon, mut measured: watch::Receiver<Measured>) {
    while measured.changed().await.is_ok() {
        let Measured { host, loads } = measured.borrow_and_update().clone();
        daemon.engine().messages().tell_loads(|role| loads.get(&role).copied());
        // A change of the configuration starts and ends replicas itself.
        let Some(_changing) = daemon.try_change() else { continue };
        let scaled = daemon.supervisor().scale(&host, |role| loads.get(&role).copied()).await;
        let Ok(changes) = scaled else { return };
        for change in changes {
            let message = format!("nf {}: {}", change.role, change.what);
            daemon.engine().events().push(EventKind::NfScaled, &change.role, message);
        }
    }
}
