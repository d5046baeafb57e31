// SPDX-License-Identifier: Apache-2.0
//! The configurations: the file, those that were applied, and the change that waits for its confirmation.
//!
//! netvmd undoes such a change unless somebody confirms it in time, so that a mistake does not cut off a remote
//! machine. It saves the previous configuration in the state directory before it makes the change. If netvmd restarts
//! before the confirmation, it runs the previous configuration. It also does so later, as long as the configuration
//! file still has the rejected text.

mod drift;
mod error;
mod etcd;
mod history;
mod live;
mod saving;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use netvm_api::{ApplyHow, Drift};
use netvm_config::{ConfigError, Document, Finding, Loaded, Part};
use netvm_model::Host;
use tokio::time::Instant;

use super::Options;
use crate::lookup::Lookup;
use crate::runtime::{blocking, lock};
use drift::DriftCache;
use etcd::take_next;
use history::{History, Unconfirmed};
pub(crate) use live::{LivePort, LiveSet};

use live::LivePorts;
use saving::{SaveError, Saving};

pub(crate) use error::ApplyError;
pub(crate) use etcd::{BadRevision, EtcdStore};

/// The longest time to wait for a confirmation in seconds.
const MAX_CONFIRM_SECONDS: u64 = 86_400;

/// The configuration to start with.
#[derive(Debug)]
pub(crate) struct First {
    pub(crate) host: Host,
    pub(crate) name: String,
    pub(crate) text: String,
    /// The ports beside it.
    pub(crate) live: LiveSet,
    /// Why it is not that of the file.
    pub(crate) warning: Option<String>,
}

impl First {
    /// Reads the configuration file, or the previous configuration if the file has a change that was never confirmed.
    /// Logs what could be a mistake.
    pub(crate) fn read(options: &Options, lookup: &Lookup) -> Result<Self, ConfigError> {
        let read = |source| ConfigError::Read { path: options.config.clone(), source };
        let (mut name, mut warning) = (options.config.display().to_string(), None);
        let mut text = std::fs::read_to_string(&options.config).map_err(read)?;
        let unconfirmed = History::unconfirmed_in(&options.state_dir());
        if let Some(change) = unconfirmed.filter(|change| change.tried == text) {
            warning = Some(format!(
                "{name} has a change that was not confirmed: running the previous configuration. Correct the file and \
                apply it (netvm apply), or apply it as it is"
            ));
            (name, text) = (format!("{name}, before the unconfirmed change"), change.previous);
        }
        if let Some(next) = options.fleet.as_ref().and_then(|_| take_next(&options.state_dir())) {
            let next_name = "the configuration of etcd that takes a restart";
            match lookup.parse_at_start(&[Part { name: next_name, text: &next }]) {
                Ok(_) => (name, text) = (next_name.to_owned(), next),
                Err(error) => tracing::warn!("{error}: running the last good configuration"),
            }
        }
        // If the record cannot be read, `LivePorts::open` says so.
        let mut live = LiveSet::read(&options.state_dir()).unwrap_or_default();
        let file = Part { name: &name, text: &text };
        let loaded = live.read_beside(file, false, |parts| lookup.parse_at_start(parts))?;
        warning.iter().for_each(|warning| tracing::warn!("{warning}"));
        loaded.warnings.iter().for_each(|warning| tracing::warn!("{}", in_one_line(warning)));
        let mut host = loaded.host;
        netvm_model::assign_ids(&mut host, None);
        for port in &live.ports {
            port.problem.iter().for_each(|why| tracing::error!("{} is not in force: {why}", port.title()));
        }
        Ok(Self { host, name, text, live, warning })
    }
}

/// A finding as a log line.
pub(super) fn in_one_line(finding: &Finding) -> String {
    let remedy = finding.remedy().map_or(String::new(), |remedy| format!(" ({remedy})"));
    format!("{}:{}: {}{remedy}", finding.file(), finding.position().0, finding.message())
}

/// The configurations.
#[derive(Debug)]
pub(crate) struct Configuration {
    options: Options,
    lookup: Lookup,
    history: History,
    live: LivePorts,
    /// The change that waits for its confirmation, and until when.
    waiting: Mutex<Option<(Instant, Change)>>,
    drift: DriftCache,
    /// Why netvmd started with another configuration than that of the file.
    start_warning: Option<String>,
}

/// What a configuration is read with.
#[derive(Debug)]
pub(super) struct Beside<'a> {
    pub(super) running: &'a Arc<Host>,
    pub(super) live: LiveSet,
    /// Whether live ports that are in force make it fail if they contradict it; else they go out of force.
    pub(super) keeps: bool,
    /// Whether the configuration is a file, and not what runs.
    pub(super) is_file: bool,
}

/// A change that is being made, or that waits for its confirmation.
#[derive(Debug)]
pub(super) struct Change {
    /// The configuration before it, without live ports.
    pub(super) previous: String,
    /// The name of that, for the history.
    pub(super) source: String,
    saving: Option<Saving>,
    limit: Option<Duration>,
    /// The unconfirmed change before this one.
    before: Option<Unconfirmed>,
}

impl Configuration {
    /// Opens the state directory.
    pub(crate) fn open(options: Options, lookup: Lookup, start_warning: Option<String>) -> io::Result<Self> {
        let history = History::open(&options.state_dir())?;
        let live = LivePorts::open(&options.state_dir());
        let (waiting, drift) = (Mutex::default(), DriftCache::default());
        Ok(Self { options, lookup, history, live, waiting, drift, start_warning })
    }

    pub(crate) const fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) const fn history(&self) -> &History {
        &self.history
    }

    /// The ports beside the configuration file.
    pub(crate) const fn live(&self) -> &LivePorts {
        &self.live
    }

    /// Parses a configuration and the ports beside it for this machine, off the runtime's thread: user databases and
    /// disks may be slow.
    pub(super) async fn parse(
        &self,
        name: &str,
        text: &str,
        beside: Beside<'_>,
    ) -> Result<(Loaded, LiveSet), ConfigError> {
        let (lookup, running, keeps) = (self.lookup.clone(), Arc::clone(beside.running), beside.keeps);
        let (mut live, [name, text]) = (beside.live, [name, text].map(str::to_owned));
        let parse = move || {
            let file = Part { name: &name, text: &text };
            if beside.is_file && !live.ports.is_empty() {
                // What it says must not depend on them: they may go at any time.
                netvm_config::parse(&name, &text)?;
            }
            let mut loaded = live.read_beside(file, keeps, |parts| lookup.parse(parts, Some(&running)))?;
            if beside.is_file {
                let titles: Vec<String> = live.ports.iter().map(LivePort::title).collect();
                loaded.warnings.retain(|warning| !titles.iter().any(|title| title == warning.file()));
            }
            Ok((loaded, live))
        };
        blocking(parse).await
    }

    /// Parses a file and its fragments for this machine.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`], also with everything that this machine lacks.
    pub(crate) async fn parse_document(
        &self,
        document: &Document,
        running: &Arc<Host>,
    ) -> Result<Loaded, ConfigError> {
        let (lookup, document, running) = (self.lookup.clone(), document.clone(), Arc::clone(running));
        blocking(move || lookup.parse_document(&document, &running)).await
    }

    /// The difference between the configuration file and the running configuration.
    pub(crate) async fn drift(self: &Arc<Self>, running: &Arc<Host>) -> Drift {
        let (this, running) = (Arc::clone(self), Arc::clone(running));
        blocking(move || this.drift.find(&this.options.config, &running, &this.live.all())).await
    }

    /// Why netvmd runs another configuration than that of the file since its start.
    pub(crate) fn start_warning(&self) -> Option<String> {
        let is_first = self.history.last().is_some_and(|last| last.how == "start");
        self.start_warning.clone().filter(|_| is_first)
    }

    /// The remaining time for a confirmation.
    pub(crate) fn left(&self) -> Option<Duration> {
        lock(&self.waiting).as_ref().map(|(until, _)| until.saturating_duration_since(Instant::now()))
    }

    /// How long a change is to wait for its confirmation; `None`: it needs none.
    pub(super) fn limit(&self, how: ApplyHow) -> Result<Option<Duration>, ApplyError> {
        if let Some(left) = self.left() {
            return Err(ApplyError::Unconfirmed { left: left.as_secs() });
        }
        match how.confirm {
            Some(seconds @ 1..=MAX_CONFIRM_SECONDS) => Ok(Some(Duration::from_secs(seconds))),
            Some(_) => Err(ApplyError::ConfirmLimit),
            None => Ok(None),
        }
    }

    /// Before a change: writes the new file beside the configuration file if it `saves` the text, and the configuration
    /// to restore if there is a `limit` for the confirmation.
    pub(super) async fn begin(
        self: &Arc<Self>,
        running: &Arc<Host>,
        text: &str,
        saves: bool,
        limit: Option<Duration>,
    ) -> Result<Change, ApplyError> {
        let (this, running, tried) = (Arc::clone(self), Arc::clone(running), text.to_owned());
        let begin = move || {
            let saving = saves.then(|| Saving::prepare(&this.options.config, &tried)).transpose()?;
            let before = this.history.unconfirmed();
            let previous = this.live.all().file_text(&running);
            if limit.is_some() {
                let change = Unconfirmed { previous: previous.clone(), tried };
                this.history.set_unconfirmed(Some(&change)).map_err(ApplyError::State)?;
            }
            let last = this.history.last();
            let source = last.map_or_else(|| "the configuration before".to_owned(), |last| last.source);
            Ok(Change { previous, source, saving, limit, before })
        };
        blocking(begin).await
    }

    /// The change failed.
    pub(super) async fn abandon(self: &Arc<Self>, change: Change) {
        let this = Arc::clone(self);
        if change.limit.is_some() {
            blocking(move || this.set_unconfirmed(change.before.as_ref())).await;
        }
    }

    /// The change is in force: records it, and saves it or lets it wait for its confirmation. Returns the saved file.
    ///
    /// # Errors
    /// [`SaveError`]; the change stays in force.
    pub(super) async fn finish(
        self: &Arc<Self>,
        change: Change,
        name: &str,
        why: &str,
        text: &str,
    ) -> Result<Option<PathBuf>, SaveError> {
        let (this, [name, why, text]) = (Arc::clone(self), [name, why, text].map(str::to_owned));
        let finish = move || {
            this.history.record(&name, &why, &text);
            if let Some(limit) = change.limit {
                *lock(&this.waiting) = Some((Instant::now() + limit, change));
                return Ok(None);
            }
            let saved = change.saving.map(Saving::commit).transpose()?;
            this.accept(&text);
            Ok(saved)
        };
        blocking(finish).await
    }

    /// Keeps the pending change, and saves it if the client requested that. `None` if no change waits.
    ///
    /// # Errors
    /// [`SaveError`]; the change stays in force.
    pub(crate) fn confirm(&self) -> Option<Result<(), SaveError>> {
        let change = self.take_waiting(Duration::MAX)?;
        self.set_unconfirmed(None);
        Some(change.saving.map_or(Ok(()), |saving| saving.commit().map(drop)))
    }

    /// Takes the pending change, to undo it, if at most so much time is left for its confirmation.
    pub(super) fn take_waiting(&self, left: Duration) -> Option<Change> {
        let is_due =
            |(until, _): &mut (Instant, Change)| until.saturating_duration_since(Instant::now()) <= left;
        lock(&self.waiting).take_if(is_due).map(|(_, change)| change)
    }

    /// A configuration was applied without a pending confirmation. A rejected text that is still in the configuration
    /// file stays rejected.
    fn accept(&self, text: &str) {
        let in_file = std::fs::read_to_string(&self.options.config).unwrap_or_default();
        let rejected =
            self.history.unconfirmed().filter(|change| change.tried != text && change.tried == in_file);
        let rejected = rejected.map(|change| Unconfirmed { previous: text.to_owned(), ..change });
        self.set_unconfirmed(rejected.as_ref());
    }

    fn set_unconfirmed(&self, change: Option<&Unconfirmed>) {
        if let Err(error) = self.history.set_unconfirmed(change) {
            tracing::warn!("cannot change the record of the unconfirmed change: {error}");
        }
    }
}
