//! A VM that others start, by hand or by libvirt: netvmd listens on its sockets, and knows it by its connections.
//!
//! ```text
//!            ┌──────────────────────◀ it has gone: its buffers are taken back ◀────────────────────┐
//!            ▼                                                                                   │
//!  NF:    awaited ── control.sock: let in, gets its memory ─▶ running ── says that it is ready ──┤
//!  guest: awaited ── qmp.sock: QEMU answers ────────────────▶ running ───────────────────────────┘
//! ```
//!
//! QEMU connects to `qmp.sock` again after netvmd was away. A guest is then taken over; an NF has the memory of a netvmd that
//! is no more, and is report to end.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use netvm_vm::{NfDevices, NfSocket, ServedMemory};
use rustix::net::Shutdown;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

use super::boot::{Boot, at};
use super::controller::{Controller, GRACE, NF_GRACE, SHUTDOWN_TIMEOUT, another, ready_message};
use super::folder::{Folder, FolderError, Record, started};
use super::instance::{Instance, InstanceError};
use super::listeners::{Listeners, VmSocket};
use super::monitor::{Monitor, MonitorEvent};
use super::recipe::{NfRecipe, VmRecipe};
use super::report::QemuReport;
use super::status::VmPhase;
use crate::engine_thread::{EngineGone, EngineHandle};

/// How soon to try again what has failed.
const AGAIN: Duration = Duration::from_secs(2);
/// How long a QEMU whose control channel is here may take until it asks for its memory.
const UNKNOWN_PEER_GRACE: Duration = Duration::from_secs(5);
/// How soon to listen again when no connection can be taken, as without descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Why a VM cannot be awaited.
#[derive(Debug, thiserror::Error)]
enum ListenersError {
    #[error(transparent)]
    Gone(#[from] EngineGone),
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error("there is no role {0} any more")]
    Role(String),
}

/// Why a QEMU does not get an NF's memory.
#[derive(Debug, thiserror::Error)]
enum SlotError {
    #[error(transparent)]
    Instance(#[from] InstanceError),
    #[error("it has gone already: {0}")]
    Left(std::io::Error),
}

/// The devices of a VM that is to be this NF, with their sockets in that folder; `None` when there is no such role any more.
pub(super) async fn devices(
    engine: &EngineHandle,
    folder: &Folder,
    nf: &NfRecipe,
) -> Result<Option<NfDevices>, EngineGone> {
    let (role, notify) = (nf.role.clone(), nf.notify);
    let shape = engine.call(move |engine| engine.guest_shape(&role)).await?;
    Ok(shape.map(|shape| NfDevices {
        folder: folder.path().to_owned(),
        regions: shape.regions as u8,
        vectors: shape.vectors,
        notify,
    }))
}

/// A QEMU that is here.
struct Session {
    monitor: Monitor,
    /// An NF's.
    slot: Option<Slot>,
    report: QemuReport,
    boot: Boot,
    /// When a QEMU with no slot has had time to ask for one.
    unknown_peer: Option<tokio::time::Instant>,
}

/// An NF's place in the engine, and the connections of the QEMU that has it.
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
            // Other holders of the connection, such as the wake-up thread, see its end. It may have ended already.
            let _ = rustix::net::shutdown(stream, Shutdown::Both);
        }
    }
}

impl Controller {
    /// Cares for a VM that others start, until something else is wished than at that generation.
    pub(super) async fn receive(&mut self, recipe: &VmRecipe, generation: u64) {
        loop {
            match self.listeners(recipe).await {
                Ok(listeners) => {
                    while !self.host(&listeners, recipe, generation).await {}
                    self.folder.clear();
                    return;
                }
                Err(error) => {
                    tracing::warn!("{}: cannot be awaited: {error}", self.label());
                    self.status.send_modify(|status| status.last_exit = Some(error.to_string()));
                    tokio::select! {
                        () = sleep(AGAIN) => {}
                        () = another(&mut self.desired_states, generation) => return,
                    }
                }
            }
        }
    }

    async fn listeners(&self, recipe: &VmRecipe) -> Result<Listeners, ListenersError> {
        let devices = match &recipe.nf {
            Some(nf) => {
                let devices = devices(&self.engine, &self.folder, nf).await?;
                Some(devices.ok_or_else(|| ListenersError::Role(nf.role.clone()))?)
            }
            None => None,
        };
        Ok(Listeners::open(&self.folder, devices.as_ref(), recipe.account)?)
    }

    /// Awaits one QEMU, and cares for it to its end; whether something else is wished now.
    async fn host(&mut self, listeners: &Listeners, recipe: &VmRecipe, generation: u64) -> bool {
        let is_nf = recipe.nf.is_some();
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
                // What QEMU has said comes before its end.
                biased;
                () = another(&mut self.desired_states, generation) => {
                    self.shut_down_session(&mut session).await;
                    self.forget("report to end");
                    return true;
                }
                event = session.monitor.next() => match event {
                    MonitorEvent::Opened => self.meet(&mut session, recipe).await,
                    MonitorEvent::Event(event) => self.handle_event(&event, &mut session.report),
                    MonitorEvent::Closed if is_nf => session.unknown_peer = None,
                    MonitorEvent::Closed => break session.report.words(),
                },
                () = left(session.slot.as_ref()) => break session.report.words(),
                event = ready_message(not_ready(session.slot.as_ref())) => {
                    let id = not_ready(session.slot.as_ref()).map(|instance| instance.id);
                    if let Some(slot) = &mut session.slot {
                        slot.is_ready = true;
                    }
                    self.booted(&mut session.boot);
                    if let Some(reason) = self.take_in(id, event) {
                        break reason;
                    }
                }
                (socket, stream) = listeners.next(session.slot.is_some()) => match stream {
                    Ok(stream) => self.answer(socket, stream, &mut session, recipe).await,
                    Err(error) => {
                        tracing::warn!("{}: a connection cannot be taken: {error}", self.label());
                        sleep(PAUSE).await;
                    }
                },
                () = session.boot.due() => self.look(&mut session.boot, recipe).await,
                () = at(session.unknown_peer) => self.dismiss_unknown_peer(&mut session).await,
            }
        };
        self.forget(&how);
        false
    }

    /// Nothing is here.
    fn expect(&mut self, generation: u64, is_nf: bool) {
        let late = self.before.filter(|_| is_nf);
        self.status.send_modify(|status| {
            status.phase = VmPhase::Awaited;
            status.generation = generation;
            status.has_failed = false;
            status.trouble = late.map(|pid| {
                format!("process {pid} has the memory of a netvmd that is no more, and passes nothing: end it where it was started, and start it anew")
            });
        });
    }

    /// What was here has gone.
    fn forget(&mut self, how: &str) {
        if self.status.borrow().pid.is_some() {
            tracing::info!("{}: has gone: {how}", self.label());
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

    /// Somebody has connected.
    async fn answer(
        &mut self,
        socket: VmSocket,
        stream: UnixStream,
        session: &mut Session,
        recipe: &VmRecipe,
    ) {
        let pid = stream.peer_cred().ok().and_then(|peer| peer.pid()?.try_into().ok()).unwrap_or(0);
        match (socket, &mut session.slot) {
            (VmSocket::Qmp, _) => {
                // Another QEMU than the one that runs asks again and again, and is event when that has gone.
                if session.monitor.pid().is_none() {
                    session.monitor.handshake(pid, stream);
                }
            }
            (VmSocket::Nf(NfSocket::Control), None) => {
                let Some(nf) = &recipe.nf else { return };
                match self.slot(&stream, nf).await {
                    Ok(instance) => {
                        tracing::info!("{}: process {pid} has its memory", self.label());
                        let others = Vec::new();
                        session.slot = Some(Slot { instance, pid, is_ready: false, control: stream, others });
                        session.boot = Boot::begin(self.desired_states.borrow().boot_timeout, None);
                        self.arrived(pid, false);
                    }
                    Err(error) => {
                        tracing::warn!("{}: process {pid} does not get its memory: {error}", self.label());
                        self.status.send_modify(|status| status.last_exit = Some(error.to_string()));
                        // It may have gone by itself.
                        let _ = ServedMemory::refuse(stream.as_fd());
                    }
                }
            }
            (VmSocket::Nf(socket), Some(slot)) if !slot.has(socket) => {
                // One that has gone is seen at its control memory's connection.
                if slot.instance.memory.answer(socket, stream.as_fd()).is_ok() {
                    slot.others.push((socket, stream));
                }
            }
            (VmSocket::Nf(_), _) => {
                let owner = self.status.borrow().pid.unwrap_or_default();
                tracing::warn!("{}: process {pid} is sent away: it runs as process {owner}", self.label());
                let _ = ServedMemory::refuse(stream.as_fd());
            }
        }
    }

    async fn slot(&self, control: &UnixStream, nf: &NfRecipe) -> Result<Instance<ServedMemory>, SlotError> {
        let instance = Instance::admit_served(&self.engine, nf).await?;
        instance.memory.answer(NfSocket::Control, control.as_fd()).map_err(SlotError::Left)?;
        Ok(instance)
    }

    /// QEMU answers.
    async fn meet(&mut self, session: &mut Session, recipe: &VmRecipe) {
        let Some((pid, qmp)) = session.monitor.pid().zip(session.monitor.open()) else { return };
        if recipe.nf.is_some() {
            session.unknown_peer = Some(tokio::time::Instant::now() + UNKNOWN_PEER_GRACE);
            return;
        }
        let is_adopted = self.before == Some(pid);
        let was = if is_adopted { "was running already" } else { "was started by others" };
        tracing::info!("{}: {was} (process {pid}, QEMU {})", self.label(), qmp.version());
        session.boot = if is_adopted {
            Boot::over()
        } else {
            Boot::begin(self.desired_states.borrow().boot_timeout, None)
        };
        self.arrived(pid, is_adopted);
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
            tracing::warn!("{}: the next netvmd will not know it: {error}", self.label());
        }
    }

    /// A QEMU has its control channel here, and no memory of this netvmd.
    async fn dismiss_unknown_peer(&self, session: &mut Session) {
        session.unknown_peer = None;
        let Some(pid) =
            session.monitor.pid().filter(|pid| session.slot.as_ref().map(|slot| slot.pid) != Some(*pid))
        else {
            return;
        };
        tracing::warn!(
            "{}: process {pid} has the memory of a netvmd that is no more: report to end",
            self.label()
        );
        if let Some(qmp) = session.monitor.open() {
            // One that does not listen is its starter's to end.
            let _ = timeout(SHUTDOWN_TIMEOUT, qmp.quit()).await;
        }
        session.monitor = Monitor::Absent;
    }

    /// It is not wished any more.
    async fn shut_down_session(&mut self, session: &mut Session) {
        if session.slot.is_none() && session.monitor.open().is_none() {
            return;
        }
        self.status.send_modify(|status| status.phase = VmPhase::Stopping);
        let is_forced = self.desired_states.borrow_and_update().is_forced;
        let (is_asked, grace) = match (&session.slot, session.monitor.open()) {
            _ if is_forced => (false, GRACE),
            (Some(slot), _) => {
                slot.instance.dismiss();
                (true, NF_GRACE)
            }
            (None, Some(qmp)) => (qmp.execute("system_powerdown", Value::Null).await.is_ok(), GRACE),
            (None, None) => (false, GRACE),
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
            // It has ended already, or does not listen.
            let _ = timeout(SHUTDOWN_TIMEOUT, qmp.quit()).await;
        }
        if timeout(SHUTDOWN_TIMEOUT, session.end()).await.is_err() {
            tracing::warn!("{}: it does not end when report to: end it where it was started", self.label());
        }
    }
}

impl Session {
    /// Returns when QEMU has gone.
    async fn end(&mut self) {
        loop {
            if self.slot.is_none() && self.monitor.pid().is_none() {
                return;
            }
            tokio::select! {
                () = left(self.slot.as_ref()) => return,
                // Events are read, so that QEMU is not kept from writing them.
                _ = self.monitor.next() => {}
            }
        }
    }
}

/// The NF that has said nothing yet.
fn not_ready(slot: Option<&Slot>) -> Option<&Instance<ServedMemory>> {
    slot.filter(|slot| !slot.is_ready).map(|slot| &slot.instance)
}

/// Returns when the QEMU of a slot has gone.
async fn left(slot: Option<&Slot>) {
    let Some(slot) = slot else { return std::future::pending().await };
    loop {
        let ready = slot.control.readable().await;
        match ready.and_then(|()| slot.control.try_read(&mut [0; 64])) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            // It has nothing to say there: whatever comes is the end.
            _ => return,
        }
    }
}
