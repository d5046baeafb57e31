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
//! is no more, and is told to end.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use netvm_vm::{NfDevices, NfSocket, ServedMemory};
use rustix::net::Shutdown;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

use super::boot::{Boot, at};
use super::doors::{Door, Doors};
use super::folder::{Folder, FolderError, Record, started};
use super::instance::{Instance, InstanceError};
use super::keeper::{FAREWELL, GRACE, Keeper, NF_GRACE, another, ready_message};
use super::monitor::{Heard, Monitor};
use super::recipe::{NfRecipe, VmRecipe};
use super::status::VmPhase;
use super::told::Told;
use crate::engine_thread::{EngineGone, EngineHandle};

/// How soon to try again what has failed.
const AGAIN: Duration = Duration::from_secs(2);
/// How long a QEMU whose control channel is here may take until it asks for its memory.
const STRANGER: Duration = Duration::from_secs(5);
/// How soon to listen again when no connection can be taken, as without descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Why a VM cannot be awaited.
#[derive(Debug, thiserror::Error)]
enum DoorsError {
    #[error(transparent)]
    Gone(#[from] EngineGone),
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error("there is no role {0} any more")]
    Role(String),
}

/// Why a QEMU does not get an NF's memory.
#[derive(Debug, thiserror::Error)]
enum SeatError {
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
struct Visit {
    monitor: Monitor,
    /// An NF's.
    seat: Option<Seat>,
    told: Told,
    boot: Boot,
    /// When a QEMU with no seat has had time to ask for one.
    stranger: Option<tokio::time::Instant>,
}

/// An NF's place in the engine, and the connections of the QEMU that has it.
struct Seat {
    instance: Instance<ServedMemory>,
    pid: u32,
    is_heard: bool,
    control: UnixStream,
    others: Vec<(NfSocket, UnixStream)>,
}

impl Seat {
    fn has(&self, socket: NfSocket) -> bool {
        socket == NfSocket::Control || self.others.iter().any(|(known, _)| *known == socket)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        for stream in self.others.iter().map(|(_, stream)| stream).chain([&self.control]) {
            // Whoever else has the connection, as the thread of the wake-ups, sees its end. It may have ended already.
            let _ = rustix::net::shutdown(stream, Shutdown::Both);
        }
    }
}

impl Keeper {
    /// Cares for a VM that others start, until something else is wished than at that generation.
    pub(super) async fn receive(&mut self, recipe: &VmRecipe, generation: u64) {
        loop {
            match self.doors(recipe).await {
                Ok(doors) => {
                    while !self.host(&doors, recipe, generation).await {}
                    self.folder.clear();
                    return;
                }
                Err(error) => {
                    tracing::warn!("{}: cannot be awaited: {error}", self.label());
                    self.status.send_modify(|status| status.last_exit = Some(error.to_string()));
                    tokio::select! {
                        () = sleep(AGAIN) => {}
                        () = another(&mut self.wishes, generation) => return,
                    }
                }
            }
        }
    }

    async fn doors(&self, recipe: &VmRecipe) -> Result<Doors, DoorsError> {
        let devices = match &recipe.nf {
            Some(nf) => {
                let devices = devices(&self.engine, &self.folder, nf).await?;
                Some(devices.ok_or_else(|| DoorsError::Role(nf.role.clone()))?)
            }
            None => None,
        };
        Ok(Doors::open(&self.folder, devices.as_ref(), recipe.account)?)
    }

    /// Awaits one QEMU, and cares for it to its end; whether something else is wished now.
    async fn host(&mut self, doors: &Doors, recipe: &VmRecipe, generation: u64) -> bool {
        let is_nf = recipe.nf.is_some();
        let mut visit = Visit {
            monitor: Monitor::Absent,
            seat: None,
            told: Told::of(is_nf),
            boot: Boot::over(),
            stranger: None,
        };
        self.expect(generation, is_nf);
        let how = loop {
            tokio::select! {
                // What QEMU has said comes before its end.
                biased;
                () = another(&mut self.wishes, generation) => {
                    self.send_off(&mut visit).await;
                    self.forget("told to end");
                    return true;
                }
                heard = visit.monitor.next() => match heard {
                    Heard::Opened => self.meet(&mut visit, recipe).await,
                    Heard::Event(event) => self.hear(&event, &mut visit.told),
                    Heard::Closed if is_nf => visit.stranger = None,
                    Heard::Closed => break visit.told.words(),
                },
                () = left(visit.seat.as_ref()) => break visit.told.words(),
                heard = ready_message(unheard(visit.seat.as_ref())) => {
                    let id = unheard(visit.seat.as_ref()).map(|instance| instance.id);
                    if let Some(seat) = &mut visit.seat {
                        seat.is_heard = true;
                    }
                    self.booted(&mut visit.boot);
                    if let Some(reason) = self.take_in(id, heard) {
                        break reason;
                    }
                }
                (door, stream) = doors.next(visit.seat.is_some()) => match stream {
                    Ok(stream) => self.answer(door, stream, &mut visit, recipe).await,
                    Err(error) => {
                        tracing::warn!("{}: a connection cannot be taken: {error}", self.label());
                        sleep(PAUSE).await;
                    }
                },
                () = visit.boot.due() => self.look(&mut visit.boot, recipe).await,
                () = at(visit.stranger) => self.dismiss_stranger(&mut visit).await,
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
    async fn answer(&mut self, door: Door, stream: UnixStream, visit: &mut Visit, recipe: &VmRecipe) {
        let pid = stream.peer_cred().ok().and_then(|peer| peer.pid()?.try_into().ok()).unwrap_or(0);
        match (door, &mut visit.seat) {
            (Door::Qmp, _) => {
                // Another QEMU than the one that runs asks again and again, and is heard when that has gone.
                if visit.monitor.pid().is_none() {
                    visit.monitor.greet(pid, stream);
                }
            }
            (Door::Nf(NfSocket::Control), None) => {
                let Some(nf) = &recipe.nf else { return };
                match self.seat(&stream, nf).await {
                    Ok(instance) => {
                        tracing::info!("{}: process {pid} has its memory", self.label());
                        let others = Vec::new();
                        visit.seat = Some(Seat { instance, pid, is_heard: false, control: stream, others });
                        visit.boot = Boot::begin(self.wishes.borrow().boot_timeout, None);
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
            (Door::Nf(socket), Some(seat)) if !seat.has(socket) => {
                // One that has gone is seen at its control memory's connection.
                if seat.instance.memory.answer(socket, stream.as_fd()).is_ok() {
                    seat.others.push((socket, stream));
                }
            }
            (Door::Nf(_), _) => {
                let owner = self.status.borrow().pid.unwrap_or_default();
                tracing::warn!("{}: process {pid} is sent away: it runs as process {owner}", self.label());
                let _ = ServedMemory::refuse(stream.as_fd());
            }
        }
    }

    async fn seat(&self, control: &UnixStream, nf: &NfRecipe) -> Result<Instance<ServedMemory>, SeatError> {
        let instance = Instance::admit_served(&self.engine, nf).await?;
        instance.memory.answer(NfSocket::Control, control.as_fd()).map_err(SeatError::Left)?;
        Ok(instance)
    }

    /// QEMU answers.
    async fn meet(&mut self, visit: &mut Visit, recipe: &VmRecipe) {
        let Some((pid, qmp)) = visit.monitor.pid().zip(visit.monitor.open()) else { return };
        if recipe.nf.is_some() {
            visit.stranger = Some(tokio::time::Instant::now() + STRANGER);
            return;
        }
        let is_adopted = self.before == Some(pid);
        let was = if is_adopted { "was running already" } else { "was started by others" };
        tracing::info!("{}: {was} (process {pid}, QEMU {})", self.label(), qmp.version());
        visit.boot =
            if is_adopted { Boot::over() } else { Boot::begin(self.wishes.borrow().boot_timeout, None) };
        self.arrived(pid, is_adopted);
        if let Ok(Ok(false)) = timeout(FAREWELL, qmp.is_running()).await {
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
    async fn dismiss_stranger(&self, visit: &mut Visit) {
        visit.stranger = None;
        let Some(pid) =
            visit.monitor.pid().filter(|pid| visit.seat.as_ref().map(|seat| seat.pid) != Some(*pid))
        else {
            return;
        };
        tracing::warn!(
            "{}: process {pid} has the memory of a netvmd that is no more: told to end",
            self.label()
        );
        if let Some(qmp) = visit.monitor.open() {
            // One that does not listen is its starter's to end.
            let _ = timeout(FAREWELL, qmp.quit()).await;
        }
        visit.monitor = Monitor::Absent;
    }

    /// It is not wished any more.
    async fn send_off(&mut self, visit: &mut Visit) {
        if visit.seat.is_none() && visit.monitor.open().is_none() {
            return;
        }
        self.status.send_modify(|status| status.phase = VmPhase::Stopping);
        let is_forced = self.wishes.borrow_and_update().is_forced;
        let (is_asked, grace) = match (&visit.seat, visit.monitor.open()) {
            _ if is_forced => (false, GRACE),
            (Some(seat), _) => {
                seat.instance.dismiss();
                (true, NF_GRACE)
            }
            (None, Some(qmp)) => (qmp.execute("system_powerdown", Value::Null).await.is_ok(), GRACE),
            (None, None) => (false, GRACE),
        };
        if is_asked {
            let wishes = &mut self.wishes;
            let forced = async { wishes.wait_for(|wish| wish.is_forced).await.is_err() };
            tokio::select! {
                () = visit.end() => return,
                _ = forced => {}
                () = sleep(grace) => {}
            }
        }
        if let Some(qmp) = visit.monitor.open() {
            // It has ended already, or does not listen.
            let _ = timeout(FAREWELL, qmp.quit()).await;
        }
        if timeout(FAREWELL, visit.end()).await.is_err() {
            tracing::warn!("{}: it does not end when told to: end it where it was started", self.label());
        }
    }
}

impl Visit {
    /// Returns when QEMU has gone.
    async fn end(&mut self) {
        loop {
            if self.seat.is_none() && self.monitor.pid().is_none() {
                return;
            }
            tokio::select! {
                () = left(self.seat.as_ref()) => return,
                // Events are read, so that QEMU is not kept from writing them.
                _ = self.monitor.next() => {}
            }
        }
    }
}

/// The NF that has said nothing yet.
fn unheard(seat: Option<&Seat>) -> Option<&Instance<ServedMemory>> {
    seat.filter(|seat| !seat.is_heard).map(|seat| &seat.instance)
}

/// Returns when the QEMU of a seat has gone.
async fn left(seat: Option<&Seat>) {
    let Some(seat) = seat else { return std::future::pending().await };
    loop {
        let ready = seat.control.readable().await;
        match ready.and_then(|()| seat.control.try_read(&mut [0; 64])) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            // It has nothing to say there: whatever comes is the end.
            _ => return,
        }
    }
}
