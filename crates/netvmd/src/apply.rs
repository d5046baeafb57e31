//! From a configuration to a running host: live, and as a whole or not at all.
//!
//! 1. The text is read and checked; every program, user and core that it names is looked up. Nothing has changed so far.
//! 2. Groups and NFs that are new are added beside what runs, and the NFs started. Traffic goes as before.
//! 3. When they have attached, ports, chains and rules change, and NFs that differ are renewed, one replica after
//!    another. Namespaces of virtual routers come before their ports, and go after them. VMs come last, as they need their
//!    ports.
//!
//! Whatever fails, the host of before is applied again: it differs from what runs only by what is new.

use std::collections::BTreeSet;
use std::path::Path;

use netvm_api::{ApplyReply, Diagnostic, PlanReply};
use netvm_config::model::{Host, MAX_GROUPS, MAX_ROLES, NfStart};
use netvm_config::{ConfigError, Loaded, Plan};
use tokio::time::{Instant, timeout_at};

use crate::daemon::Daemon;
use crate::engine_thread::EngineGone;
use crate::routers::RouterError;
use crate::supervisor::{COMING_UP, News, RecipeError};
use crate::vms::{PreparedVms, VmNews, VmRecipeError};

/// How long a VM's QEMU may take to start before it is taken for one that does not.
pub(crate) const VM_COMING_UP: std::time::Duration = std::time::Duration::from_secs(25);

/// Why a configuration was not applied. What ran before runs on.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// It cannot be read, or is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An NF in it cannot be started.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    /// A VM in it cannot be started.
    #[error(transparent)]
    Vm(#[from] VmRecipeError),
    /// A virtual router could not be made.
    #[error(transparent)]
    Router(#[from] RouterError),
    /// Something that cannot be changed live.
    #[error("{} (stop netvmd and start it with the new file)", .0.join("; "))]
    NeedsRestart(Vec<String>),
    /// The engine could not do it.
    #[error(transparent)]
    Engine(#[from] netvm_engine::ApplyError),
    /// An NF did not come up.
    #[error("nf {role} did not come up: {reason}; the configuration of before is in force again")]
    NfFailed {
        /// Its role.
        role: String,
        /// What happened to it.
        reason: String,
    },
    /// A VM did not come up.
    #[error("vm {vm} did not come up: {reason}; the configuration of before is in force again")]
    VmFailed {
        /// Its name.
        vm: String,
        /// What happened to it.
        reason: String,
    },
    /// It failed, and so did the way back.
    #[error("{error}; going back failed, too: {undo}; restart netvmd to be sure of what runs")]
    NotUndone {
        /// Why it failed.
        error: Box<ApplyError>,
        /// Why the configuration of before is not in force again.
        undo: Box<ApplyError>,
    },
    /// Another apply is being made.
    #[error("another configuration is being applied: try again when that is done")]
    Busy,
    /// No engine.
    #[error(transparent)]
    Gone(#[from] EngineGone),
}

/// Whether an apply that fails halfway is undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// There is nothing to go back to: NFs that do not come up are tried again.
    First,
    /// It is.
    Change,
}

impl Daemon {
    /// What applying a configuration would do.
    ///
    /// # Errors
    /// [`ApplyError`] as far as can be told beforehand.
    pub async fn plan(&self, name: &str, text: &str) -> Result<PlanReply, ApplyError> {
        let Loaded { mut host, warnings } = netvm_config::parse(name, text)?;
        let running = self.running().await?;
        netvm_config::assign_ids(&mut host, Some(&running));
        self.supervisor.prepare(&host)?;
        self.machines.prepare(&host)?;
        let plan = netvm_config::plan(&running, &host);
        Ok(PlanReply { plan, warnings: warnings.iter().map(Diagnostic::from).collect() })
    }

    /// Applies a configuration.
    ///
    /// # Errors
    /// [`ApplyError`]; everything is then as it was.
    pub async fn apply(&self, name: &str, text: &str) -> Result<ApplyReply, ApplyError> {
        let started = Instant::now();
        let Loaded { mut host, warnings } = netvm_config::parse(name, text)?;
        let Ok(_changing) = self.changing.try_lock() else { return Err(ApplyError::Busy) };
        let running = self.running().await?;
        netvm_config::assign_ids(&mut host, Some(&running));
        let plan = netvm_config::plan(&running, &host);
        self.change(&running, &host, &plan, Kind::Change).await?;
        tracing::info!(
            "{name} applied: {} changes in {} ms",
            plan.changes.len(),
            started.elapsed().as_millis()
        );
        Ok(ApplyReply {
            plan,
            warnings: warnings.iter().map(Diagnostic::from).collect(),
            took_ms: started.elapsed().as_secs_f64() * 1000.0,
        })
    }

    /// Applies the file that netvmd was started with again.
    ///
    /// # Errors
    /// As for [`Daemon::apply`].
    pub async fn reload(&self, path: &Path) -> Result<ApplyReply, ApplyError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        self.apply(&path.display().to_string(), &text).await
    }

    /// Makes an engine that has just been started be what the first configuration says.
    ///
    /// # Errors
    /// As for [`Daemon::apply`].
    pub(crate) async fn apply_first(&self, host: &Host) -> Result<(), ApplyError> {
        let nothing = self.running().await?;
        self.change(&nothing, host, &Plan::default(), Kind::First).await
    }

    async fn change(&self, running: &Host, host: &Host, plan: &Plan, kind: Kind) -> Result<(), ApplyError> {
        if plan.needs_restart() {
            let why =
                plan.effects().filter(|effect| matches!(effect, netvm_config::Effect::RestartNeeded { .. }));
            return Err(ApplyError::NeedsRestart(why.map(ToString::to_string).collect()));
        }
        let prepared = self.supervisor.prepare(host)?;
        let machines = self.machines.prepare(host)?;
        if kind == Kind::First {
            self.routers.make(host).await?;
            self.engine_apply(host).await?;
            self.routers.settle(host).await;
            self.supervisor.reconcile(prepared);
            self.machines.reconcile(machines);
            self.machines.dismiss_strangers();
            return Ok(());
        }
        let up = self.machines.up();
        if let Err(error) = self.change_in_steps(running, host, prepared, machines).await {
            let error = match self.go_back(running, &up).await {
                Ok(()) => error,
                Err(undo) => ApplyError::NotUndone { error: Box::new(error), undo: Box::new(undo) },
            };
            tracing::warn!("not applied: {error}");
            return Err(error);
        }
        Ok(())
    }

    async fn change_in_steps(
        &self,
        running: &Host,
        host: &Host,
        prepared: crate::supervisor::Prepared,
        machines: PreparedVms,
    ) -> Result<(), ApplyError> {
        if let Some(staged) = staged(running, host) {
            let beside = self.supervisor.prepare(&staged)?;
            self.engine_apply(&staged).await?;
            come_up(self.supervisor.reconcile_live(beside).await?).await?;
        }
        // Their interfaces are ports of the engine.
        self.routers.make(host).await?;
        self.engine_apply(host).await?;
        self.routers.settle(host).await;
        come_up(self.supervisor.reconcile_live(prepared).await?).await?;
        self.dismiss_replaced(host);
        self.renew_all().await?;
        come_up(self.supervisor.rebalance().await?).await?;
        start_up(self.machines.reconcile(machines)).await
    }

    /// Asks NFs to leave that attached by themselves as roles that netvmd now starts.
    fn dismiss_replaced(&self, host: &Host) {
        let is_managed =
            |role: &str| host.nf_named(role).is_some_and(|nf| matches!(nf.start, NfStart::Managed { .. }));
        let externals = self.attach.externals().into_iter();
        let replaced: Vec<_> = externals.filter(|(_, nf)| is_managed(&nf.role)).map(|(id, _)| id).collect();
        self.engine.tell(move |engine| replaced.into_iter().for_each(|id| engine.dismiss(id)));
    }

    /// Renews what is not what it should be, until one fails.
    async fn renew_all(&self) -> Result<(), ApplyError> {
        loop {
            let renewals = self.supervisor.renew_next();
            if renewals.is_empty() {
                return Ok(());
            }
            let mut outcome = Ok(());
            for mut renewal in renewals {
                let came_up = comes_up(&mut renewal.news, Instant::now() + COMING_UP).await;
                self.supervisor.settle(renewal, came_up.is_ok());
                outcome = outcome.and(came_up);
            }
            outcome?;
        }
    }

    async fn go_back(&self, running: &Host, up: &BTreeSet<String>) -> Result<(), ApplyError> {
        self.routers.make(running).await?;
        self.engine_apply(running).await?;
        self.routers.settle(running).await;
        self.supervisor.reconcile_live(self.supervisor.prepare(running)?).await?;
        // Those that were not renewed yet are what they should be already; the others change back, come what may.
        loop {
            let renewals = self.supervisor.renew_next();
            if renewals.is_empty() {
                break;
            }
            for mut renewal in renewals {
                // Why one does not come up is in the log; it is tried again.
                let _ = comes_up(&mut renewal.news, Instant::now() + COMING_UP).await;
                self.supervisor.settle(renewal, true);
            }
        }
        self.supervisor.rebalance().await?;
        self.machines.reconcile(self.machines.prepare(running)?);
        self.machines.keep_up_only(up);
        Ok(())
    }
}

/// What runs, with the groups and NFs of `host` that are new; `None` when there are none, or not both fit at one time.
fn staged(running: &Host, host: &Host) -> Option<Host> {
    let mut staged = running.clone();
    let new_group = |id| running.group(id).is_none();
    staged.groups.extend(host.groups.iter().filter(|group| new_group(group.id)).cloned());
    for group in &mut staged.groups {
        // Its ports may not be there yet, and it gets no traffic before they are.
        if new_group(group.id) {
            group.may_send_to = Some(Vec::new());
        }
    }
    let new_nf = |nf: &&netvm_config::model::NfConfig| {
        running.nf(nf.id).is_none() && running.nf_named(&nf.role).is_none()
    };
    staged.nfs.extend(host.nfs.iter().filter(new_nf).cloned());
    let is_news = staged.nfs.len() > running.nfs.len();
    let fits = staged.groups.len() <= MAX_GROUPS && staged.nfs.len() <= MAX_ROLES;
    let grouped = staged.nfs.iter().all(|nf| staged.group(nf.group).is_some());
    (is_news && fits && grouped).then_some(staged)
}

/// Waits until each process has attached.
async fn come_up(news: Vec<News>) -> Result<(), ApplyError> {
    let deadline = Instant::now() + COMING_UP;
    for mut one in news {
        comes_up(&mut one, deadline).await?;
    }
    Ok(())
}

/// Waits until each VM runs.
async fn start_up(news: Vec<VmNews>) -> Result<(), ApplyError> {
    let deadline = Instant::now() + VM_COMING_UP;
    for mut one in news {
        let reason = match timeout_at(deadline, one.started()).await {
            Ok(Ok(())) => continue,
            Ok(Err(reason)) => reason,
            Err(_) => format!("not within {} s", VM_COMING_UP.as_secs()),
        };
        return Err(ApplyError::VmFailed { vm: one.vm(), reason });
    }
    Ok(())
}

async fn comes_up(news: &mut News, deadline: Instant) -> Result<(), ApplyError> {
    let reason = match timeout_at(deadline, news.outcome()).await {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(reason)) => reason,
        Err(_) => format!("not within {} s", COMING_UP.as_secs()),
    };
    Err(ApplyError::NfFailed { role: news.role(), reason })
}
