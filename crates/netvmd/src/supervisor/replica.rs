//! One process that should run: started, heard, watched, and started again.
//!
//! ```text
//!          ┌────────── back-off ◀─────────┐
//!          ▼                              │ ended, or never attached
//!  spawn ─▶ starting ── Ready ─▶ attached ┤
//!                                         │ told to stop: dismissed, has time to send on what it holds
//!                                         ▼
//!                                      stopped
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_attach::Hello;
use netvm_config::model::NfStart;
use netvm_engine::{Engine, InstanceId, InstanceState};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::Identity;
use super::backoff::Backoff;
use super::process::Process;
use super::sandbox::Confinement;
use super::spawn::Recipe;
use crate::engine_thread::EngineHandle;
use crate::session::{Policy, Session};

/// How long an NF may take to end once dismissed: the engine's own grace, and some.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(4);

/// Where a process is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Started, or about to be; not attached yet.
    Starting,
    /// Attached and ready.
    Attached(InstanceId),
    /// Ended; started again after a pause.
    Backoff,
    /// To end for good.
    Stopping,
    /// Ended for good.
    Stopped,
}

/// What is known of a replica.
#[derive(Clone, Debug)]
pub struct Status {
    /// Its role.
    pub role: String,
    /// Which replica of the role, from 0.
    pub slot: u16,
    /// Its process, while there is one.
    pub pid: Option<u32>,
    /// Moves each time that it is told to start anew.
    generation: u64,
    /// Where it is in its life.
    pub phase: Phase,
    /// How often it was started again.
    pub restarts: u64,
    /// How often it ended, or could not start, without having been told to.
    pub failures: u64,
    /// Whether it has ended, or could not start, since it was last told to start anew.
    has_failed: bool,
    /// How it ended last.
    pub last_exit: Option<String>,
    /// Since when it is attached.
    pub attached_at: Option<Instant>,
}

/// A process that has just been told to start, or to start anew.
#[derive(Debug)]
pub struct News {
    status: watch::Receiver<Status>,
    generation: u64,
}

impl News {
    /// Its role.
    #[must_use]
    pub fn role(&self) -> String {
        self.status.borrow().role.clone()
    }

    /// Returns when it has attached.
    ///
    /// # Errors
    /// Its first failure, in words.
    pub async fn outcome(&mut self) -> Result<(), String> {
        let generation = self.generation;
        let decided = |status: &Status| {
            let attached = matches!(status.phase, Phase::Attached(_));
            status.generation > generation
                || status.generation == generation && (attached || status.has_failed)
        };
        match self.status.wait_for(decided).await {
            Ok(status) if status.generation == generation && status.has_failed => {
                Err(status.last_exit.clone().unwrap_or_default())
            }
            // Attached; or told otherwise meanwhile, which is somebody else's to wait for.
            _ => Ok(()),
        }
    }
}

/// What a replica is to be.
#[derive(Clone, Debug)]
pub(super) struct DesiredState {
    /// What to start; `None`: nothing any more.
    pub(super) recipe: Option<Arc<Recipe>>,
    /// Moves when the process that runs is to end and be started anew.
    pub(super) generation: u64,
}

/// A replica and the task that cares for it.
#[derive(Debug)]
pub(super) struct Replica {
    /// What it was last told to be.
    pub(super) identity: Identity,
    pub(super) desired: watch::Sender<DesiredState>,
    pub(super) status: watch::Receiver<Status>,
    pub(super) task: JoinHandle<()>,
}

impl Replica {
    pub(super) fn start(
        engine: EngineHandle,
        confinement: Arc<Confinement>,
        identity: Identity,
        recipe: Arc<Recipe>,
        slot: u16,
        restarts: u64,
    ) -> Self {
        let (status, status_view) = watch::channel(Status {
            role: recipe.role.clone(),
            slot,
            pid: None,
            generation: 0,
            phase: Phase::Starting,
            restarts,
            failures: 0,
            has_failed: false,
            last_exit: None,
            attached_at: None,
        });
        let (desired, desired_states) = watch::channel(DesiredState { recipe: Some(recipe), generation: 0 });
        let controller =
            Controller { engine, confinement, desired_states, status, backoff: Backoff::default() };
        Self { identity, desired, status: status_view, task: tokio::spawn(controller.keep()) }
    }

    /// Ends the process and lets nothing follow.
    pub(super) fn stop(&self) {
        self.desired.send_modify(|desired| {
            desired.recipe = None;
            desired.generation += 1;
        });
    }

    /// Ends the process and starts another at once.
    pub(super) fn restart(&self) -> News {
        self.desired.send_modify(|desired| desired.generation += 1);
        self.news()
    }

    /// As [`Replica::restart`], by another recipe.
    pub(super) fn renew(&mut self, identity: &Identity, recipe: &Arc<Recipe>) -> News {
        self.identity = identity.clone();
        self.desired.send_modify(|desired| {
            desired.recipe = Some(Arc::clone(recipe));
            desired.generation += 1;
        });
        self.news()
    }

    /// How its start goes.
    pub(super) fn news(&self) -> News {
        News { status: self.status.clone(), generation: self.desired.borrow().generation }
    }
}

/// How one run of a process ended.
enum End {
    /// It was told to.
    Wished,
    /// By itself; or it never came up.
    Failed(String),
}

struct Controller {
    engine: EngineHandle,
    confinement: Arc<Confinement>,
    desired_states: watch::Receiver<DesiredState>,
    status: watch::Sender<Status>,
    backoff: Backoff,
}

impl Controller {
    async fn keep(mut self) {
        loop {
            let DesiredState { recipe: Some(recipe), generation } =
                self.desired_states.borrow_and_update().clone()
            else {
                break;
            };
            self.status.send_modify(|status| {
                status.phase = Phase::Starting;
                status.has_failed &= status.generation == generation;
                status.generation = generation;
            });
            let started = Instant::now();
            let end = self.run(&recipe).await;
            self.status.send_modify(|status| {
                status.pid = None;
                status.attached_at = None;
            });
            if let End::Failed(how) = end {
                self.pause(&recipe, how, started.elapsed()).await;
            }
            self.status.send_modify(|status| status.restarts += 1);
        }
        self.status.send_modify(|status| status.phase = Phase::Stopped);
    }

    async fn pause(&mut self, recipe: &Recipe, how: String, ran: Duration) {
        let pause = self.backoff.after(ran);
        let slot = self.status.borrow().slot;
        tracing::warn!("nf {}/{slot}: {how}; starting it again in {} ms", recipe.role, pause.as_millis());
        self.status.send_modify(|status| {
            status.phase = Phase::Backoff;
            status.failures += 1;
            status.has_failed = true;
            status.last_exit = Some(how);
        });
        tokio::select! {
            () = sleep(pause) => {}
            // Whatever is wished now, waiting is not it.
            _ = self.desired_states.changed() => {}
        }
    }

    async fn run(&mut self, recipe: &Arc<Recipe>) -> End {
        let started = match recipe.spawn(&self.confinement) {
            Ok(started) => started,
            Err(error) => return End::Failed(error.to_string()),
        };
        let slot = self.status.borrow().slot;
        let mut process = Process::new(started.child, &format!("nf {}/{slot}", recipe.role));
        self.status.send_modify(|status| status.pid = process.child.id());
        tracing::debug!(
            "nf {}/{slot}: started as process {}",
            recipe.role,
            process.child.id().unwrap_or_default()
        );
        let session = tokio::select! {
            session = Session::establish(&self.engine, started.socket, policy(recipe)) => session,
            _ = self.desired_states.changed() => {
                process.kill().await;
                return End::Wished;
            }
        };
        let session = match session {
            Ok(session) => session,
            Err(error) => {
                // One that has ended by itself says more by how.
                let ended = timeout(Duration::from_millis(50), process.child.wait()).await;
                let how = match ended {
                    Ok(Ok(status)) => {
                        format!("ended before it was ready: {}", process.obituary(status).await)
                    }
                    _ => error.to_string(),
                };
                process.kill().await;
                return End::Failed(how);
            }
        };
        self.status.send_modify(|status| {
            status.phase = Phase::Attached(session.id());
            status.attached_at = Some(Instant::now());
        });
        tracing::info!(
            "nf {}/{slot}: {} attached as instance {} (process {}, {} threads)",
            recipe.role,
            session.name(),
            session.id(),
            process.child.id().unwrap_or_default(),
            session.threads()
        );
        self.watch(&session, process).await
    }

    async fn watch(&mut self, session: &Session, mut process: Process) -> End {
        tokio::select! {
            () = session.closed() => {
                // A process that is being killed has closed it, too: give it the time to be gone.
                match timeout(Duration::from_millis(500), process.child.wait()).await {
                    // One that the engine dismissed goes before word comes what is to follow.
                    Ok(Ok(status)) if status.success() && self.is_told_soon().await => End::Wished,
                    Ok(Ok(status)) => End::Failed(process.obituary(status).await),
                    _ => {
                        process.kill().await;
                        End::Failed("closed its attach socket and lived on: killed".to_owned())
                    }
                }
            }
            _ = self.desired_states.changed() => {
                self.status.send_modify(|status| status.phase = Phase::Stopping);
                session.dismiss();
                if timeout(SHUTDOWN_TIMEOUT, process.child.wait()).await.is_err() {
                    let status = self.status.borrow().clone();
                    tracing::warn!("nf {}/{}: did not end when told to: killed", status.role, status.slot);
                    process.kill().await;
                }
                End::Wished
            }
        }
    }
}

impl Controller {
    async fn is_told_soon(&mut self) -> bool {
        timeout(Duration::from_millis(100), self.desired_states.changed()).await.is_ok()
    }
}

/// Who is let in by the socket that netvmd opened for a process of `recipe`.
fn policy(recipe: &Arc<Recipe>) -> Policy {
    let recipe = Arc::clone(recipe);
    Box::new(move |engine: &Engine, hello: &Hello| {
        if hello.role != recipe.role {
            return Err(format!(
                "netvmd started this NF as `{}`, it says that it is `{}`: take the role from {}",
                recipe.role,
                hello.role,
                netvm_attach::ROLE_VARIABLE
            ));
        }
        if hello.threads > recipe.threads {
            return Err(format!(
                "it has {} threads, the configuration gives it {}: set `threads = {}` for nf {}",
                hello.threads, recipe.threads, hello.threads, recipe.role
            ));
        }
        Ok(is_standby(engine, &recipe.role))
    })
}

/// Whether a further instance of a role is to wait: as many as there should be take packets, or are about to.
fn is_standby(engine: &Engine, role: &str) -> bool {
    let Some(nf) = engine.host().nf_named(role) else { return false };
    let NfStart::Managed { replicas, standby, .. } = &nf.start else { return false };
    let takes_packets = |state| matches!(state, InstanceState::Active | InstanceState::Attaching);
    let taking = engine.instances().into_iter().filter(|i| i.role == nf.id && takes_packets(i.state)).count();
    *standby > 0 && taking >= usize::from(*replicas)
}
