// SPDX-License-Identifier: Apache-2.0
//! The port's thread: has the socket, and one peer at a time. As a server it refuses other peers at once, and notes
//! them; as a client it connects again when its server has gone.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netvm_guest_socket::{Accepted, Listener, Peer, RETRY_INTERVAL, Reports, is_gone};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::link::Link;
use crate::options::Options;
use crate::protocol::{Channel, Message, connect};
use crate::queue::Shared;
use crate::session::{Session, Step};
use crate::status::{End, Fault, Status};

/// By then a peer is connected, or it is disconnected: it keeps nobody out.
const HANDSHAKE_TIME: Duration = Duration::from_secs(1);
/// How long a client waits before it connects again, at first and at last.
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(1);
/// How often the thread looks whether workers still use the memory of peers that have gone.
const RELEASE_INTERVAL: Duration = Duration::from_millis(100);

/// State of the thread.
#[derive(Debug)]
pub(crate) struct Thread {
    options: Options,
    /// Of a server.
    listener: Option<Listener>,
    shared: Arc<Shared>,
    reports: Reports<Status>,
    peer: Option<Connection>,
    /// What workers use now.
    link: Option<Arc<Link>>,
    /// Memory of peers that have gone, which workers may still use.
    retired: Vec<Arc<Link>>,
    /// When to accept or connect again.
    retry_at: Option<Instant>,
    retry_after: Duration,
}

/// A peer.
#[derive(Debug)]
struct Connection {
    channel: Channel,
    session: Session,
    began: Instant,
}

/// What poll(2) has found.
#[derive(Clone, Copy, Debug, Default)]
struct Events {
    stops: bool,
    is_alarmed: bool,
    comes: bool,
    speaks: bool,
}

impl Thread {
    pub(crate) const fn new(
        options: Options,
        listener: Option<Listener>,
        shared: Arc<Shared>,
        reports: Reports<Status>,
    ) -> Self {
        Self {
            options,
            listener,
            shared,
            reports,
            peer: None,
            link: None,
            retired: Vec::new(),
            retry_at: None,
            retry_after: FIRST_RETRY,
        }
    }

    /// Until the port is closed.
    pub(crate) fn run(mut self) {
        loop {
            if self.listener.is_none() && self.peer.is_none() && self.is_due() {
                self.connect();
            }
            let events = match self.wait() {
                Ok(events) => events,
                Err(Errno::INTR) => continue,
                Err(_) => return,
            };
            if events.stops {
                if let Some(peer) = &self.peer {
                    let text = "the port is closed".to_owned();
                    let _ = peer.channel.send(&Message::Disconnect { text }, None);
                }
                self.end(&End::Gone);
                return;
            }
            if events.is_alarmed {
                let _ = rustix::io::read(&*self.shared.alarm, &mut [0; 8]);
                self.end_broken();
            }
            if events.speaks {
                self.listen();
            }
            let is_late =
                |peer: &Connection| !peer.session.is_connected() && peer.began.elapsed() >= HANDSHAKE_TIME;
            if self.peer.as_ref().is_some_and(is_late) {
                self.end(&End::Fault(Fault::Silent));
            }
            if events.comes {
                self.accept();
            }
            // A worker that has let go of one will never take it again.
            self.retired.retain(|link| Arc::strong_count(link) > 1);
        }
    }

    /// Waits for something to do.
    fn wait(&mut self) -> Result<Events, Errno> {
        let now = Instant::now();
        self.retry_at.take_if(|at| *at <= now);
        let deadline = self.peer.as_ref().filter(|peer| !peer.session.is_connected());
        let deadline = deadline.map(|peer| peer.began + HANDSHAKE_TIME);
        let release = (!self.retired.is_empty()).then(|| now + RELEASE_INTERVAL);
        let client = (self.listener.is_none() && self.peer.is_none()).then(|| self.retry_at.unwrap_or(now));
        let next = [self.retry_at, deadline, release, client].into_iter().flatten().min();
        let left = next.and_then(|next| Timespec::try_from(next.saturating_duration_since(now)).ok());
        let stop = &self.reports.stop;
        // A descriptor that is not there is replaced by one without events.
        let wanted = |is_there| if is_there { PollFlags::IN } else { PollFlags::empty() };
        let accepts = self.listener.as_ref().filter(|_| self.retry_at.is_none());
        let (listener, channel) = (
            self.listener.as_ref().map_or_else(|| stop.as_fd(), |listener| listener.as_fd()),
            self.peer.as_ref().map_or_else(|| stop.as_fd(), |peer| peer.channel.as_fd()),
        );
        let mut fds = [
            PollFd::new(stop, PollFlags::IN),
            PollFd::new(&self.shared.alarm, PollFlags::IN),
            PollFd::from_borrowed_fd(listener, wanted(accepts.is_some())),
            PollFd::from_borrowed_fd(channel, wanted(self.peer.is_some())),
        ];
        poll(&mut fds, left.as_ref())?;
        let is_ready = |n: usize| fds.get(n).is_some_and(|fd| !fd.revents().is_empty());
        let (comes, speaks) = (accepts.is_some() && is_ready(2), self.peer.is_some() && is_ready(3));
        Ok(Events { stops: is_ready(0), is_alarmed: is_ready(1), comes, speaks })
    }

    fn is_due(&self) -> bool {
        self.retry_at.is_none_or(|at| at <= Instant::now())
    }

    /// As a client: connects, or tries again later.
    fn connect(&mut self) {
        match connect(&self.options.path) {
            Ok(socket) => {
                self.reports.note(|status| status.unreachable = None);
                self.begin(socket);
            }
            Err(error) => {
                let why = match error {
                    Errno::NOENT => "it does not exist: start the server that creates it".to_owned(),
                    Errno::CONNREFUSED => "nothing listens on it: start its server again".to_owned(),
                    Errno::PROTOTYPE => {
                        "another kind of program listens on it: choose another path".to_owned()
                    }
                    Errno::ACCESS => "netvmd may not write to it: change its owner or mode".to_owned(),
                    error => error.to_string(),
                };
                self.reports.note(|status| status.unreachable = Some(why));
                self.retry_later();
            }
        }
    }

    fn retry_later(&mut self) {
        self.retry_at = Some(Instant::now() + self.retry_after);
        self.retry_after = (2 * self.retry_after).min(LAST_RETRY);
    }

    /// As a server: takes a new peer if there is none.
    fn accept(&mut self) {
        // A peer that takes the place of this one may come before this thread has noticed its end.
        if self.peer.as_ref().is_some_and(|peer| is_gone(&peer.channel)) {
            self.end(&End::Gone);
        }
        match self.listener.as_ref().map(Listener::accept) {
            Some(Accepted::Connection(socket)) => match &self.peer {
                Some(holder) => {
                    self.reports.refused_peers.note(Peer::of(&socket), Peer::of(&holder.channel));
                    let text = "another peer is connected".to_owned();
                    let _ = Channel::from(socket).send(&Message::Disconnect { text }, None);
                }
                None => self.begin(socket),
            },
            Some(Accepted::Failed) => self.retry_at = Some(Instant::now() + RETRY_INTERVAL),
            Some(Accepted::Nothing | Accepted::Refused) | None => {}
        }
    }

    /// Begins a connection.
    fn begin(&mut self, socket: UnixStream) {
        let (session, first) = Session::new(&self.options, &self.shared.alarm);
        self.peer = Some(Connection { channel: socket.into(), session, began: Instant::now() });
        if let Err(end) = self.follow(first) {
            self.end(&end);
        }
    }

    /// Handles the messages that wait.
    fn listen(&mut self) {
        // Each message of an honest peer needs an answer before the next one.
        const AT_ONCE: usize = 16;
        for _ in 0..AT_ONCE {
            let Some(peer) = &mut self.peer else { return };
            let step = match peer.channel.receive() {
                Ok(None) => return,
                // A peer that says so before it goes is no problem.
                Ok(Some((Message::Disconnect { .. }, _))) if peer.session.is_connected() => Err(End::Gone),
                Ok(Some((message, fd))) => peer.session.handle(message, fd).map_err(End::from),
                Err(error) => Err(error.into()),
            };
            if let Err(end) = step.and_then(|step| self.follow(step)) {
                self.end(&end);
            }
        }
    }

    /// Does what follows from a message.
    fn follow(&mut self, step: Step) -> Result<(), End> {
        let is_up = step.link.is_some();
        if let Some(link) = step.link {
            link.begin();
            self.exchange(Some(Arc::new(link)));
            self.retry_after = FIRST_RETRY;
        }
        if let (Some((message, fd)), Some(peer)) = (step.answer, &self.peer) {
            peer.channel.send(&message, fd.as_ref().map(AsFd::as_fd))?;
        }
        if is_up {
            self.reports.note(|status| {
                status.connections = status.connections.wrapping_add(1);
                (status.is_connected, status.fault) = (true, None);
            });
        }
        Ok(())
    }

    /// Gives the workers another connection, and keeps the one before until they have let go of it.
    fn exchange(&mut self, link: Option<Arc<Link>>) {
        self.retired.extend(std::mem::replace(&mut self.link, link.clone()));
        drop(self.shared.exchange(link));
    }

    /// Ends the connection if its peer has broken a rule of the rings.
    fn end_broken(&mut self) {
        if self.link.as_ref().is_some_and(|link| link.is_broken()) {
            self.end(&End::Fault(Fault::Ring));
        }
    }

    /// Ends the connection.
    fn end(&mut self, end: &End) {
        self.exchange(None);
        let Some(peer) = self.peer.take() else { return };
        if let End::Fault(fault) = end {
            let text = fault.to_string();
            // It may have gone already.
            let _ = peer.channel.send(&Message::Disconnect { text }, None);
        }
        self.reports.note(|status| {
            status.is_connected = false;
            if let End::Fault(fault) = end {
                status.note_fault(fault.clone());
            }
        });
        if self.listener.is_none() {
            self.retry_later();
        }
    }
}
