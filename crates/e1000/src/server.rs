//! The port's thread: accepts a client, and answers its requests until it goes. One client at a time; another one is
//! refused at once.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::nic::Model;
use crate::ring::Shared;
use crate::status::{Fault, Status};
use crate::vfio::session::{Refused, Session};
use crate::vfio::stream::{Message, Stream, StreamError};

/// State of the thread.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) model: Model,
    pub(crate) listener: UnixListener,
    /// Readable when the thread is to end.
    pub(crate) stop: Arc<OwnedFd>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) status: Arc<Mutex<Status>>,
}

impl Server {
    /// Until the port is closed.
    pub(crate) fn run(&self) {
        loop {
            let mut fds =
                [PollFd::new(&self.stop, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            if !fds[0].revents().is_empty() {
                return;
            }
            let Ok((socket, _)) = self.listener.accept() else { continue };
            let (Ok(stream), Ok(session)) = (Stream::new(socket), Session::new(self.model)) else { continue };
            self.note(|status| *status = Status { is_connected: true, ..*status });
            let fault = self.serve(stream, session);
            {
                let mut device = self.shared.lock();
                device.disconnect();
                self.shared.note_activity(&device);
            }
            self.note(|status| {
                status.is_connected = false;
                if let Some(fault) = fault {
                    (status.fault, status.faults) = (Some(fault), status.faults + 1);
                }
            });
        }
    }

    fn note(&self, change: impl FnOnce(&mut Status)) {
        change(&mut self.status.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Serves a client until it goes; returns its fault, if it had to be disconnected.
    fn serve(&self, mut stream: Stream, mut session: Session) -> Option<Fault> {
        loop {
            let wanted = if stream.is_blocked() { PollFlags::OUT } else { PollFlags::IN };
            let (stops, comes, unmasks) = {
                let mut fds = [
                    PollFd::new(&self.stop, PollFlags::IN),
                    PollFd::new(&self.listener, PollFlags::IN),
                    PollFd::from_borrowed_fd(session.unmasks(), PollFlags::IN),
                    PollFd::new(&stream, wanted),
                ];
                match poll(&mut fds, None) {
                    Ok(_) => {}
                    Err(Errno::INTR) => continue,
                    Err(_) => return None,
                }
                let is_ready = |n: usize| fds.get(n).is_some_and(|fd| !fd.revents().is_empty());
                (is_ready(0), is_ready(1), is_ready(2))
            };
            if stops {
                return None;
            }
            if comes {
                // Closes it.
                drop(self.listener.accept());
            }
            if unmasks {
                let mut device = self.shared.lock();
                session.unmask(&mut device);
                self.shared.note_activity(&device);
            }
            match self.answer(&mut stream, &mut session) {
                Ok(()) => {}
                Err(StreamError::Closed) => return None,
                Err(StreamError::Protocol) => return Some(Fault::Protocol),
            }
            match session.refused.take() {
                Some(Refused::NotAnEventfd) => return Some(Fault::NotAnEventfd),
                Some(Refused::Memory(error)) => return Some(error.into()),
                None => {}
            }
        }
    }

    /// Answers pending requests.
    fn answer(&self, stream: &mut Stream, session: &mut Session) -> Result<(), StreamError> {
        stream.flush()?;
        while !stream.is_blocked() {
            let Some(message) = stream.receive()? else { break };
            let Message { header, .. } = message;
            self.shared.requests.fetch_add(1, Ordering::Relaxed);
            let mut device = self.shared.lock();
            let outcome = session.handle(&mut device, message);
            self.shared.note_activity(&device);
            let pages = Arc::clone(&device.pages);
            let is_bad = std::mem::take(&mut device.has_bad_ring);
            drop(device);
            if is_bad {
                self.note(|status| (status.fault, status.faults) = (Some(Fault::Ring), status.faults + 1));
            }
            if !header.wants_reply {
                continue;
            }
            match outcome {
                Ok(reply) => {
                    let fd = reply.passes_pages.then(|| pages.file());
                    stream.send(&header.reply(&reply.body), fd)?;
                }
                Err(number) => stream.send(&header.error(number), None)?,
            }
        }
        Ok(())
    }
}
