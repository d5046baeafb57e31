// SPDX-License-Identifier: Apache-2.0
//! A replica: starts a process of an NF, waits for it to attach, watches it, and restarts it when it ends.
//!
//! ```text
//!          ┌────────── back-off ◀─────────┐
//!          ▼                              │ ended, or never attached
//!  spawn ─▶ starting ── Ready ─▶ attached ┤
//!                                         │ stop requested: dismissed, forwards the packets that it holds
//!                                         ▼
//!                                      stopped
//! ```

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_api::EventKind;
use netvm_attach::Hello;
use netvm_engine::{Engine, InstanceId, InstanceState};
use netvm_model::NfStart;
use tokio::process::Child;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::Identity;
use crate::attach::{NfSocket, Policy, Session};
use crate::engine_thread::{EngineHandle, FailedNfs, NfFault};
use crate::process::Process;
use crate::process::backoff::Backoff;
use crate::process::sandbox::Confinement;
use crate::process::spawn::{ProcessSpec, Started};

/// Time limit for a dismissed NF to end: the engine's grace period plus a margin.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(4);

/// The phase of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Starting; not attached yet.
    Starting,
    /// Attached.
    Attached(InstanceId),
    /// Ended; restarts after a pause.
    Backoff,
    /// Stopping; no restart follows.
    Stopping,
    /// Stopped; no restart follows.
    Stopped,
}

/// The state of a replica.
#[derive(Clone, Debug)]
pub struct Status {
    /// Its role.
    pub role: String,
    /// Its number within the role, from 0.
    pub slot: u16,
    /// Its process, if it runs.
    pub pid: Option<u32>,
    /// Increases with each requested restart.
    generation: u64,
    /// The phase.
    pub phase: Phase,
    /// Number of restarts.
    pub restarts: u64,
    /// Number of unrequested ends and failed starts.
    pub failures: u64,
    /// Whether it has failed since the last requested start.
    has_failed: bool,
    /// The last exit reason.
    pub last_exit: Option<String>,
    /// When it attached.
    pub attached_at: Option<Instant>,
}

/// A requested start or restart, to wait for.
#[derive(Debug)]
pub struct Startup {
    status: watch::Receiver<Status>,
    generation: u64,
}

impl Startup {
    /// Its role.
    #[must_use]
    pub fn role(&self) -> String {
        self.status.borrow().role.clone()
    }

    /// Waits until the process has attached.
    ///
    /// # Errors
    /// A description of its first failure.
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
            // Attached, or superseded by a later request.
            _ => Ok(()),
        }
    }
}

/// The desired state of a replica.
#[derive(Clone, Debug)]
pub(super) struct DesiredState {
    /// The process to run; `None`: stop.
    pub(super) spec: Option<Arc<ProcessSpec>>,
    /// Increases to request a restart.
    pub(super) generation: u64,
}

/// Handle of a replica and its task.
#[derive(Debug)]
pub(super) struct Replica {
    /// The settings of the last requested process.
    pub(super) identity: Identity,
    pub(super) desired: watch::Sender<DesiredState>,
    pub(super) status: watch::Receiver<Status>,
    pub(super) task: JoinHandle<()>,
}

/// A replica to start.
pub(super) struct NewReplica {
    pub(super) engine: EngineHandle,
    pub(super) confinement: Arc<Confinement>,
    pub(super) identity: Identity,
    pub(super) spec: Arc<ProcessSpec>,
    pub(super) slot: u16,
    /// How often it was restarted before.
    pub(super) restarts: u64,
}

impl Replica {
    pub(super) fn start(new: NewReplica) -> Self {
        let NewReplica { engine, confinement, identity, spec, slot, restarts } = new;
        let (status, status_view) = watch::channel(Status {
            role: spec.role.clone(),
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
        let (desired, desired_states) = watch::channel(DesiredState { spec: Some(spec), generation: 0 });
        let controller =
            Controller { engine, confinement, desired_states, status, backoff: Backoff::default() };
        Self { identity, desired, status: status_view, task: tokio::spawn(controller.supervise()) }
    }

    /// Stops the process for good.
    pub(super) fn stop(&self) {
        self.desired.send_modify(|desired| {
            desired.spec = None;
            desired.generation += 1;
        });
    }

    /// Restarts the process without a pause.
    pub(super) fn restart(&self) -> Startup {
        self.desired.send_modify(|desired| desired.generation += 1);
        self.startup()
    }

    /// As [`Replica::restart`], with another specification.
    pub(super) fn renew(&mut self, identity: &Identity, spec: &Arc<ProcessSpec>) -> Startup {
        self.identity = identity.clone();
        self.desired.send_modify(|desired| {
            desired.spec = Some(Arc::clone(spec));
            desired.generation += 1;
        });
        self.startup()
    }

    /// The last requested start, to wait for.
    pub(super) fn startup(&self) -> Startup {
        Startup { status: self.status.clone(), generation: self.desired.borrow().generation }
    }
}

/// The end of a run.
enum End {
    /// Requested.
    Requested,
    /// Unrequested, or the start failed.
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
    async fn supervise(mut self) {
        loop {
            let DesiredState { spec: Some(spec), generation } =
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
            let end = self.run(&spec).await;
            self.status.send_modify(|status| {
                status.pid = None;
                status.attached_at = None;
            });
            if let End::Failed(how) = end {
                self.pause(&spec, how, started.elapsed()).await;
            }
            self.status.send_modify(|status| status.restarts += 1);
        }
        self.status.send_modify(|status| status.phase = Phase::Stopped);
    }

    async fn pause(&mut self, spec: &ProcessSpec, how: String, ran: Duration) {
        let pause = self.backoff.after(ran);
        let slot = self.status.borrow().slot;
        let message = format!("nf {}/{slot}: {how}; restarting in {} ms", spec.role, pause.as_millis());
        self.engine.events().push(EventKind::NfDown, &spec.role, message);
        self.status.send_modify(|status| {
            status.phase = Phase::Backoff;
            status.failures += 1;
            status.has_failed = true;
            status.last_exit = Some(how);
        });
        tokio::select! {
            () = sleep(pause) => {}
            // Any new desired state ends the pause.
            _ = self.desired_states.changed() => {}
        }
    }

    async fn run(&mut self, spec: &Arc<ProcessSpec>) -> End {
        let slot = self.status.borrow().slot;
        let Started { child, socket, cgroup } = match spec.spawn(slot, &self.confinement) {
            Ok(started) => started,
            Err(error) => return End::Failed(error.to_string()),
        };
        let end = match self.serve(spec, child, socket).await {
            End::Failed(how) if cgroup.ran_out_of_memory() => End::Failed(format!(
                "{how}: it needed more than its {} MiB: raise `memory` of [[nf]] {}",
                spec.limits.memory, spec.role
            )),
            end => end,
        };
        self.confinement.cgroups().remove(cgroup);
        end
    }

    async fn serve(&mut self, spec: &Arc<ProcessSpec>, child: Child, socket: OwnedFd) -> End {
        let slot = self.status.borrow().slot;
        let mut process = Process::new(child, &format!("nf {}/{slot}", spec.role));
        self.status.send_modify(|status| status.pid = process.child.id());
        tracing::debug!(
            "nf {}/{slot}: started as process {}",
            spec.role,
            process.child.id().unwrap_or_default()
        );
        let failed = self.engine.failed();
        let nf = NfSocket { socket, pid: process.child.id() };
        let session = tokio::select! {
            session = Session::establish(&self.engine, nf, policy(spec), ()) => session,
            _ = self.desired_states.changed() => {
                process.kill().await;
                return End::Requested;
            }
        };
        let session = match session {
            Ok(session) => session,
            Err(error) => {
                // If the process has ended, its exit reason explains more.
                let ended = timeout(Duration::from_millis(50), process.child.wait()).await;
                let how = match ended {
                    Ok(Ok(status)) => {
                        format!("ended before it attached: {}", process.exit_reason(status).await)
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
        let message = format!(
            "nf {}/{slot}: {} attached as instance {} (process {}, {} threads)",
            spec.role,
            session.name(),
            session.id(),
            process.child.id().unwrap_or_default(),
            session.threads()
        );
        self.engine.events().push(EventKind::NfUp, &spec.role, message);
        self.watch(&session, failed, process).await
    }

    async fn watch(&mut self, session: &Session, mut failed: FailedNfs, mut process: Process) -> End {
        tokio::select! {
            fault = failed.wait_for(session.id()) => {
                process.kill().await;
                End::Failed(match fault {
                    NfFault::Hung => {
                        "hung, and was killed: it made no progress although packets waited for it".to_owned()
                    }
                    NfFault::Evicted => {
                        "killed: it or another NF of its trust group damaged the group's memory".to_owned()
                    }
                })
            }
            () = session.closed() => {
                // The socket also closes when the process is killed: wait for its end.
                match timeout(Duration::from_millis(500), process.child.wait()).await {
                    // If the engine dismissed it, it may end before the new desired state arrives.
                    Ok(Ok(status)) if status.success() && self.is_change_imminent().await => End::Requested,
                    Ok(Ok(status)) => End::Failed(process.exit_reason(status).await),
                    _ => {
                        process.kill().await;
                        End::Failed("closed its attach socket without ending; killed".to_owned())
                    }
                }
            }
            _ = self.desired_states.changed() => {
                self.status.send_modify(|status| status.phase = Phase::Stopping);
                session.dismiss();
                if timeout(SHUTDOWN_TIMEOUT, process.child.wait()).await.is_err() {
                    let status = self.status.borrow().clone();
                    tracing::warn!("nf {}/{}: did not end in time; killed", status.role, status.slot);
                    process.kill().await;
                }
                End::Requested
            }
        }
    }
}

impl Controller {
    async fn is_change_imminent(&mut self) -> bool {
        timeout(Duration::from_millis(100), self.desired_states.changed()).await.is_ok()
    }
}

/// The attach policy for a process of `spec`.
fn policy(spec: &Arc<ProcessSpec>) -> Policy {
    let spec = Arc::clone(spec);
    Box::new(move |engine: &Engine, hello: &Hello| {
        if hello.role != spec.role {
            return Err(format!(
                "netvmd started this NF as role `{}`, but it claims role `{}`: use the role in {}",
                spec.role,
                hello.role,
                netvm_attach::ROLE_VARIABLE
            ));
        }
        if hello.threads > spec.threads {
            return Err(format!(
                "it has {} threads, but the configuration allows {}: set `threads = {}` for nf {}",
                hello.threads, spec.threads, hello.threads, spec.role
            ));
        }
        Ok(is_standby(engine, &spec.role))
    })
}

/// Whether a new instance becomes a standby: enough instances are active already or about to be.
fn is_standby(engine: &Engine, role: &str) -> bool {
    let Some(nf) = engine.host().nf_named(role) else { return false };
    let NfStart::Managed { replicas, standby, .. } = &nf.start else { return false };
    let takes_packets = |state| matches!(state, InstanceState::Active | InstanceState::Attaching);
    let taking = engine.instances().into_iter().filter(|i| i.role == nf.id && takes_packets(i.state)).count();
    *standby > 0 && taking >= usize::from(*replicas)
}
