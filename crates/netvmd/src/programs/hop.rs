// SPDX-License-Identifier: Apache-2.0
//! One instance of a program with two ports: starts its process, watches it, and starts it again when it has ended.
//!
//! ```text
//!           ┌──────── back-off ◀───────┐
//!           ▼                          │ ended, or hung for `hang_timeout`
//!  spawn ─▶ running (the engine probes)┤
//!                                      │ stop requested: the engine is told first, then the process
//!                                      ▼
//!                                   stopped
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_api::EventKind;
use netvm_engine::ProgramState;
use netvm_model::{NfConfig, PairConfig, PairEnd, PairSide};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Child;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{interval, sleep, timeout};

use super::Finder;
use crate::engine_thread::EngineHandle;
use crate::process::backoff::Backoff;
use crate::process::spawn::{PortOfProgram, ProcessSpec, Surroundings};
use crate::process::{Process, Rights};

/// Time limit for a program to end after SIGTERM.
const END_TIMEOUT: Duration = Duration::from_secs(4);
/// How often a program is asked for that the engine holds for failed.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// What to run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wanted {
    pub(super) nf: NfConfig,
    pub(super) instance: u16,
    pub(super) rights: Option<Rights>,
    pub(super) workers: Vec<u32>,
}

impl Wanted {
    pub(super) fn pair(&self) -> Option<&PairConfig> {
        self.nf.pair()
    }

    /// Whether another process is needed for this.
    pub(super) fn needs_restart(&self, running: &Self) -> bool {
        let process = |wanted: &Self| {
            wanted.pair().map(|pair| {
                let PairConfig { command, user, cores, environment, limits, sockets, .. } = pair;
                let program = (command.clone(), user.clone(), cores.clone(), environment.clone());
                (program, limits.clone(), sockets.clone(), (pair.attach, pair.port_count, pair.rewrite_macs))
            })
        };
        process(self) != process(running) || self.rights != running.rights
    }

    /// Its ports, as its environment describes them: by side, interface name or socket path, and MAC address.
    fn ports(&self) -> Vec<PortOfProgram> {
        let Some(pair) = self.pair() else { return Vec::new() };
        let port = |side: &PairSide| {
            let end = PairEnd { role: &self.nf.role, instance: self.instance, side: *side };
            let name = match pair.attach.info().has_namespace {
                true => side.word().to_owned(),
                false => end.socket(&pair.sockets).to_string_lossy().into_owned(),
            };
            PortOfProgram { side: side.word(), name, mac: end.mac().to_string() }
        };
        pair.sides().iter().map(port).collect()
    }
}

/// The state of a process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Status {
    /// Its process, if it runs.
    pub(crate) pid: Option<u32>,
    /// It ended, and is started again after a pause.
    pub(crate) is_paused: bool,
    /// Number of restarts.
    pub(crate) restarts: u64,
    /// The last exit reason.
    pub(crate) last_exit: Option<String>,
    /// Why it has no network namespace.
    pub(crate) problem: Option<String>,
    /// When it started.
    pub(crate) started_at: Option<Instant>,
}

/// Handle of an instance and its task.
#[derive(Debug)]
pub(super) struct Hop {
    pub(super) wanted: Wanted,
    /// Increases to request a restart; `None`: stop.
    desired: watch::Sender<Option<u64>>,
    pub(super) status: watch::Receiver<Status>,
    pub(super) task: JoinHandle<()>,
}

impl Hop {
    pub(super) fn start(engine: EngineHandle, finder: Finder, wanted: Wanted) -> Self {
        let (status, status_view) = watch::channel(Status::default());
        let (desired, wishes) = watch::channel(Some(0));
        let controller = Controller { engine, finder, wanted: wanted.clone(), status, wishes };
        Self { wanted, desired, status: status_view, task: tokio::spawn(controller.supervise()) }
    }

    pub(super) fn restart(&self) {
        self.desired.send_modify(|desired| *desired = desired.map(|generation| generation + 1));
    }

    pub(super) fn stop(&self) {
        self.desired.send_replace(None);
    }
}

struct Controller {
    engine: EngineHandle,
    finder: Finder,
    wanted: Wanted,
    status: watch::Sender<Status>,
    wishes: watch::Receiver<Option<u64>>,
}

impl Controller {
    async fn supervise(mut self) {
        let mut backoff = Backoff::default();
        while self.wishes.borrow_and_update().is_some() {
            let started = Instant::now();
            let failure = self.run().await;
            self.tell(false);
            self.status.send_modify(|status| {
                (status.pid, status.started_at) = (None, None);
                status.restarts += 1;
            });
            if let Some(how) = failure {
                let pause = backoff.after(started.elapsed());
                let message = format!("{}: {how}; restarting in {} ms", self.label(), pause.as_millis());
                self.engine.events().push(EventKind::NfDown, &self.wanted.nf.role, message);
                self.status.send_modify(|status| {
                    status.is_paused = true;
                    status.last_exit = Some(how);
                });
                tokio::select! {
                    () = sleep(pause) => {}
                    _ = self.wishes.changed() => {}
                }
                self.status.send_modify(|status| status.is_paused = false);
            }
        }
    }

    fn label(&self) -> String {
        format!("nf {}/{}", self.wanted.nf.role, self.wanted.instance)
    }

    /// Tells the engine whether the process runs.
    fn tell(&self, runs: bool) {
        let (role, instance) = (self.wanted.nf.role.clone(), self.wanted.instance);
        self.engine.send(move |engine| engine.set_program_process(&role, instance, runs));
    }

    fn spec(&self) -> Result<ProcessSpec, String> {
        self.finder.spec(&self.wanted.nf, &self.wanted.workers).map_err(|problem| problem.to_string())
    }

    /// Runs the process once. Returns why it failed, if it did.
    async fn run(&mut self) -> Option<String> {
        let spec = match self.spec() {
            Ok(spec) => spec,
            Err(problem) => return Some(problem),
        };
        let surroundings = Surroundings { ports: self.wanted.ports(), rights: self.wanted.rights };
        let confinement = Arc::clone(&self.finder.confinement);
        let (child, cgroup) = match spec.spawn_program(self.wanted.instance, &confinement, &surroundings) {
            Ok(started) => started,
            Err(error) => return Some(error.to_string()),
        };
        let failure = self.watch(child).await;
        let failure = failure.map(|how| match cgroup.ran_out_of_memory() {
            true => format!(
                "{how}: it needed more than its {} MiB: raise `memory` of [[nf]] {}",
                spec.limits.memory, spec.role
            ),
            false => how,
        });
        confinement.cgroups().remove(cgroup);
        failure
    }

    async fn watch(&mut self, mut child: Child) -> Option<String> {
        // It stays open: some programs end with their standard input.
        let _stdin = child.stdin.take();
        let mut process = Process::new(child, &self.label());
        let pid = process.child.id();
        self.status.send_modify(|status| (status.pid, status.started_at) = (pid, Some(Instant::now())));
        self.tell(true);
        let message = format!("{}: started as process {}", self.label(), pid.unwrap_or_default());
        self.engine.events().push(EventKind::NfUp, &self.wanted.nf.role, message);
        let (engine, wanted) = (self.engine.clone(), self.wanted.clone());
        tokio::select! {
            ended = process.child.wait() => {
                self.tell(false);
                end_group(pid, Signal::KILL);
                Some(match ended {
                    Ok(status) => with_remedy(process.exit_reason(status).await),
                    Err(error) => error.to_string(),
                })
            }
            () = hangs(&engine, &wanted) => {
                self.tell(false);
                end_group(pid, Signal::KILL);
                let _ = process.child.wait().await;
                Some(format!("forwarded nothing for {} s, and was killed", wanted.nf.hang_timeout))
            }
            _ = self.wishes.changed() => {
                // Packets go another way before the program ends.
                self.tell(false);
                end_group(pid, Signal::TERM);
                if timeout(END_TIMEOUT, process.child.wait()).await.is_err() {
                    tracing::warn!("{}: did not end in time; killed", self.label());
                }
                end_group(pid, Signal::KILL);
                let _ = process.child.wait().await;
                None
            }
        }
    }
}

/// How a program has ended, with what helps if that is known of it.
fn with_remedy(how: String) -> String {
    if how.to_lowercase().contains("hugepage") {
        return format!(
            "{how}: give DPDK programs `--no-huge` in `command`, or reserve huge pages (`netvm doctor`)"
        );
    }
    how
}

/// Ends when the engine has held a program for failed for its `hang_timeout`.
async fn hangs(engine: &EngineHandle, wanted: &Wanted) {
    let limit = Duration::from_secs(wanted.nf.hang_timeout.into());
    let mut clock = interval(CHECK_INTERVAL);
    loop {
        clock.tick().await;
        let (role, instance) = (wanted.nf.role.clone(), wanted.instance);
        let failed = engine.call(move |engine| {
            let role = engine.host().nf_named(&role)?.id;
            let mut programs = engine.programs().into_iter();
            let own = programs.find(|program| (program.role, program.instance) == (role, instance))?;
            (own.state == ProgramState::Down).then_some(own.since)
        });
        match failed.await {
            Ok(Some(time)) if !limit.is_zero() && time >= limit => return,
            Ok(_) => {}
            Err(_) => std::future::pending().await,
        }
    }
}

/// Sends a signal to a program and its children.
fn end_group(pid: Option<u32>, signal: Signal) {
    let leader = pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    if let Some(leader) = leader {
        // They may have ended.
        let _ = kill_process_group(leader, signal);
    }
}
