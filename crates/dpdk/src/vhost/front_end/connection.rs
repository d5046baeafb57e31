// SPDX-License-Identifier: Apache-2.0
//! One guest's connection: a thread that receives its messages, applies them, and replies.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use netvm_guest_socket::{Peer, is_gone};
use netvm_vhost_user::End;
use netvm_vhost_user::message::{Message, Reply, reply};
use netvm_vhost_user::payload::number;
use netvm_vhost_user::request::SEND_RARP;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::guests::Guests;
use super::super::lock;
use super::device::{Device, changes_rings};

/// Threads of a port's connections, including those that close descriptors of ended ones.
pub(super) const MAX_THREADS: usize = 16;
/// A guest that has taken workers from its rings waits so long: each time costs all cores an interrupt.
const PAUSE_INTERVAL: Duration = Duration::from_micros(50);

/// Within this time after it has connected, a front-end says something.
const HELLO_TIME: Duration = Duration::from_secs(10);
/// So long after its driver is ready, a guest has written into its rings.
const OFFER_TIME: Duration = Duration::from_secs(2);

/// Whether a message, or the end, comes within some time.
fn has_message_within(stream: &UnixStream, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).ok();
    !matches!(poll(&mut [PollFd::new(stream, PollFlags::IN)], limit.as_ref()), Ok(0))
}

/// Counts threads.
#[derive(Debug, Default)]
struct Running(Arc<AtomicUsize>);

/// A thread that runs.
struct RunningThread(Arc<AtomicUsize>);

impl Running {
    fn begin(&self) -> RunningThread {
        self.0.fetch_add(1, Ordering::Relaxed);
        RunningThread(Arc::clone(&self.0))
    }
}

impl Drop for RunningThread {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The connections of a port.
#[derive(Debug)]
pub(super) struct Connections {
    pub(super) guests: Arc<Guests>,
    list: Mutex<Vec<Arc<Connection>>>,
    /// The one that has the port: the first that sent a message, until it ends.
    holder: Mutex<Option<Arc<Connection>>>,
    /// Their threads, and those of ended connections that still close descriptors.
    running: Running,
}

impl Connections {
    pub(super) fn new(guests: Arc<Guests>) -> Self {
        Self { guests, list: Mutex::default(), holder: Mutex::default(), running: Running::default() }
    }

    /// Serves a new guest in a thread of its own, or hangs up if that is impossible.
    pub(super) fn begin(self: &Arc<Self>, stream: UnixStream) {
        if self.threads() >= MAX_THREADS {
            return;
        }
        let Some(device) = Device::new(self.guests.in_flight_dma.is_some()) else { return };
        let connection = Arc::new(Connection { stream, device: Mutex::new(Some(device)) });
        lock(&self.list).push(Arc::clone(&connection));
        let (own, all, running) = (Arc::clone(&connection), Arc::clone(self), self.running.begin());
        let thread = std::thread::Builder::new().name("vhost-guest".to_owned());
        if thread.spawn(move || own.run(&all, running)).is_err() {
            self.end(&connection);
        }
    }

    pub(super) fn threads(&self) -> usize {
        self.running.0.load(Ordering::Relaxed)
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.list).is_empty()
    }

    /// Ends a connection.
    fn end(&self, connection: &Connection) {
        connection.close(&self.guests);
        lock(&self.holder).take_if(|holder| std::ptr::eq(connection, Arc::as_ptr(holder)));
        lock(&self.list).retain(|other| !std::ptr::eq(connection, Arc::as_ptr(other)));
    }

    /// Gives the port to a connection, unless another one has it whose guest lives. One that sends nothing does not get
    /// it, so that it keeps no guest out.
    fn claim(&self, own: &Arc<Connection>) -> Result<(), End> {
        loop {
            let holder = {
                let mut holder = lock(&self.holder);
                let holder = holder.get_or_insert_with(|| Arc::clone(own));
                if Arc::ptr_eq(holder, own) {
                    return Ok(());
                }
                Arc::clone(holder)
            };
            if !is_gone(&holder.stream) {
                self.guests.refused_peers.note(Peer::of(&own.stream), Peer::of(&holder.stream));
                return Err(End::Closed);
            }
            // Its own thread has not noticed yet.
            self.end(&holder);
        }
    }

    /// Ends all connections. Returns once no thread uses their devices.
    pub(super) fn end_all(&self) {
        let connections = std::mem::take(&mut *lock(&self.list));
        *lock(&self.holder) = None;
        connections.iter().for_each(|connection| connection.close(&self.guests));
    }
}

/// A connection.
#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    /// Gone once the connection has ended.
    device: Mutex<Option<Device>>,
}

impl Connection {
    /// Until the guest goes, breaks the protocol, or its port is closed.
    ///
    /// Descriptors of the last message are closed last: closing a file may block on its server, and nobody waits for
    /// this thread.
    fn run(self: &Arc<Self>, all: &Connections, running: RunningThread) {
        let mut message = Message::new();
        // One that says nothing keeps nobody out by its thread.
        let speaks = has_message_within(&self.stream, HELLO_TIME);
        let mut is_checked = false;
        let mut handle = |message: &mut Message| {
            if !speaks {
                return Err(End::Closed);
            }
            if !is_checked && !has_message_within(&self.stream, OFFER_TIME) {
                is_checked = self.check_memory(&all.guests);
            }
            message.receive(&self.stream)?;
            // A message may start the driver again.
            is_checked &= !changes_rings(message.request());
            all.claim(self)?;
            self.handle(message, &all.guests)
        };
        let end = loop {
            match handle(&mut message) {
                Ok(()) => message.clear(),
                Err(end) => break end,
            }
        };
        self.withdraw(&all.guests);
        if let End::Refused(why) = end {
            all.guests.refuse(why);
        }
        all.end(self);
        drop(message);
        drop(running);
    }

    /// Applies a message.
    fn handle(&self, message: &mut Message, guests: &Guests) -> Result<(), End> {
        let request = message.request();
        let mut device = lock(&self.device);
        let device = device.as_mut().ok_or(End::Closed)?;
        device.check(request, message.payload(), &message.fds).map_err(End::Refused)?;
        let mut fds = std::mem::take(&mut message.fds);
        let changes_rings = changes_rings(request);
        let was_used = changes_rings && guests.pause(device.number);
        let answer = device.apply(request, message.payload(), &mut fds)?;
        if request == SEND_RARP {
            let [a, b, c, d, e, f, ..] = number(message.payload()).unwrap_or(0).to_ne_bytes();
            guests.announcement.request([a, b, c, d, e, f]);
        }
        if changes_rings {
            guests.publish(device.number, device.publication());
        }
        if request == SEND_RARP {
            guests.wake();
        }
        if was_used {
            std::thread::sleep(PAUSE_INTERVAL);
        }
        match answer {
            Some(answer) => reply(&self.stream, request, &answer),
            // It has succeeded.
            None if message.needs_reply() => reply(&self.stream, request, &Reply::from(0)),
            None => Ok(()),
        }
    }

    /// Notes whether the memory of a guest whose driver is ready is really shared. Returns whether it is ready.
    fn check_memory(&self, guests: &Guests) -> bool {
        let device = lock(&self.device);
        let Some(device) = device.as_ref().filter(|device| device.is_ready()) else { return false };
        guests.note_memory(device.number, device.has_empty_ring());
        true
    }

    /// Takes the device from the workers and removes it. Returns once no thread uses it.
    fn withdraw(&self, guests: &Guests) {
        let mut device = lock(&self.device);
        if let Some(device) = device.take() {
            guests.remove(device.number);
        }
    }

    /// Ends the connection.
    fn close(&self, guests: &Guests) {
        self.withdraw(guests);
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
pub(super) mod tests;
