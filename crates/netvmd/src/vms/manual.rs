// SPDX-License-Identifier: Apache-2.0
//! A VM that a user or libvirt starts: netvmd listens on its sockets and follows it by its connections.
//!
//! ```text
//!            ┌────────────────────────◀ QEMU has ended: buffers reclaimed ◀────────────────────────┐
//!            ▼                                                                                   │
//!  NF:    awaited ── control.sock: admitted, gets its memory ─▶ running ── ready message ────────┤
//!  guest: awaited ── qmp.sock: QEMU answers ────────────────▶ running ───────────────────────────┘
//! ```
//!
//! After a restart of netvmd, QEMU connects to `qmp.sock` again. netvmd takes over an ordinary guest. It tells the QEMU
//! of an NF to quit, because this QEMU has the memory of the previous netvmd.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use netvm_vm::{NfSocket, ServedMemory};
use rustix::net::Shutdown;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

use super::boot::{Boot, at};
use super::controller::{Controller, NF_GRACE, POWER_BUTTON_TIMEOUT, SHUTDOWN_TIMEOUT, another};
use super::instance::{EVICTED, Instance, InstanceError, evicted, ready_message};
use super::links::lost_card;
use super::qemu::folder::{Record, started};
use super::qemu::listeners::{Listeners, ListenersError, VmSocket, devices};
use super::qemu::monitor::{Monitor, MonitorEvent};
use super::report::QemuReport;
use super::spec::{VmNfSpec, VmSpec};
use super::status::VmPhase;

/// Pause after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Time limit for a QEMU with a control channel to request its memory.
const UNKNOWN_PEER_GRACE: Duration = Duration::from_secs(5);
/// Pause after a failed accept, for example because no descriptor is free.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// A QEMU does not get an NF's memory.
#[derive(Debug, thiserror::Error)]
enum SlotError {
    #[error(transparent)]
    Instance(#[from] InstanceError),
    #[error("QEMU has ended: {0}")]
    Left(std::io::Error),
}

/// A connected QEMU.
struct Session {
    monitor: Monitor,
    /// The slot, if it runs an NF.
    slot: Option<Slot>,
    report: QemuReport,
    boot: Boot,
    /// Deadline for a QEMU without a slot to request one.
    unknown_peer: Option<tokio::time::Instant>,
}

/// An NF's instance in the engine, and the connections of the QEMU that runs it.
struct Slot {
    instance: Instance<ServedMemory>,
    pid: u32,
    is_ready: bool,
    control: UnixStream,
    others: Vec<(NfSocket, UnixStream)>,
}

impl Slot {
    fn has(&self, socket: NfSocket) -> bool {
        socket == NfSocket::Control || self.others.iter().any(|(known, _)| *known == socket)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        for stream in self.others.iter().map(|(_, stream)| stream).chain([&self.control]) {
            // Ends the connection for all holders, such as the notifier thread. It may have ended already.
            let _ = rustix::net::shutdown(stream, Shutdown::Both);
        }
    }
}

impl Controller {
    /// Serves an externally started VM until the generation of its desired state changes.
    pub(super) async fn receive(&mut self, spec: &VmSpec, generation: u64) {
        loop {
            match self.listeners(spec).await {
                Ok(listeners) => {
                    while !self.host(&listeners, spec, generation).await {}
                    self.folder.clear();
                    return;
                }
                Err(error) => {
                    tracing::warn!("{}: cannot listen for it: {error}", self.label());
                    self.status.send_modify(|status| status.last_exit = Some(error.to_string()));
                    tokio::select! {
                        () = sleep(RETRY_INTERVAL) => {}
                        () = another(&mut self.desired_states, generation) => return,
                    }
                }
            }
        }
    }

    async fn listeners(&self, spec: &VmSpec) -> Result<Listeners, ListenersError> {
        let devices = match &spec.nf {
            Some(nf) => {
                let devices = devices(&self.engine, &self.folder, nf).await?;
                Some(devices.ok_or_else(|| ListenersError::Role(nf.role.clone()))?)
            }
            None => None,
        };
        Ok(Listeners::open(&self.folder, devices.as_ref(), spec.account)?)
    }

    /// Waits for a QEMU and serves it to its end; true if the desired state changed.
    async fn host(&mut self, listeners: &Listeners, spec: &VmSpec, generation: u64) -> bool {
        let is_nf = spec.nf.is_some();
        let mut session = Session {
            monitor: Monitor::Absent,
            slot: None,
            report: QemuReport::of(is_nf),
            boot: Boot::over(),
            unknown_peer: None,
        };
        self.expect(generation, is_nf);
        let how = loop {
            tokio::select! {
                // Handles QEMU's events before its end.
                biased;
                () = another(&mut self.desired_states, generation) => {
                    self.shut_down_session(&mut session).await;
                    self.forget("stopped on request");
                    return true;
                }
                event = session.monitor.next() => match event {
                    MonitorEvent::Opened => self.qmp_ready(&mut session, spec).await,
                    MonitorEvent::Event(event) => self.events(None).handle_event(&event, &mut session.report),
                    MonitorEvent::Closed if is_nf => session.unknown_peer = None,
                    MonitorEvent::Closed => break session.report.reason(),
                },
                () = evicted(session.slot.as_ref().map(|slot| &slot.instance)) => break EVICTED.to_owned(),
                () = left(session.slot.as_ref()) => break session.report.reason(),
                event = ready_message(not_ready(session.slot.as_ref())) => {
                    let id = not_ready(session.slot.as_ref()).map(|instance| instance.id);
                    if let Some(slot) = &mut session.slot {
                        slot.is_ready = true;
                    }
                    self.booted(&mut session.boot);
                    if let Some(reason) = self.handle_ready_message(id, event) {
                        break reason;
                    }
                }
                (socket, stream) = listeners.next(session.slot.is_some()) => match stream {
                    Ok(stream) => self.answer(socket, stream, &mut session, spec).await,
                    Err(error) => {
                        let label = self.label();
                        self.log.log(|more| tracing::warn!("{label}: cannot accept a connection: {error}{more}"));
                        sleep(ACCEPT_RETRY_INTERVAL).await;
                    }
                },
                () = session.boot.due() => self.check(&mut session.boot, spec).await,
                () = at(session.unknown_peer) => self.dismiss_unknown_peer(&mut session).await,
            }
        };
        self.forget(&how);
        false
    }

    /// No QEMU is connected.
    fn expect(&mut self, generation: u64, is_nf: bool) {
        let late = self.before.filter(|_| is_nf);
        self.status.send_modify(|status| {
            status.phase = VmPhase::Awaited;
            status.generation = generation;
            status.has_failed = false;
            status.trouble = late.map(|pid| {
                format!("process {pid} has the memory of a previous netvmd and forwards nothing: stop it where it was started, and start it again")
            });
        });
    }

    /// The QEMU has ended.
    fn forget(&mut self, how: &str) {
        if self.status.borrow().pid.is_some() {
            let label = self.label();
            self.log.log(|more| tracing::info!("{label}: ended: {how}{more}"));
        }
        self.before = None;
        self.status.send_modify(|status| {
            if status.pid.is_some() {
                status.last_exit = Some(how.to_owned());
            }
            (status.pid, status.since, status.instance) = (None, None, None);
            (status.is_adopted, status.trouble) = (false, None);
            status.phase = VmPhase::Awaited;
        });
    }

    /// Handles a new connection.
    async fn answer(&mut self, socket: VmSocket, stream: UnixStream, session: &mut Session, spec: &VmSpec) {
        let pid = stream.peer_cred().ok().and_then(|peer| peer.pid()?.try_into().ok()).unwrap_or(0);
        match (socket, &mut session.slot) {
            (VmSocket::Qmp, _) => {
                // Another QEMU keeps reconnecting and is served once the running one has ended.
                if session.monitor.pid().is_none() {
                    session.monitor.handshake(pid, stream);
                }
            }
            (VmSocket::Nf(NfSocket::Control), None) => {
                let Some(nf) = &spec.nf else { return };
                match self.slot(&stream, nf).await {
                    Ok(instance) => {
                        let label = self.label();
                        self.log.log(|more| tracing::info!("{label}: process {pid} got its memory{more}"));
                        instance.runs_in(pid);
                        let others = Vec::new();
                        session.slot = Some(Slot { instance, pid, is_ready: false, control: stream, others });
                        session.boot = Boot::begin(self.desired_states.borrow().boot_timeout, None);
                        self.arrived(pid, false);
                    }
                    Err(error) => {
                        let label = self.label();
                        self.log.log(|more| {
                            tracing::warn!("{label}: process {pid} gets no memory: {error}{more}");
                        });
                        self.status.send_modify(|status| status.last_exit = Some(error.to_string()));
                        // QEMU may have ended.
                        let _ = ServedMemory::refuse(stream.as_fd());
                    }
                }
            }
            (VmSocket::Nf(socket), Some(slot)) if !slot.has(socket) => {
                // If sending fails, the connection of the control memory shows QEMU's end.
                if slot.instance.memory.answer(socket, stream.as_fd()).is_ok() {
                    slot.others.push((socket, stream));
                }
            }
            (VmSocket::Nf(_), _) => {
                let owner = self.status.borrow().pid.unwrap_or_default();
                let label = self.label();
                self.log.log(|more| {
                    tracing::warn!("{label}: refused process {pid}: the VM runs as process {owner}{more}");
                });
                let _ = ServedMemory::refuse(stream.as_fd());
            }
        }
    }

    async fn slot(&self, control: &UnixStream, nf: &VmNfSpec) -> Result<Instance<ServedMemory>, SlotError> {
        let instance = Instance::admit_served(&self.engine, nf).await?;
        instance.memory.answer(NfSocket::Control, control.as_fd()).map_err(SlotError::Left)?;
        Ok(instance)
    }

    /// QEMU answers on its control channel.
    async fn qmp_ready(&mut self, session: &mut Session, spec: &VmSpec) {
        let Some((pid, qmp)) = session.monitor.pid().zip(session.monitor.open()) else { return };
        if spec.nf.is_some() {
            session.unknown_peer = Some(tokio::time::Instant::now() + UNKNOWN_PEER_GRACE);
            return;
        }
        let is_adopted = self.before == Some(pid);
        let was = if is_adopted { "took over the running VM" } else { "started externally" };
        tracing::info!("{}: {was} (process {pid}, QEMU {})", self.label(), qmp.version());
        session.boot = if is_adopted {
            Boot::over()
        } else {
            Boot::begin(self.desired_states.borrow().boot_timeout, None)
        };
        self.arrived(pid, is_adopted);
        if is_adopted {
            let trouble = lost_card(&self.engine, spec).await;
            self.status.send_modify(|status| status.trouble = trouble);
        }
        if let Ok(Ok(false)) = timeout(SHUTDOWN_TIMEOUT, qmp.is_running()).await {
            self.status.send_modify(|status| status.phase = VmPhase::Paused);
        }
    }

    fn arrived(&mut self, pid: u32, is_adopted: bool) {
        self.status.send_modify(|status| {
            status.phase = VmPhase::Running;
            status.pid = Some(pid);
            status.since = Some(Instant::now());
            status.is_adopted = is_adopted;
            status.trouble = None;
        });
        let Some(started) = started(pid) else { return };
        let record = Record { pid, started, arguments: Vec::new(), is_foreign: true };
        if let Err(error) = self.folder.write(&record) {
            tracing::warn!(
                "{}: cannot write its record; the next netvmd cannot take it over: {error}",
                self.label()
            );
        }
    }

    /// Ends a QEMU that has a control channel but no memory of this netvmd.
    async fn dismiss_unknown_peer(&self, session: &mut Session) {
        session.unknown_peer = None;
        let Some(pid) =
            session.monitor.pid().filter(|pid| session.slot.as_ref().map(|slot| slot.pid) != Some(*pid))
        else {
            return;
        };
        tracing::warn!(
            "{}: process {pid} has the memory of a previous netvmd: telling it to quit",
            self.label()
        );
        if let Some(qmp) = session.monitor.open() {
            // If QEMU does not react, the user who started it must stop it.
            let _ = timeout(SHUTDOWN_TIMEOUT, qmp.quit()).await;
        }
        session.monitor = Monitor::Absent;
    }

    /// Shuts down the VM of a session.
    async fn shut_down_session(&mut self, session: &mut Session) {
        if session.slot.is_none() && session.monitor.open().is_none() {
            return;
        }
        self.status.send_modify(|status| status.phase = VmPhase::Stopping);
        let is_forced = self.desired_states.borrow_and_update().is_forced;
        let (is_asked, grace) = match (&session.slot, session.monitor.open()) {
            _ if is_forced => (false, POWER_BUTTON_TIMEOUT),
            (Some(slot), _) => {
                slot.instance.dismiss();
                (true, NF_GRACE)
            }
            (None, Some(qmp)) => {
                (qmp.execute("system_powerdown", Value::Null).await.is_ok(), POWER_BUTTON_TIMEOUT)
            }
            (None, None) => (false, POWER_BUTTON_TIMEOUT),
        };
        if is_asked {
            let desired_states = &mut self.desired_states;
            let forced = async { desired_states.wait_for(|desired| desired.is_forced).await.is_err() };
            tokio::select! {
                () = session.end() => return,
                _ = forced => {}
                () = sleep(grace) => {}
            }
        }
        if let Some(qmp) = session.monitor.open() {
            // It may have ended, or not react.
            let _ = timeout(SHUTDOWN_TIMEOUT, qmp.quit()).await;
        }
        if timeout(SHUTDOWN_TIMEOUT, session.end()).await.is_err() {
            tracing::warn!("{}: QEMU did not quit: stop it where it was started", self.label());
        }
    }
}

impl Session {
    /// Waits for QEMU's end.
    async fn end(&mut self) {
        loop {
            if self.slot.is_none() && self.monitor.pid().is_none() {
                return;
            }
            tokio::select! {
                () = left(self.slot.as_ref()) => return,
                // Reads events, so that QEMU does not block on writing them.
                _ = self.monitor.next() => {}
            }
        }
    }
}

/// The NF whose ready message has not arrived yet.
fn not_ready(slot: Option<&Slot>) -> Option<&Instance<ServedMemory>> {
    slot.filter(|slot| !slot.is_ready).map(|slot| &slot.instance)
}

/// Waits for the end of a slot's QEMU.
async fn left(slot: Option<&Slot>) {
    let Some(slot) = slot else { return std::future::pending().await };
    loop {
        let ready = slot.control.readable().await;
        match ready.and_then(|()| slot.control.try_read(&mut [0; 64])) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            // QEMU sends nothing here: any event is its end.
            _ => return,
        }
    }
}
