// SPDX-License-Identifier: Apache-2.0
//! The port's thread: accepts a client, and answers its requests until it goes. One client at a time; another one is
//! refused at once, and noted.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netvm_guest_socket::{Accepted, Listener, Peer, RETRY_INTERVAL, Reports, is_gone};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::files::Files;
use crate::nic::{Doorbells, Model};
use crate::ring::Shared;
use crate::status::{Fault, Status};
use crate::vfio::session::{Refused, Session};
use crate::vfio::stream::{Message, Stream, StreamError};

/// State of the thread.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) model: Model,
    pub(crate) doorbells: Doorbells,
    pub(crate) listener: Listener,
    pub(crate) reports: Reports<Status>,
    pub(crate) shared: Arc<Shared>,
    /// Whether the client is not to be left to another process when the port is closed.
    pub(crate) forgets: Arc<AtomicBool>,
}

/// A client, and its state.
pub(crate) type Client = (Stream, Session);

/// Why a client is served no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It has gone.
    Gone,
    /// It had to be disconnected.
    Fault(Fault),
    /// The port is closed.
    Stopped,
}

/// Requests that were answered at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answered {
    /// Some, and the client waits for none of them. The last one announced packets.
    Announced,
    /// Others, or none.
    Any,
}

/// Announcements of packets by a guest that sends without a pause.
#[derive(Debug, Default)]
struct Streak(Option<Instant>);

impl Streak {
    /// Packets were announced. Returns whether they follow others at once.
    fn goes_on(&mut self) -> bool {
        let now = Instant::now();
        self.0.replace(now).is_some_and(|last| now - last < STREAK)
    }
}

/// Within this time after it has connected, a client says something.
const HELLO_TIME: Duration = Duration::from_secs(1);

/// How long the thread leaves the socket alone after posted requests, besides the kernel's timer slack of 50 µs, while
/// a guest sends without a pause. A client that finds nobody waiting does not have to wake this thread for its next
/// request, which takes longer than to send it. After other posted requests the thread waits for the next one: a driver
/// that has masked or enabled interrupts reads a register at once, so that the write takes effect, and waits for it.
const POSTED: Duration = Duration::from_micros(1);

/// A guest whose announcements come at shorter intervals sends without a pause.
const STREAK: Duration = Duration::from_micros(200);

/// When the listener is left alone, because the kernel refuses to accept.
#[derive(Debug, Default)]
struct Pause(Option<Instant>);

impl Pause {
    fn begin(&mut self) {
        self.0 = Some(Instant::now() + RETRY_INTERVAL);
    }

    /// How long it lasts yet.
    fn left(&mut self) -> Option<Timespec> {
        let now = Instant::now();
        self.0.take_if(|until| *until <= now);
        self.0.and_then(|until| Timespec::try_from(until - now).ok())
    }

    /// Waits for connections, unless paused.
    fn poll<'a>(&self, listener: &'a Listener) -> PollFd<'a> {
        let wanted = if self.0.is_none() { PollFlags::IN } else { PollFlags::empty() };
        PollFd::from_borrowed_fd(listener.as_fd(), wanted)
    }
}

impl Server {
    /// Until the port is closed. In: the client of another process, if there is one, and the place of the client's
    /// files.
    pub(crate) fn run(&self, first: Result<Client, Files>) {
        let mut files = match first {
            Ok(client) => self.serve_to_the_end(client),
            Err(files) => files,
        };
        let mut pause = Pause::default();
        loop {
            let mut fds = [PollFd::new(&self.reports.stop, PollFlags::IN), pause.poll(&self.listener)];
            match poll(&mut fds, pause.left().as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            if !fds[0].revents().is_empty() {
                return;
            }
            if fds[1].revents().is_empty() {
                continue;
            }
            match self.listener.accept() {
                Accepted::Connection(socket) => files = self.begin(socket, files),
                Accepted::Failed => pause.begin(),
                Accepted::Nothing | Accepted::Refused => {}
            }
        }
    }

    /// Serves a new client. Returns the place for the next one's files.
    fn begin(&self, socket: UnixStream, files: Files) -> Files {
        let Ok(stream) = Stream::new(socket) else { return files };
        let mut session = match Session::new(self.model, self.doorbells) {
            Ok(session) => session.with(files),
            Err(_) => return files,
        };
        session.begin(&mut self.shared.lock(), &stream);
        self.serve_to_the_end((stream, session))
    }

    /// Serves a client until it goes or the port is closed.
    fn serve_to_the_end(&self, (mut stream, mut session): Client) -> Files {
        self.reports.note(|status| *status = Status { is_connected: true, ..*status });
        let end = self.serve(&mut stream, &mut session);
        let mut device = self.shared.lock();
        let is_left = end == End::Stopped && !self.forgets.load(Ordering::Relaxed);
        let files = if is_left {
            device.leave();
            session.leave()
        } else {
            device.disconnect();
            session.end()
        };
        self.shared.note_activity(&device);
        drop((stream, device));
        self.reports.note(|status| {
            status.is_connected = false;
            if let End::Fault(fault) = end {
                (status.fault, status.faults) = (Some(fault), status.faults + 1);
            }
        });
        files
    }

    /// Serves a client. Returns why it is served no more.
    fn serve(&self, stream: &mut Stream, session: &mut Session) -> End {
        // The worker already moves packets, so that the driver of a client that waits for nothing goes on, too.
        let unanswered = self.shared.state.unanswered();
        if unanswered.is_some_and(|id| stream.settle(id).is_err()) {
            return End::Gone;
        }
        self.shared.state.note_answered();
        let (mut pause, mut streak, began) = (Pause::default(), Streak::default(), Instant::now());
        loop {
            let wanted = if stream.is_blocked() { PollFlags::OUT } else { PollFlags::IN };
            let (stops, comes, unmasks) = {
                let mut fds = [
                    PollFd::new(&self.reports.stop, PollFlags::IN),
                    pause.poll(&self.listener),
                    PollFd::from_borrowed_fd(session.unmasks(), PollFlags::IN),
                    PollFd::new(&*stream, wanted),
                ];
                match poll(&mut fds, pause.left().as_ref()) {
                    Ok(_) => {}
                    Err(Errno::INTR) => continue,
                    Err(_) => return End::Gone,
                }
                let is_ready = |n: usize| fds.get(n).is_some_and(|fd| !fd.revents().is_empty());
                (is_ready(0), is_ready(1), is_ready(2))
            };
            if stops {
                return End::Stopped;
            }
            if comes {
                // A client that takes the place of this one may come before this thread has noticed its end. One that
                // says nothing keeps nobody out.
                let is_silent = !session.has_version() && began.elapsed() > HELLO_TIME;
                if is_silent || is_gone(&*stream) {
                    return End::Gone;
                }
                match self.listener.accept() {
                    Accepted::Connection(other) => {
                        self.reports.refused_peers.note(Peer::of(&other), Peer::of(&*stream));
                    }
                    Accepted::Failed => pause.begin(),
                    Accepted::Nothing | Accepted::Refused => {}
                }
            }
            if unmasks {
                let mut device = self.shared.lock();
                session.unmask(&mut device);
                self.shared.note_activity(&device);
            }
            match self.answer(stream, session) {
                Ok(Answered::Announced) => {
                    if streak.goes_on() {
                        std::thread::sleep(POSTED);
                    }
                }
                Ok(Answered::Any) => {}
                Err(StreamError::Closed) => return End::Gone,
                Err(StreamError::Protocol) => return End::Fault(Fault::Protocol),
            }
            match session.refused.take() {
                Some(Refused::NotAnEventfd) => return End::Fault(Fault::NotAnEventfd),
                Some(Refused::Memory(error)) => return End::Fault(error.into()),
                None => {}
            }
        }
    }

    /// Answers pending requests.
    fn answer(&self, stream: &mut Stream, session: &mut Session) -> Result<Answered, StreamError> {
        stream.flush()?;
        let (mut announced, mut waiting) = (false, false);
        while !stream.is_blocked() {
            let Some(message) = stream.receive()? else { break };
            let Message { header, .. } = message;
            self.shared.requests.fetch_add(1, Ordering::Relaxed);
            waiting |= header.wants_reply;
            let (tail, mut device) = (self.shared.transmit_tail(), self.shared.lock());
            let outcome = session.handle(&mut device, message);
            session.save(&mut device, Some(header.id));
            self.shared.note_activity(&device);
            announced = self.shared.transmit_tail() != tail;
            let is_bad = std::mem::take(&mut device.has_bad_ring);
            drop(device);
            if is_bad {
                self.reports
                    .note(|status| (status.fault, status.faults) = (Some(Fault::Ring), status.faults + 1));
            }
            match outcome {
                _ if !header.wants_reply => {}
                Ok(reply) => {
                    let fd = reply.passes_pages.then(|| self.shared.share_pages());
                    stream.send(&header.reply(&reply.body), fd)?;
                }
                Err(number) => stream.send(&header.error(number), None)?,
            }
            stream.finish()?;
            self.shared.state.note_answered();
        }
        Ok(if announced && !waiting { Answered::Announced } else { Answered::Any })
    }
}
