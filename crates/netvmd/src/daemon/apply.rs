//! Applies a configuration to the running host: live, and completely or not at all.
//!
//! 1. Parse and check the text; check that this machine has everything that it names. Nothing has changed so far.
//! 2. Add new groups and NFs beside the running ones, and start the NFs. Traffic is not affected.
//! 3. Once they have attached, change ports, chains and rules, and replace outdated NF processes, one replica after
//!    another. Create namespaces of virtual routers before their ports, and remove them after. Start VMs last, as they
//!    need their ports.
//!
//! If a step fails, apply the previous configuration again.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use netvm_api::{ApplyHow, ApplyReply, Diagnostic, EventKind, PlanReply};
use netvm_config::{ConfigError, Loaded, Plan};
use netvm_model::{Host, MAX_GROUPS, MAX_ROLES, NfStart};
use tokio::time::{Instant, timeout_at};

use super::saving::Saving;
use crate::daemon::Daemon;
use crate::runtime::blocking;
use crate::supervisor::{Prepared, START_TIMEOUT, Startup};
use crate::telemetry::{self, step, within};
use crate::vms::{PreparedVms, VmStartup};

mod error;

pub use error::ApplyError;

/// Limit for a VM's QEMU to start.
pub(crate) const VM_START_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(25);

/// The longest time to wait for a confirmation in seconds.
const LONGEST: u64 = 86_400;

/// Whether netvmd undoes an apply that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// No: no previous configuration exists, and failed NFs are restarted.
    First,
    /// Yes.
    Change,
}

impl Daemon {
    /// The changes that applying a configuration would make.
    ///
    /// # Errors
    /// [`ApplyError`], as far as checks without a change can find it.
    pub async fn plan(&self, name: &str, text: &str) -> Result<PlanReply, ApplyError> {
        let running = self.running().await?;
        let Loaded { mut host, warnings } =
            self.lookup.parse_beside(name, text, Arc::clone(&running)).await?;
        netvm_model::assign_ids(&mut host, Some(&running));
        self.supervisor.prepare(&host, false).await?;
        self.machines.prepare((&host, &running), false).await?;
        let plan = netvm_config::plan(&running, &host);
        Ok(PlanReply { plan, warnings: warnings.iter().map(Diagnostic::from).collect() })
    }

    /// Applies a configuration. `why`: for the history.
    ///
    /// # Errors
    /// [`ApplyError`]; the previous configuration is in force.
    pub async fn apply(
        self: &Arc<Self>,
        name: &str,
        text: &str,
        how: ApplyHow,
        why: &str,
    ) -> Result<ApplyReply, ApplyError> {
        let started = Instant::now();
        let Ok(_changing) = self.changing.try_lock() else { return Err(ApplyError::Busy) };
        if let Some(left) = self.confirmations.left() {
            return Err(ApplyError::Unconfirmed { left: left.as_secs() });
        }
        let confirm = match how.confirm {
            Some(seconds @ 1..=LONGEST) => Some(Duration::from_secs(seconds)),
            Some(_) => return Err(ApplyError::ConfirmLimit),
            None => None,
        };
        let running = self.running().await?;
        let loading = self.lookup.parse_beside(name, text, Arc::clone(&running));
        let Loaded { mut host, warnings } = step("read and look up", loading).await?;
        netvm_model::assign_ids(&mut host, Some(&running));
        let plan = netvm_config::plan(&running, &host);
        tracing::Span::current().record("netvm.changes", plan.changes.len());
        let (daemon, tried, now) = (Arc::clone(self), text.to_owned(), Arc::clone(&running));
        let prepared = blocking(move || -> Result<_, ApplyError> {
            let saving = how.save.then(|| Saving::prepare(&daemon.options.config, &tried)).transpose()?;
            let before = daemon.history.unconfirmed();
            if how.confirm.is_some() {
                daemon.expect_confirmation(&now, &tried)?;
            }
            Ok((saving, before))
        });
        let (saving, before) = prepared.await?;
        if let Err(error) = self.change(&running, &host, &plan, Kind::Change).await {
            if confirm.is_some() {
                let daemon = Arc::clone(self);
                blocking(move || daemon.restore_unconfirmed(before.as_ref())).await;
            }
            return Err(error);
        }
        let took = started.elapsed();
        let message = format!("{name} applied: {} changes in {} ms", plan.changes.len(), took.as_millis());
        self.engine.events().push(EventKind::Applied, "", message);
        let source =
            self.history.last().map_or_else(|| "the configuration before".to_owned(), |last| last.source);
        let (daemon, entry) = (Arc::clone(self), [name, why, text].map(str::to_owned));
        blocking(move || {
            let [name, why, text] = &entry;
            daemon.history.record(name, why, text);
        })
        .await;
        let saved = match confirm {
            Some(limit) => {
                self.await_confirmation(running, source, saving, limit);
                None
            }
            None => {
                let (daemon, text) = (Arc::clone(self), text.to_owned());
                let saved = blocking(move || {
                    let saved = saving.map(Saving::commit).transpose()?;
                    daemon.accept(&text);
                    Ok(saved)
                });
                saved.await.map_err(ApplyError::NotSaved)?
            }
        };
        Ok(ApplyReply {
            plan,
            warnings: warnings.iter().map(Diagnostic::from).collect(),
            took_ms: took.as_secs_f64() * 1000.0,
            saved,
            confirm_within_s: confirm.map(|limit| limit.as_secs()),
        })
    }

    /// Applies the configuration file again.
    ///
    /// # Errors
    /// As for [`Daemon::apply`].
    pub async fn reload(self: &Arc<Self>, path: &Path) -> Result<ApplyReply, ApplyError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let name = path.display().to_string();
        let work = self.apply(&name, &text, ApplyHow::default(), "reload");
        within(telemetry::change(&name, "reload"), work).await
    }

    /// Applies the first configuration to a new engine.
    ///
    /// # Errors
    /// As for [`Daemon::apply`].
    pub(crate) async fn apply_first(&self, host: &Host) -> Result<(), ApplyError> {
        let nothing = self.running().await?;
        self.change(&nothing, host, &Plan::default(), Kind::First).await
    }

    pub(super) async fn change(
        &self,
        running: &Host,
        host: &Host,
        plan: &Plan,
        kind: Kind,
    ) -> Result<(), ApplyError> {
        if plan.needs_restart() {
            let why =
                plan.effects().filter(|effect| matches!(effect, netvm_config::Effect::RestartNeeded { .. }));
            return Err(ApplyError::NeedsRestart(why.map(ToString::to_string).collect()));
        }
        let may_wait = kind == Kind::First;
        let prepared = self.supervisor.prepare(host, may_wait).await?;
        let machines = self.machines.prepare((host, running), may_wait).await?;
        let has_routers = !(running.routers.is_empty() && host.routers.is_empty());
        let _expedited = if has_routers { self.grace_periods.expedite() } else { None };
        if kind == Kind::First {
            for (_, error) in self.routers.make_possible(host).await {
                tracing::error!("{error}");
            }
            self.engine_apply_first(host).await?;
            self.routers.settle(host).await;
            self.supervisor.reconcile(prepared);
            self.machines.reconcile(machines);
            self.machines.stop_unconfigured();
            self.applied.notify_one();
            return Ok(());
        }
        let up = self.machines.up();
        if let Err(error) = self.change_in_steps(running, host, prepared, machines).await {
            let error = match step("restore", self.restore(running, &up)).await {
                Ok(()) => error,
                Err(undo) => ApplyError::NotUndone { error: Box::new(error), undo: Box::new(undo) },
            };
            self.engine.events().push(EventKind::NotApplied, "", format!("not applied: {error}"));
            return Err(error);
        }
        self.applied.notify_one();
        Ok(())
    }

    async fn change_in_steps(
        &self,
        running: &Host,
        host: &Host,
        prepared: Prepared,
        machines: PreparedVms,
    ) -> Result<(), ApplyError> {
        if let Some(staged) = staged(running, host) {
            step("start new NFs", self.start_beside(&staged)).await?;
        }
        // Routers first, because the engine opens ports on their interfaces.
        step("make routers", self.routers.make(host)).await?;
        step("change the engine", self.engine_apply(host)).await?;
        self.routers.settle(host).await;
        step("replace NFs", self.replace_nfs(host, prepared)).await?;
        step("start VMs", wait_vms_started(self.machines.reconcile(machines))).await
    }

    /// Starts the new NFs beside the running ones.
    async fn start_beside(&self, staged: &Host) -> Result<(), ApplyError> {
        let beside = self.supervisor.prepare(staged, false).await?;
        self.engine_apply(staged).await?;
        wait_all_attached(self.supervisor.reconcile_live(beside).await?).await
    }

    async fn replace_nfs(&self, host: &Host, prepared: Prepared) -> Result<(), ApplyError> {
        wait_all_attached(self.supervisor.reconcile_live(prepared).await?).await?;
        self.dismiss_replaced(host);
        self.renew_all().await?;
        wait_all_attached(self.supervisor.rebalance().await?).await
    }

    /// Dismisses external NFs of roles that netvmd now starts itself.
    fn dismiss_replaced(&self, host: &Host) {
        let is_managed =
            |role: &str| host.nf_named(role).is_some_and(|nf| matches!(nf.start, NfStart::Managed { .. }));
        let externals = self.attach.externals().into_iter();
        let replaced: Vec<_> = externals.filter(|(_, nf)| is_managed(&nf.role)).map(|(id, _)| id).collect();
        self.engine.send(move |engine| replaced.into_iter().for_each(|id| engine.dismiss(id)));
    }

    /// Replaces outdated processes until one fails.
    async fn renew_all(&self) -> Result<(), ApplyError> {
        loop {
            let renewals = self.supervisor.renew_next();
            if renewals.is_empty() {
                return Ok(());
            }
            let mut outcome = Ok(());
            for mut renewal in renewals {
                let came_up = wait_attached(&mut renewal.startup, Instant::now() + START_TIMEOUT).await;
                self.supervisor.settle(renewal, came_up.is_ok());
                outcome = outcome.and(came_up);
            }
            outcome?;
        }
    }

    async fn restore(&self, running: &Host, up: &BTreeSet<String>) -> Result<(), ApplyError> {
        self.routers.make(running).await?;
        self.engine_apply(running).await?;
        self.routers.settle(running).await;
        self.supervisor.reconcile_live(self.supervisor.prepare(running, false).await?).await?;
        // Processes that were not replaced are already right. Changes the others back, and continues after a failure.
        loop {
            let renewals = self.supervisor.renew_next();
            if renewals.is_empty() {
                break;
            }
            for mut renewal in renewals {
                // If this fails, the log has the reason, and the process is restarted.
                let _ = wait_attached(&mut renewal.startup, Instant::now() + START_TIMEOUT).await;
                self.supervisor.settle(renewal, true);
            }
        }
        self.supervisor.rebalance().await?;
        self.machines.reconcile(self.machines.prepare((running, running), false).await?);
        self.machines.keep_up_only(up);
        Ok(())
    }
}

/// The running configuration plus the new groups and NFs of `host`; `None` if there are none, or if both do not fit
/// together.
fn staged(running: &Host, host: &Host) -> Option<Host> {
    let mut staged = running.clone();
    let new_group = |id| running.group(id).is_none();
    staged.groups.extend(host.groups.iter().filter(|group| new_group(group.id)).cloned());
    for group in &mut staged.groups {
        // The group's ports may not exist yet. It gets no traffic before they do.
        if new_group(group.id) {
            group.may_send_to = Some(Vec::new());
        }
    }
    let new_nf =
        |nf: &&netvm_model::NfConfig| running.nf(nf.id).is_none() && running.nf_named(&nf.role).is_none();
    staged.nfs.extend(host.nfs.iter().filter(new_nf).cloned());
    let is_news = staged.nfs.len() > running.nfs.len();
    let fits = staged.groups.len() <= MAX_GROUPS && staged.nfs.len() <= MAX_ROLES;
    let grouped = staged.nfs.iter().all(|nf| staged.group(nf.group).is_some());
    (is_news && fits && grouped).then_some(staged)
}

/// Waits until each process has attached.
async fn wait_all_attached(startups: Vec<Startup>) -> Result<(), ApplyError> {
    let deadline = Instant::now() + START_TIMEOUT;
    for mut one in startups {
        let name = format!("start nf {}", one.role());
        step(&name, wait_attached(&mut one, deadline)).await?;
    }
    Ok(())
}

/// Waits until each VM runs.
async fn wait_vms_started(startups: Vec<VmStartup>) -> Result<(), ApplyError> {
    let deadline = Instant::now() + VM_START_TIMEOUT;
    for mut one in startups {
        let reason = match timeout_at(deadline, one.started()).await {
            Ok(Ok(())) => continue,
            Ok(Err(reason)) => reason,
            Err(_) => format!("timeout after {} s", VM_START_TIMEOUT.as_secs()),
        };
        return Err(ApplyError::VmFailed { vm: one.vm(), reason });
    }
    Ok(())
}

async fn wait_attached(startup: &mut Startup, deadline: Instant) -> Result<(), ApplyError> {
    let reason = match timeout_at(deadline, startup.outcome()).await {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(reason)) => reason,
        Err(_) => format!("timeout after {} s", START_TIMEOUT.as_secs()),
    };
    Err(ApplyError::NfFailed { role: startup.role(), reason })
}
