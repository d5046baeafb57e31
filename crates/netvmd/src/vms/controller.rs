// SPDX-License-Identifier: Apache-2.0
//! Controls a VM: starts it, watches it over QMP, shuts it down and restarts it.
//!
//! ```text
//!             ┌────────────── back-off ◀─────────────────┐
//!             ▼                                          │ crashed, killed, panicked
//!  launch ─▶ starting ── QMP answers ─▶ running ◀▶ paused ┤ shut itself down ─▶ stopped
//!             ▲                                          │ stop requested: powered down, then killed
//!  adopted ───┘                                          ▼
//!                                                     stopped
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_engine::{InstanceId, ReadyMessage};
use netvm_model::Restart;
use netvm_vm::{GuestMemory, Qmp};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::boot::{Boot, BootEvent, RunningVm};
use super::handle::DesiredState;
use super::instance::{EVICTED, Instance, evicted, ready_message};
use super::links::lost_card;
use super::qemu::console::Console;
use super::qemu::folder::Folder;
use super::qemu::launch::{Launch, launch, pin};
use super::qemu::process::Machine;
use super::report::{End, EventTarget, QemuReport, SHUT_DOWN};
use super::spec::VmSpec;
use super::status::{Attached, VmPhase, VmStatus};
use crate::engine_thread::{EngineGone, EngineHandle};
use crate::events::LogLimit;
use crate::process::Confinement;
use crate::process::backoff::Backoff;

/// Time limit for QEMU's first answer. QEMU first waits for the sockets of its ports.
const QMP_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit for a guest to shut down after the power button.
pub(super) const POWER_BUTTON_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit for a dismissed NF and its guest to end.
pub(super) const NF_GRACE: Duration = Duration::from_secs(5);
/// Time limit for QEMU to end after `quit`, or after its control socket closed.
pub(super) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

pub(super) struct Controller {
    pub(super) engine: EngineHandle,
    pub(super) folder: Folder,
    pub(super) confinement: Arc<Confinement>,
    pub(super) desired_states: watch::Receiver<DesiredState>,
    pub(super) status: watch::Sender<VmStatus>,
    pub(super) backoff: Backoff,
    /// Lines about resets and panics.
    pub(super) log: LogLimit,
    /// An externally started process of this VM from an earlier netvmd's record, until it ends.
    pub(super) before: Option<u32>,
}

impl Controller {
    /// Controls a VM, beginning with the process that an earlier netvmd left, until its handle is dropped.
    pub(super) async fn supervise(mut self, mut adopted: Option<Machine>) {
        loop {
            let desired = self.desired_states.borrow_and_update().clone();
            let (is_up, generation) = (desired.is_up && desired.spec.is_some(), desired.generation);
            let manual = desired.spec.as_ref().filter(|spec| spec.is_manual && adopted.is_none());
            if let Some(spec) = manual {
                self.receive(spec, generation).await;
                continue;
            }
            if !is_up && adopted.is_none() {
                self.status.send_modify(|status| {
                    status.phase = VmPhase::Stopped;
                    status.generation = generation;
                });
                if self.desired_states.changed().await.is_err() {
                    return;
                }
                continue;
            }
            self.status.send_modify(|status| {
                status.phase = VmPhase::Starting;
                status.has_failed &= status.generation == generation;
                status.generation = generation;
            });
            let started = Instant::now();
            let end = match (adopted.take(), &desired.spec) {
                (Some(machine), _) => {
                    // One that is to end is taken over first, so that its guest can shut down in order.
                    let generation = if desired.is_up { generation } else { generation.wrapping_sub(1) };
                    let desired = DesiredState { generation, ..desired.clone() };
                    self.run(machine, None, Boot::over(), &desired).await
                }
                (None, Some(spec)) => self.start(spec, &desired).await,
                (None, None) => End::Requested,
            };
            self.folder.clear();
            self.status.send_modify(|status| {
                status.pid = None;
                status.since = None;
                status.instance = None;
                status.trouble = None;
            });
            if self.settle(end, started.elapsed()).await.is_err() {
                return;
            }
        }
    }

    async fn start(&mut self, spec: &VmSpec, desired: &DesiredState) -> End {
        let instance = match &spec.nf {
            Some(nf) => match Instance::admit(&self.engine, nf).await {
                Ok(instance) => Some(instance),
                Err(error) => return End::Failed(error.to_string()),
            },
            None => None,
        };
        let (folder, confinement, label) = (&self.folder, &self.confinement, &self.label());
        match launch(Launch { spec, instance: instance.as_ref(), folder, confinement, label }) {
            // Dropping the instance reclaims its buffers: only after the process has ended.
            Ok((machine, console)) => {
                let boot = Boot::begin(desired.boot_timeout, Some(console));
                self.run(machine, instance.as_ref(), boot, desired).await
            }
            Err(error) => End::Failed(error.to_string()),
        }
    }

    /// Handles the end of a run; returns when the VM should start or its desired state changes.
    async fn settle(&mut self, end: End, ran: Duration) -> Result<(), watch::error::RecvError> {
        let restart = self.desired_states.borrow().restart;
        let (how, is_failure) = match end {
            End::Requested => return Ok(()),
            End::ShutDown => (SHUT_DOWN.to_owned(), false),
            End::Failed(how) => (how, true),
        };
        let label = self.label();
        self.status.send_modify(|status| {
            status.has_failed |= is_failure;
            status.last_exit = Some(how.clone());
        });
        let starts_again = restart == Restart::Always || restart == Restart::OnFailure && is_failure;
        if !starts_again {
            tracing::info!("{label}: {how}; not restarted");
            self.status.send_modify(|status| status.phase = VmPhase::Stopped);
            return self.desired_states.changed().await;
        }
        let pause = self.backoff.after(ran);
        tracing::warn!("{label}: {how}; restarting in {} ms", pause.as_millis());
        self.status.send_modify(|status| {
            status.phase = VmPhase::Backoff;
            status.restarts += 1;
        });
        tokio::select! {
            () = sleep(pause) => Ok(()),
            // Any new desired state ends the pause.
            changed = self.desired_states.changed() => changed,
        }
    }

    async fn run(
        &mut self,
        mut machine: Machine,
        instance: Option<&Instance<GuestMemory>>,
        boot: Boot,
        desired: &DesiredState,
    ) -> End {
        let pid = machine.pid();
        self.status.send_modify(|status| status.pid = pid);
        if let Some((instance, pid)) = instance.zip(pid) {
            instance.runs_in(pid);
        }
        let is_adopted = matches!(machine, Machine::Adopted { .. });
        let path = self.folder.qmp();
        let connected = tokio::select! {
            biased;
            connected = timeout(QMP_TIMEOUT, Qmp::connect(&path)) => connected,
            how = machine.ended() => return End::Failed(format!("ended before QMP answered: {how}")),
            // An adopted guest can still shut down in order, once QEMU answers.
            () = another(&mut self.desired_states, desired.generation), if !is_adopted => {
                machine.kill().await;
                return End::Requested;
            }
        };
        let mut qmp = match connected {
            Ok(Ok(qmp)) => qmp,
            Ok(Err(error)) => {
                let how = match timeout(SHUTDOWN_TIMEOUT, machine.ended()).await {
                    Ok(how) => format!("ended before QMP answered: {how}"),
                    Err(_) => error.to_string(),
                };
                machine.kill().await;
                return End::Failed(how);
            }
            Err(_) => {
                machine.kill().await;
                let seconds = QMP_TIMEOUT.as_secs();
                return End::Failed(format!(
                    "QEMU did not answer within {seconds} s: see `netvm port` for the ports it waits for"
                ));
            }
        };
        if let Err(error) = self.handshake(&mut qmp, &machine, desired).await {
            tracing::warn!("{}: {error}", self.label());
        }
        self.watch(RunningVm { qmp, machine, instance, boot }, desired).await
    }

    async fn handshake(
        &self,
        qmp: &mut Qmp,
        machine: &Machine,
        desired: &DesiredState,
    ) -> Result<(), netvm_vm::QmpError> {
        let is_running = qmp.is_running().await?;
        let version = qmp.version();
        let pid = machine.pid().unwrap_or_default();
        let is_adopted = matches!(machine, Machine::Adopted { .. });
        let was = if is_adopted { "took over the running VM" } else { "started" };
        tracing::info!("{}: {was} (process {pid}, QEMU {version})", self.label());
        let trouble = match &desired.spec {
            Some(spec) if is_adopted => lost_card(&self.engine, spec).await,
            _ => None,
        };
        self.status.send_modify(|status| {
            status.phase = if is_running { VmPhase::Running } else { VmPhase::Paused };
            status.since = Some(Instant::now());
            status.is_adopted = is_adopted;
            status.is_outdated &= is_adopted;
            if is_adopted {
                status.trouble = trouble;
            }
        });
        let cores = desired.spec.as_ref().map_or(&[][..], |spec| &spec.pinned);
        if !cores.is_empty() {
            let threads = qmp.vcpu_threads().await?;
            if let Err(error) = pin(pid, &threads, cores) {
                tracing::warn!("{}: cannot pin its processors: {error}", self.label());
            }
        }
        Ok(())
    }

    async fn watch(&mut self, vm: RunningVm<'_>, desired: &DesiredState) -> End {
        let RunningVm { mut qmp, mut machine, instance, mut boot } = vm;
        let mut report = QemuReport::of(instance.is_some());
        let mut not_ready = instance;
        loop {
            tokio::select! {
                // Handles QEMU's events before its end.
                biased;
                event = qmp.event() => match event {
                    Ok(event) => self.events(boot.console()).handle_event(&event, &mut report),
                    Err(_) => {
                        return match timeout(SHUTDOWN_TIMEOUT, machine.ended()).await {
                            Ok(how) => report.end(how),
                            Err(_) => {
                                machine.kill().await;
                                End::Failed("QEMU closed its control socket without ending; killed".to_owned())
                            }
                        };
                    }
                },
                ready_message = ready_message(not_ready) => {
                    not_ready = None;
                    self.booted(&mut boot);
                    if let Some(reason) = self.handle_ready_message(instance.map(|instance| instance.id), ready_message) {
                        self.shut_down(&mut qmp, &mut machine, None).await;
                        return End::Failed(reason);
                    }
                }
                () = evicted(instance) => {
                    machine.kill().await;
                    return End::Failed(format!("killed: {EVICTED}"));
                }
                () = boot.due() => match &desired.spec {
                    Some(spec) => self.check(&mut boot, spec).await,
                    None => boot = Boot::over(),
                },
                () = another(&mut self.desired_states, desired.generation) => {
                    self.shut_down(&mut qmp, &mut machine, instance).await;
                    return End::Requested;
                }
            }
        }
    }

    /// Handles the ready message of an NF; returns the reason if it cannot attach.
    pub(super) fn handle_ready_message(
        &self,
        id: Option<InstanceId>,
        ready_message: Result<ReadyMessage, EngineGone>,
    ) -> Option<String> {
        match ready_message {
            Ok(ReadyMessage::Ready { name, .. }) => {
                let nf = self.desired_states.borrow().spec.as_ref().and_then(|spec| spec.nf.clone());
                if let (Some(id), Some(nf)) = (id, nf) {
                    tracing::info!("{}: {name:?} attached as instance {id} of {}", self.label(), nf.role);
                    let attached = Attached { id, role: nf.role, at: Instant::now() };
                    self.status.send_modify(|status| status.instance = Some(attached));
                }
                None
            }
            Ok(ReadyMessage::Failed { reason }) => Some(format!("its NF cannot attach: {reason:?}")),
            Err(error) => Some(error.to_string()),
        }
    }

    /// Records a finished boot.
    pub(super) fn booted(&self, boot: &mut Boot) {
        if boot.finish() {
            tracing::info!("{}: booted, late", self.label());
            self.status.send_modify(|status| status.trouble = None);
        }
    }

    /// Checks a VM whose boot is late.
    pub(super) async fn check(&self, boot: &mut Boot, spec: &VmSpec) {
        match boot.check(&self.engine, spec).await {
            Some(BootEvent::Late(trouble)) => {
                tracing::warn!("{}: {trouble}", self.label());
                self.status.send_modify(|status| status.trouble = Some(trouble));
            }
            Some(BootEvent::Up) => {
                tracing::info!("{}: booted, late", self.label());
                self.status.send_modify(|status| status.trouble = None);
            }
            None => {}
        }
    }

    /// Presses the power button or dismisses the NF; kills QEMU if that does not help.
    async fn shut_down(
        &mut self,
        qmp: &mut Qmp,
        machine: &mut Machine,
        instance: Option<&Instance<GuestMemory>>,
    ) {
        self.status.send_modify(|status| status.phase = VmPhase::Stopping);
        let is_forced = self.desired_states.borrow_and_update().is_forced;
        let grace = if instance.is_some() { NF_GRACE } else { POWER_BUTTON_TIMEOUT };
        let is_asked = match instance {
            _ if is_forced => false,
            // The NF forwards the packets that it holds, then its guest ends.
            Some(instance) => {
                instance.dismiss();
                true
            }
            None => qmp.execute("system_powerdown", Value::Null).await.is_ok(),
        };
        if is_asked {
            let deadline = sleep(grace);
            tokio::pin!(deadline);
            loop {
                tokio::select! {
                    _ = machine.ended() => return,
                    () = &mut deadline => {
                        tracing::warn!("{}: the guest did not shut down within {} s", self.label(), grace.as_secs());
                        break;
                    }
                    // Reads events, so that QEMU does not block on writing them.
                    event = qmp.event() => if event.is_err() { break },
                    changed = self.desired_states.changed() => {
                        if changed.is_err() || self.desired_states.borrow_and_update().is_forced {
                            break;
                        }
                    }
                }
            }
        }
        // QEMU may have ended. If it does not react, the code below kills it.
        let _ = timeout(SHUTDOWN_TIMEOUT, qmp.quit()).await;
        if timeout(SHUTDOWN_TIMEOUT, machine.ended()).await.is_err() {
            tracing::warn!("{}: QEMU did not quit; killed", self.label());
            machine.kill().await;
        }
    }

    /// Where events of QEMU go.
    pub(super) const fn events<'a>(&'a self, console: Option<&'a Console>) -> EventTarget<'a> {
        EventTarget { status: &self.status, log: &self.log, console }
    }

    pub(super) fn label(&self) -> String {
        format!("vm {}", self.status.borrow().name)
    }
}

/// Waits until the generation of the desired state changes.
pub(super) async fn another(desired_states: &mut watch::Receiver<DesiredState>, generation: u64) {
    // An error means that the daemon ends; guests keep running.
    if desired_states.wait_for(|desired| desired.generation != generation).await.is_err() {
        std::future::pending::<()>().await;
    }
}
