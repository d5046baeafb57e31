// SPDX-License-Identifier: Apache-2.0
//! The connection with etcd. In: news of etcd, reports of this host. Out: the wanted state, and the host's status.
//!
//! A session claims the name, gets a lease, reads, and watches from the revision that it has read on. Keeping the lease
//! also shows that etcd still answers; if it does not, the session ends, and the next one begins after a pause, with
//! another member. Nothing waits for etcd but this task.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use netvm_fleet::{EtcdError, HostKey, HostStatus, LeaseId, Machine, Operation, Revision};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::read::{Claimed, Source, Wanted};
use super::reconcile::Report;
use crate::daemon::Daemon;
use crate::process::backoff::Backoff;

/// Seconds after which the status of a host that is gone disappears.
const LEASE_SECONDS: u64 = 10;
/// How often the lease is kept.
const KEEP_INTERVAL: Duration = Duration::from_secs(3);

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    #[error(
        "host name {host} belongs to machine {} ({}), and this one keeps what it runs: give it another --host. If that \
         machine is gone: netvm fleet release {host}", owner.id, owner.hostname
    )]
    Taken { host: String, owner: Machine },
    #[error(
        "host {host} is also machine {} now, whose /etc/machine-id is the same, and this one keeps what it runs: one of them \
         is a copy: give it a number of its own (rm /etc/machine-id; systemd-machine-id-setup) and another --host. If this \
         is that machine, started anew, it goes on within some seconds", other.hostname
    )]
    Copy { host: String, other: Machine },
    #[error("the lease has ended")]
    Expired,
}

/// A session after another.
#[derive(Debug)]
pub(super) struct Session<'a> {
    daemon: &'a Arc<Daemon>,
    source: Source,
    wanted: watch::Sender<Wanted>,
    reports: watch::Receiver<Report>,
    /// Since when the state is as it is, by etcd's clock.
    since: Option<(netvm_fleet::HostState, Revision, String)>,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        daemon: &'a Arc<Daemon>,
        source: Source,
        wanted: watch::Sender<Wanted>,
        reports: watch::Receiver<Report>,
    ) -> Self {
        Self { daemon, source, wanted, reports, since: None }
    }

    /// Runs until the future is dropped.
    pub(super) async fn run(mut self) {
        let mut pauses = Backoff::default();
        loop {
            let started = Instant::now();
            let Err(ended) = self.session().await;
            let problem = match &ended {
                Ended::Expired => None,
                Ended::Etcd(error) => {
                    Some(format!("etcd is not followed, and this host keeps what it runs: {error}"))
                }
                Ended::Taken { .. } | Ended::Copy { .. } => Some(format!("etcd is not followed: {ended}")),
            };
            self.daemon.note_fleet_problem(problem);
            self.source.etcd.turn_away();
            sleep(jittered(pauses.after(started.elapsed()))).await;
        }
    }

    async fn session(&mut self) -> Result<std::convert::Infallible, Ended> {
        let host = || self.source.host.to_string();
        match self.source.claim().await? {
            Claimed::Own => {}
            Claimed::Other(owner) => return Err(Ended::Taken { host: host(), owner }),
            Claimed::Copy(other) => return Err(Ended::Copy { host: host(), other }),
        }
        let lease = self.source.etcd.grant(LEASE_SECONDS).await?;
        let mut revision = self.read().await?;
        let ranges = self.source.ranges();
        let mut watch = self.source.etcd.watch(&ranges, revision + 1).await?;
        self.put_status(lease).await?;
        self.daemon.note_fleet_problem(None);
        let mut beats = interval(KEEP_INTERVAL);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                changed = watch.changed() => {
                    let is_compacted = matches!(changed, Err(EtcdError::Compacted));
                    if !is_compacted && changed? <= revision {
                        continue;
                    }
                    revision = self.read().await?;
                    if is_compacted {
                        watch = self.source.etcd.watch(&ranges, revision + 1).await?;
                    }
                }
                _ = beats.tick() => {
                    if !self.source.etcd.keep_alive(lease).await? {
                        return Err(Ended::Expired);
                    }
                }
                _ = self.reports.changed() => self.put_status(lease).await?,
            }
        }
    }

    /// Reads what is wanted; returns the revision as of which it is.
    async fn read(&self) -> Result<Revision, EtcdError> {
        let (wanted, revision) = self.source.read().await?;
        self.wanted.send_if_modified(|known| {
            let is_new = *known != wanted;
            *known = wanted;
            is_new
        });
        Ok(revision)
    }

    async fn put_status(&mut self, lease: LeaseId) -> Result<(), EtcdError> {
        let Report { state, wanted, running, error, problems } = self.reports.borrow_and_update().clone();
        let ahead = self.source.etcd.clock_ahead().unwrap_or_default();
        let since = match self.since.take() {
            Some((before, revision, since)) if (before, revision) == (state, wanted) => since,
            _ => time_of_etcd(ahead),
        };
        self.since = Some((state, wanted, since.clone()));
        let status = HostStatus {
            state,
            wanted,
            running,
            error,
            problems,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            machine: self.source.machine.clone(),
            since,
            clock_ahead_s: ahead,
        };
        if let Some(problem) = status.clock_problem() {
            tracing::warn!("etcd: {problem}");
        }
        let text = serde_json::to_string(&status).unwrap_or_default();
        let put = Operation::Put(self.source.host.key(HostKey::Status), text, Some(lease));
        self.source.etcd.txn(&[], &[put], &[]).await.map(drop)
    }
}

/// The time by etcd's clock.
fn time_of_etcd(ahead: i64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let then = i64::try_from(now).unwrap_or(i64::MAX).saturating_sub(ahead);
    jiff::Timestamp::from_second(then).map_or_else(|_| String::new(), |time| time.to_string())
}

/// A pause of a half to the whole, so that a fleet does not come back at once.
fn jittered(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) % 1024;
    pause / 2 + pause.mul_f64(random as f64 / 2048.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_differ_within_their_bounds() {
        let pauses: Vec<Duration> = (0..64).map(|_| jittered(Duration::from_secs(10))).collect();
        let bounds = Duration::from_secs(5)..=Duration::from_secs(10);
        assert!(
            pauses.iter().all(|pause| bounds.contains(pause))
                && pauses.iter().any(|pause| *pause != pauses[0])
        );
    }
}
