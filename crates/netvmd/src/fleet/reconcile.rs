// SPDX-License-Identifier: Apache-2.0
//! Brings this host to what etcd wants: applies it as the API does, tests its health, keeps it or goes back. In: the
//! wanted state. Out: changes, and reports. It needs no etcd.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use netvm_api::{ApplyHow, ApplyReply, EventKind};
use netvm_config::Document;
use netvm_fleet::{HostError, HostState, Revision};
use netvm_model::HealthConfig;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::health;
use super::problem::{error_of, said};
use super::read::Wanted;
use crate::audit::{Entry, LoggedClient};
use crate::daemon::{ApplyError, BadRevision, Daemon, EtcdStore};
use crate::runtime::blocking;
use crate::telemetry;

/// netvmd goes back by itself if it has not confirmed a change so long after it should have.
const CONFIRM_MARGIN: u64 = 60;
/// How often a change is tried that another one delays.
const RETRY: Duration = Duration::from_secs(1);
/// How often health is tested without a change.
const HEALTH_INTERVAL: Duration = Duration::from_secs(5);
/// The problem of a configuration that takes a restart, if netvmd could not start with it.
const NOT_STARTED: &str = "netvmd could not start with it, and runs the last good configuration: see its log \
                           (journalctl -u netvmd), and write another one";
/// The reason, in the history.
const WHY: &str = "etcd";

/// What this host does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) state: HostState,
    pub(super) wanted: Revision,
    pub(super) running: Revision,
    pub(super) error: Option<HostError>,
    pub(super) problems: Vec<String>,
}

/// Follows the wanted state.
#[derive(Debug)]
pub(super) struct Reconciler<'a> {
    daemon: &'a Arc<Daemon>,
    wanted: watch::Receiver<Wanted>,
    reports: watch::Sender<Report>,
    store: EtcdStore,
    /// The revision that this process has tried last, and what came of it.
    tried: Option<(Revision, HostState, Option<HostError>)>,
}

impl<'a> Reconciler<'a> {
    pub(super) fn new(daemon: &'a Arc<Daemon>, wanted: watch::Receiver<Wanted>, state_dir: &Path) -> Self {
        let store = EtcdStore::open(state_dir);
        let running = store.memory.running;
        let state = HostState::Unconfigured;
        let first = Report { state, wanted: 0, running, error: None, problems: Vec::new() };
        Self { daemon, wanted, reports: watch::Sender::new(first), store, tried: None }
    }

    pub(super) fn reports(&self) -> watch::Receiver<Report> {
        self.reports.subscribe()
    }

    /// Runs until the future is dropped.
    pub(super) async fn run(mut self) {
        loop {
            match timeout(HEALTH_INTERVAL, self.wanted.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return,
                Err(_) => {
                    let problems = health::problems(self.daemon).await;
                    self.report(|report| report.problems = problems);
                    continue;
                }
            }
            let wanted = self.wanted.borrow_and_update().clone();
            self.reach(wanted).await;
        }
    }

    fn report(&self, change: impl FnOnce(&mut Report)) {
        self.reports.send_if_modified(|report| {
            let before = report.clone();
            change(report);
            *report != before
        });
    }

    fn state(&self, state: HostState, wanted: Revision, error: Option<HostError>) {
        let running = self.store.memory.running;
        self.report(|report| *report = Report { state, wanted, running, error, ..report.clone() });
    }

    async fn reach(&mut self, wanted: Wanted) {
        match wanted {
            Wanted::Unknown => {}
            Wanted::Nothing => self.state(HostState::Unconfigured, 0, None),
            Wanted::Held { revision, why } => {
                self.state(HostState::Held, revision, Some(said(format!("held: {why}"))));
            }
            Wanted::Unreadable { revision, error } => {
                tracing::error!("etcd, revision {revision}: {}", error.message);
                self.state(HostState::Refused, revision, Some(error));
            }
            Wanted::Config { revision, document } => self.config(revision, &document).await,
        }
    }

    async fn config(&mut self, revision: Revision, document: &Document) {
        if let Some((_, state, error)) = self.tried.clone().filter(|(tried, ..)| *tried == revision) {
            return self.state(state, revision, error);
        }
        if let Some(bad) = self.store.memory.bad.clone().filter(|bad| bad.revision == revision) {
            return self.state(HostState::RolledBack, revision, Some(bad.error));
        }
        self.state(HostState::Applying, revision, None);
        let Some(outcome) = self.apply(revision, document).await else { return };
        let (state, error) = match outcome {
            // It was healthy before, so what is wrong now is not its fault.
            Ok(_) if self.store.memory.running == revision => self.keep(revision).await,
            Ok((reply, health)) => self.confirm(revision, &health, reply.plan.is_empty()).await,
            // It runs something else although it has started with this.
            Err(ApplyError::NeedsRestart(_)) if self.store.memory.has_started_with(revision) => {
                (HostState::Refused, Some(said(NOT_STARTED.to_owned())))
            }
            Err(error @ ApplyError::NeedsRestart(_)) => {
                (HostState::RestartNeeded, Some(self.keep_for_restart(revision, document, &error)))
            }
            Err(error) => (HostState::Refused, Some(error_of(&error))),
        };
        self.tried = Some((revision, state, error.clone()));
        self.state(state, revision, error);
    }

    /// Applies a configuration as soon as no other change is in progress; `None` if something else is wanted meanwhile.
    async fn apply(
        &mut self,
        revision: Revision,
        document: &Document,
    ) -> Option<Result<(ApplyReply, HealthConfig), ApplyError>> {
        loop {
            let outcome = self.apply_once(revision, document).await;
            let Err(ApplyError::Busy | ApplyError::Unconfirmed { .. }) = &outcome else {
                return Some(outcome);
            };
            tokio::select! {
                () = sleep(RETRY) => {}
                _ = self.wanted.changed() => {
                    self.wanted.mark_changed();
                    return None;
                }
            }
        }
    }

    async fn apply_once(
        &self,
        revision: Revision,
        document: &Document,
    ) -> Result<(ApplyReply, HealthConfig), ApplyError> {
        // Its errors have the places of fragments, which the text that is applied has no longer.
        let running = self.daemon.running().await?;
        let host = self.daemon.configuration().parse_document(document, &running).await?.host;
        let (name, text, health) = (document.name.clone(), document.single(&host), host.health);
        let limit = u64::from(health.within) + u64::from(health.steady) + CONFIRM_MARGIN;
        let how = ApplyHow { save: true, confirm: Some(limit) };
        let before = self.daemon.audit().file();
        let daemon = Arc::clone(self.daemon);
        // A separate task, so that an end of netvmd does not interrupt the change.
        let work = async move {
            let span = telemetry::change(&name, WHY);
            telemetry::within(span, daemon.apply(&name, &text, how, WHY)).await
        };
        let outcome = tokio::spawn(work).await.unwrap_or(Err(ApplyError::Busy));
        if !matches!(outcome, Err(ApplyError::Busy | ApplyError::Unconfirmed { .. })) {
            let result = match &outcome {
                Ok(_) => format!("applied revision {revision} of etcd"),
                Err(error) => format!("revision {revision} of etcd not applied: {error}"),
            };
            let plan = outcome.as_ref().map_or_else(|_| String::new(), |reply| reply.plan.to_string());
            let mut entry = Entry::of(LoggedClient::default(), &document.name).with_plan(&plan);
            entry.result = result;
            self.daemon.audit().write(&entry, before.as_ref());
        }
        Ok((outcome?, health))
    }

    /// Keeps a change if it is healthy, else undoes it.
    async fn confirm(
        &mut self,
        revision: Revision,
        health: &HealthConfig,
        is_empty: bool,
    ) -> (HostState, Option<HostError>) {
        let Err(problems) = health::wait(self.daemon, health).await else {
            return self.keep(revision).await;
        };
        self.report(|report| report.problems.clone_from(&problems));
        let mut message = format!("not healthy within {} s: {}", health.within, problems.join("; "));
        let mut state = HostState::RolledBack;
        match self.daemon.revert().await {
            // As after a start with it.
            Some(Ok(())) if is_empty => {
                state = HostState::Refused;
                message += "; it runs nevertheless: a restart of netvmd goes back to the last good one, if there is one";
            }
            Some(Ok(())) => message += "; went back to the configuration before",
            // Another client has confirmed or undone it.
            None => {}
            Some(Err(error)) => message = format!("{message}; going back failed, too: {error}"),
        }
        tracing::error!("etcd, revision {revision}: {message}");
        let error = said(message);
        self.store.change(|memory| memory.bad = Some(BadRevision { revision, error: error.clone() }));
        self.audit(&format!("revision {revision} of etcd undone: {}", error.message));
        (state, Some(error))
    }

    async fn keep(&mut self, revision: Revision) -> (HostState, Option<HostError>) {
        let daemon = Arc::clone(self.daemon);
        // Writes the configuration file.
        let confirmed = blocking(move || daemon.configuration().confirm()).await;
        if let Some(Err(error)) = confirmed {
            tracing::error!("etcd, revision {revision}: healthy, but not kept: {error}");
            let message = format!("healthy, but not kept for the next start: {error}");
            return (HostState::Refused, Some(said(message)));
        }
        self.store.change(|memory| (memory.running, memory.bad) = (revision, None));
        let message = format!("etcd: revision {revision} is healthy");
        self.daemon.engine().events().push(EventKind::Other, "", message);
        self.report(|report| report.problems.clear());
        (HostState::Running, None)
    }

    fn keep_for_restart(&mut self, revision: Revision, document: &Document, error: &ApplyError) -> HostError {
        let text = netvm_config::parse_document(document, |_| Vec::new())
            .map(|loaded| document.single(&loaded.host))
            .ok();
        self.store.change(|memory| (memory.next, memory.next_revision) = (text, revision));
        said(format!("{error}: the next start of netvmd tries it (systemctl restart netvmd)"))
    }

    fn audit(&self, result: &str) {
        let mut entry = Entry::of(LoggedClient::default(), WHY);
        result.clone_into(&mut entry.result);
        self.daemon.audit().write(&entry, None);
    }
}
