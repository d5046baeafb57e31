//! Changes that netvmd undoes unless somebody confirms them in time, so that a mistake does not cut off a remote machine.
//!
//! netvmd saves the previous configuration in the state directory before it makes the change. If netvmd restarts before the
//! confirmation, it runs the previous configuration. It also does so later, as long as the configuration file still has the
//! rejected text.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use netvm_api::EventKind;
use netvm_model::Host;
use tokio::time::Instant;

use super::apply::{ApplyError, Kind};
use super::history::Unconfirmed;
use super::saving::{SaveError, Saving};
use super::{Daemon, Options};
use crate::runtime::blocking;

/// A change that waits for its confirmation.
#[derive(Debug)]
pub(super) struct Waiting {
    previous: Arc<Host>,
    /// The name of the previous configuration, for the history.
    source: String,
    deadline: Instant,
    saving: Option<Saving>,
    /// Number of the change, which identifies it.
    number: u64,
}

/// The change that waits, if any.
#[derive(Debug, Default)]
pub(crate) struct Confirmations {
    waiting: Mutex<Option<Waiting>>,
    last: std::sync::atomic::AtomicU64,
}

impl Confirmations {
    fn lock(&self) -> MutexGuard<'_, Option<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The remaining time for a confirmation.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.lock().as_ref().map(|waiting| waiting.deadline.saturating_duration_since(Instant::now()))
    }
}

impl Daemon {
    /// Saves the configuration to restore, before a change is made.
    pub(super) fn expect_confirmation(&self, running: &Host, tried: &str) -> Result<(), ApplyError> {
        let change = Unconfirmed { previous: netvm_config::to_toml(running), tried: tried.to_owned() };
        self.history.set_unconfirmed(Some(&change)).map_err(ApplyError::State)
    }

    /// The change is in force: undoes it after `limit` unless it is confirmed.
    pub(super) fn await_confirmation(
        self: &Arc<Self>,
        previous: Arc<Host>,
        source: String,
        saving: Option<Saving>,
        limit: Duration,
    ) {
        let number = 1 + self.confirmations.last.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let deadline = Instant::now() + limit;
        *self.confirmations.lock() = Some(Waiting { previous, source, deadline, saving, number });
        let daemon = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep_until(deadline).await;
            let _changing = daemon.changing.lock().await;
            let waiting = daemon.confirmations.lock().take_if(|waiting| waiting.number == number);
            if let Some(waiting) = waiting {
                tracing::warn!(
                    "the change was not confirmed within {} s: restoring the previous configuration",
                    limit.as_secs()
                );
                // If this fails, the log has the reason.
                let _ = daemon.go_back(waiting).await;
            }
        });
    }

    /// Keeps the pending change, and saves it if the client requested that. `None` if no change waits.
    ///
    /// # Errors
    /// [`SaveError`]; the change stays in force.
    pub(crate) fn confirm(&self) -> Option<Result<(), SaveError>> {
        let waiting = self.confirmations.lock().take()?;
        self.restore_unconfirmed(None);
        Some(waiting.saving.map_or(Ok(()), |saving| saving.commit().map(drop)))
    }

    /// Undoes the pending change now. `None` if no change waits.
    ///
    /// # Errors
    /// [`ApplyError`]; the change stays in force.
    pub(crate) async fn revert(self: &Arc<Self>) -> Option<Result<(), ApplyError>> {
        let _changing = self.changing.lock().await;
        let waiting = self.confirmations.lock().take()?;
        Some(self.go_back(waiting).await)
    }

    async fn go_back(self: &Arc<Self>, waiting: Waiting) -> Result<(), ApplyError> {
        let running = self.running().await?;
        let mut previous = (*waiting.previous).clone();
        netvm_model::assign_ids(&mut previous, Some(&running));
        let plan = netvm_config::plan(&running, &previous);
        let undone = self.change(&running, &previous, &plan, Kind::Change).await;
        match &undone {
            Ok(()) => {
                let message = format!("restored {}", waiting.source);
                self.engine.events().push(EventKind::WentBack, "", message);
                let (daemon, source) = (Arc::clone(self), waiting.source.clone());
                let record = move || {
                    daemon.history.record(&source, "not confirmed", &netvm_config::to_toml(&previous));
                };
                blocking(record).await;
            }
            Err(error) => tracing::error!("cannot restore {}: {error}", waiting.source),
        }
        undone
    }

    /// Records that a configuration was applied without a pending confirmation. A rejected text that is still in the
    /// configuration file stays rejected.
    pub(super) fn accept(&self, text: &str) {
        let in_file = std::fs::read_to_string(&self.options.config).unwrap_or_default();
        let rejected =
            self.history.unconfirmed().filter(|change| change.tried != text && change.tried == in_file);
        let rejected = rejected.map(|change| Unconfirmed { previous: text.to_owned(), ..change });
        self.restore_unconfirmed(rejected.as_ref());
    }

    pub(super) fn restore_unconfirmed(&self, change: Option<&Unconfirmed>) {
        if let Err(error) = self.history.set_unconfirmed(change) {
            tracing::warn!("cannot change the record of the unconfirmed change: {error}");
        }
    }
}

/// The configuration to start with: the file, or the previous configuration if the file has a change that was never
/// confirmed. Returns its name, its text and, in the second case, a warning.
pub(crate) fn first_text(
    options: &Options,
    unconfirmed: Option<&Unconfirmed>,
    text: String,
) -> (String, String, Option<String>) {
    let name = options.config.display().to_string();
    match unconfirmed.filter(|change| change.tried == text) {
        None => (name, text, None),
        Some(change) => {
            let warning = format!(
                "{name} has a change that was not confirmed: running the previous configuration. Correct the file and \
                apply it (netvm apply), or apply it as it is"
            );
            (format!("{name}, before the unconfirmed change"), change.previous.clone(), Some(warning))
        }
    }
}
