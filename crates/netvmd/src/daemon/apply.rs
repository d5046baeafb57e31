// SPDX-License-Identifier: Apache-2.0
//! Applies a configuration to the running host: live, and completely or not at all.
//!
//! 1. Parse and check the text; check that this machine has everything that it names. Nothing has changed so far.
//! 2. Add new groups and NFs beside the running ones, and start the NFs. Traffic is not affected.
//! 3. Once they have attached, change ports, chains and rules, and replace outdated NF processes, one replica after
//!    another. Create namespaces of virtual routers before their ports, and remove them after. Start VMs last, as they
//!    need their ports.
//!
//! If a step fails, apply the previous configuration again; also if nobody confirms the change in time, or a client
//! reverts it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use netvm_api::{ApplyHow, ApplyReply, Diagnostic, EventKind, PlanReply};
use netvm_attach::messages::Message;
use netvm_config::{ConfigError, Loaded, Plan};
use netvm_model::{Host, MAX_GROUPS, MAX_ROLES, NfStart};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep, timeout_at};

use super::Daemon;
use super::configuration::{ApplyError, Beside, Change, First, LivePort, in_one_line};
use crate::runtime::blocking;
use crate::supervisor::{Prepared, START_TIMEOUT, Startup};
use crate::telemetry::{self, step, within};
use crate::vms::{PreparedVms, VmStartup};

/// Limit for a VM's QEMU to start.
pub(crate) const VM_START_TIMEOUT: Duration = Duration::from_secs(25);

impl Daemon {
    /// The changes that applying a configuration would make.
    ///
    /// # Errors
    /// [`ApplyError`], as far as checks without a change can find it.
    pub async fn plan(&self, name: &str, text: &str) -> Result<PlanReply, ApplyError> {
        let running = self.running().await?;
        let live = self.configuration.live().all();
        let beside = Beside { running: &running, live, keeps: true, is_file: true };
        let (loaded, live) = self.configuration.parse(name, text, beside).await?;
        let Loaded { mut host, warnings } = loaded;
        netvm_model::assign_ids(&mut host, Some(&running));
        self.check_cores(&host).await?;
        self.supervisor().prepare(&host, false).await?;
        self.programs().check(&host).await?;
        self.machines().prepare(&host, &running, false).await?;
        let plan = netvm_config::plan(&running, &host);
        let live = live.ports.iter().map(LivePort::title).collect();
        Ok(PlanReply { plan, warnings: warnings.iter().map(Diagnostic::from).collect(), live })
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
        let Some(_changing) = self.try_change() else { return Err(ApplyError::Busy) };
        let confirm = self.configuration.limit(how)?;
        let running = self.running().await?;
        let live = self.configuration.live().all();
        let beside = Beside { running: &running, live, keeps: true, is_file: true };
        let loading = self.configuration.parse(name, text, beside);
        let (Loaded { mut host, warnings }, live) = step("read and look up", loading).await?;
        netvm_model::assign_ids(&mut host, Some(&running));
        let plan = netvm_config::plan(&running, &host);
        tracing::Span::current().record("netvm.changes", plan.changes.len());
        let change = self.configuration.begin(&running, text, how.save, confirm).await?;
        if let Err(error) = self.change(&running, &host, &plan).await {
            self.configuration.abandon(change).await;
            return Err(error);
        }
        self.configuration.live().set_problems(live);
        let took = started.elapsed();
        let message = format!("{name} applied: {} changes in {} ms", plan.changes.len(), took.as_millis());
        self.engine.events().push(EventKind::Applied, "", message);
        let saved = self.configuration.finish(change, name, why, text).await.map_err(ApplyError::NotSaved)?;
        if let Some(limit) = confirm {
            self.revert_after(limit);
        }
        Ok(ApplyReply {
            plan,
            warnings: warnings.iter().map(Diagnostic::from).collect(),
            took_ms: took.as_secs_f64() * 1000.0,
            saved,
            confirm_within_s: confirm.map(|limit| limit.as_secs()),
        })
    }

    /// Applies the configuration file again, and logs the outcome.
    pub(crate) async fn reload(self: &Arc<Self>) {
        let path = &self.configuration.options().config;
        let name = path.display().to_string();
        let applied = match std::fs::read_to_string(path) {
            Ok(text) => {
                let work = self.apply(&name, &text, ApplyHow::default(), "reload");
                within(telemetry::change(&name, "reload"), work).await
            }
            Err(source) => Err(ConfigError::Read { path: path.clone(), source }.into()),
        };
        match applied {
            Ok(done) => tracing::info!("reloaded {name}: {} changes", done.plan.changes.len()),
            Err(ApplyError::Config(error)) => {
                error.findings().iter().for_each(|finding| tracing::error!("{}", in_one_line(finding)));
                tracing::error!("not applied: {error}");
            }
            Err(error) => tracing::error!("{name}: {error}"),
        }
    }

    /// Undoes the pending change after `limit` unless it is confirmed.
    fn revert_after(self: &Arc<Self>, limit: Duration) {
        let daemon = Arc::clone(self);
        tokio::spawn(async move {
            sleep(limit).await;
            let _changing = daemon.changing.lock().await;
            if let Some(change) = daemon.configuration.take_waiting(Duration::ZERO) {
                tracing::warn!(
                    "the change was not confirmed within {} s: restoring the previous configuration",
                    limit.as_secs()
                );
                // If this fails, the log has the reason.
                let _ = daemon.restore_previous(change).await;
            }
        });
    }

    /// Undoes the pending change now. `None` if no change waits.
    ///
    /// # Errors
    /// [`ApplyError`]; the change stays in force.
    pub(crate) async fn revert(&self) -> Option<Result<(), ApplyError>> {
        let _changing = self.changing.lock().await;
        let change = self.configuration.take_waiting(Duration::MAX)?;
        Some(self.restore_previous(change).await)
    }

    async fn restore_previous(&self, change: Change) -> Result<(), ApplyError> {
        let Change { previous: toml, source, .. } = change;
        let running = self.running().await?;
        let live = self.configuration.live().all();
        let beside = Beside { running: &running, live, keeps: false, is_file: false };
        let (loaded, live) = self.configuration.parse(&source, &toml, beside).await?;
        let mut previous = loaded.host;
        netvm_model::assign_ids(&mut previous, Some(&running));
        let plan = netvm_config::plan(&running, &previous);
        let undone = self.change(&running, &previous, &plan).await;
        match &undone {
            Ok(()) => {
                self.engine.events().push(EventKind::WentBack, "", format!("restored {source}"));
                let configuration = Arc::clone(&self.configuration);
                blocking(move || {
                    configuration.live().set_problems(live);
                    configuration.history().record(&source, "not confirmed", &toml);
                })
                .await;
            }
            Err(error) => tracing::error!("cannot restore {source}: {error}"),
        }
        undone
    }

    /// Applies the first configuration to a new engine.
    ///
    /// # Errors
    /// As for [`Daemon::apply`]; netvmd's end then removes also what the next one would take over.
    pub(crate) async fn apply_first(&self, first: &First) -> Result<(), ApplyError> {
        let applied = self.start_all(&first.host).await;
        match &applied {
            Ok(()) => self.configuration.history().record(&first.name, "start", &first.text),
            Err(_) => self.end(true),
        }
        applied
    }

    /// Starts what can be started; failed NFs are restarted.
    async fn start_all(&self, host: &Host) -> Result<(), ApplyError> {
        let nothing = self.running().await?;
        let prepared = self.supervisor().prepare(host, true).await?;
        let machines = self.machines().prepare(host, &nothing, true).await?;
        let _expedited = self.routers().expedite(&host.routers);
        for (_, error) in self.routers().make_possible(host).await {
            tracing::error!("{error}");
        }
        if let Err(error) = self.programs().make(host).await {
            tracing::error!("{error}");
        }
        self.rules.apply_first(host).await?;
        self.routers().settle(host).await;
        self.programs().settle(host).await;
        self.supervisor().reconcile(prepared);
        self.machines().reconcile(machines);
        self.machines().stop_unconfigured();
        self.note_applied();
        Ok(())
    }

    /// Makes a change, or undoes it if it fails.
    pub(super) async fn change(&self, running: &Host, host: &Host, plan: &Plan) -> Result<(), ApplyError> {
        if plan.needs_restart() {
            let why =
                plan.effects().filter(|effect| matches!(effect, netvm_config::Effect::RestartNeeded { .. }));
            return Err(ApplyError::NeedsRestart(why.map(ToString::to_string).collect()));
        }
        self.check_cores(host).await?;
        let prepared = self.supervisor().prepare(host, false).await?;
        self.programs().check(host).await?;
        let machines = self.machines().prepare(host, running, false).await?;
        let _expedited = self.routers().expedite(&host.routers);
        let up = self.machines().up();
        if let Err(error) = self.change_in_steps(running, host, prepared, machines).await {
            let error = match step("restore", self.restore(running, &up)).await {
                Ok(()) => error,
                Err(undo) => ApplyError::NotUndone { error: Box::new(error), undo: Box::new(undo) },
            };
            self.engine.events().push(EventKind::NotApplied, "", format!("not applied: {error}"));
            return Err(error);
        }
        self.note_applied();
        Ok(())
    }

    /// Makes a change of ports and rules, which concerns neither NFs, VMs nor routers, or undoes it if it fails.
    pub(super) async fn change_ports(&self, running: &Host, host: &Host) -> Result<(), ApplyError> {
        let _expedited = self.routers().expedite(&host.routers);
        if let Err(error) = self.rules.apply_ports(host).await {
            let error = match self.rules.apply_ports(running).await {
                Ok(()) => error,
                Err(undo) => ApplyError::NotUndone { error: Box::new(error), undo: Box::new(undo) },
            };
            self.engine.events().push(EventKind::NotApplied, "", format!("not applied: {error}"));
            return Err(error);
        }
        self.routers().settle(host).await;
        self.note_applied();
        Ok(())
    }

    /// A configuration has come into force.
    fn note_applied(&self) {
        self.applied.notify_one();
        self.engine.messages().tell_all(&Message::Configured);
    }

    /// Refuses cores that the engine's workers cannot follow while it runs.
    async fn check_cores(&self, host: &Host) -> Result<(), ApplyError> {
        let config = host.engine.clone();
        let checked = self.engine.call(move |engine| engine.check_cores(&config)).await?;
        Ok(checked.map_err(netvm_engine::ApplyError::from)?)
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
        step("make routers", self.routers().make(host)).await?;
        step("make namespaces", self.programs().make(host)).await?;
        step("change the engine", self.rules.apply(host)).await?;
        self.routers().settle(host).await;
        self.programs().settle(host).await;
        step("replace NFs", self.replace_nfs(host, prepared)).await?;
        step("start VMs", wait_vms_started(self.machines().reconcile(machines))).await
    }

    /// Starts the new NFs beside the running ones.
    async fn start_beside(&self, staged: &Host) -> Result<(), ApplyError> {
        let beside = self.supervisor().prepare(staged, false).await?;
        self.rules.apply(staged).await?;
        wait_all_attached(self.supervisor().reconcile_live(beside).await?).await
    }

    async fn replace_nfs(&self, host: &Host, prepared: Prepared) -> Result<(), ApplyError> {
        wait_all_attached(self.supervisor().reconcile_live(prepared).await?).await?;
        self.dismiss_replaced(host);
        self.renew_all(false).await?;
        wait_all_attached(self.supervisor().rebalance().await?).await
    }

    /// Dismisses external NFs of roles that netvmd now starts itself.
    fn dismiss_replaced(&self, host: &Host) {
        let is_managed =
            |role: &str| host.nf_named(role).is_some_and(|nf| matches!(nf.start, NfStart::Managed { .. }));
        let externals = self.services.attach.externals().into_iter();
        let replaced: Vec<_> = externals.filter(|(_, nf)| is_managed(&nf.role)).map(|(id, _)| id).collect();
        self.engine.send(move |engine| replaced.into_iter().for_each(|id| engine.dismiss(id)));
    }

    /// Replaces outdated processes until one fails, or, to restore the previous configuration, all.
    async fn renew_all(&self, restores: bool) -> Result<(), ApplyError> {
        loop {
            let renewals = self.supervisor().renew_next();
            if renewals.is_empty() {
                return Ok(());
            }
            let mut outcome = Ok(());
            for mut renewal in renewals {
                let came_up = wait_attached(&mut renewal.startup, Instant::now() + START_TIMEOUT).await;
                // A restored process that fails is restarted, and the log has the reason.
                self.supervisor().settle(renewal, restores || came_up.is_ok());
                outcome = outcome.and(came_up);
            }
            if !restores {
                outcome?;
            }
        }
    }

    async fn restore(&self, running: &Host, up: &BTreeSet<String>) -> Result<(), ApplyError> {
        self.routers().make(running).await?;
        self.programs().make(running).await?;
        self.rules.apply(running).await?;
        self.routers().settle(running).await;
        self.programs().settle(running).await;
        self.supervisor().reconcile_live(self.supervisor().prepare(running, false).await?).await?;
        // Processes that were not replaced are already right.
        self.renew_all(true).await?;
        self.supervisor().rebalance().await?;
        self.machines().reconcile(self.machines().prepare(running, running, false).await?);
        self.machines().keep_up_only(up);
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
    // Programs with two ports start once these are open.
    let uses_netlib = |nf: &&netvm_model::NfConfig| nf.pair().is_none();
    staged.nfs.extend(host.nfs.iter().filter(new_nf).filter(uses_netlib).cloned());
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
        let started = timeout_at(deadline, one.started()).await;
        in_time(started, VM_START_TIMEOUT).map_err(|reason| ApplyError::VmFailed { vm: one.vm(), reason })?;
    }
    Ok(())
}

async fn wait_attached(startup: &mut Startup, deadline: Instant) -> Result<(), ApplyError> {
    let attached = timeout_at(deadline, startup.outcome()).await;
    in_time(attached, START_TIMEOUT).map_err(|reason| ApplyError::NfFailed { role: startup.role(), reason })
}

/// The outcome of a start, or that it took longer than `limit`.
fn in_time(outcome: Result<Result<(), String>, Elapsed>, limit: Duration) -> Result<(), String> {
    outcome.unwrap_or_else(|_| Err(format!("timeout after {} s", limit.as_secs())))
}
