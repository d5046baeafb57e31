// SPDX-License-Identifier: Apache-2.0
//! The connection of an NF, on its own thread. A peer can send descriptors that take arbitrarily long to close, such as
//! a TCP socket with SO_LINGER or a file of a FUSE server. The kernel closes them in the thread that receives from the
//! connection or closes it. So only this thread does both, and nothing waits for it.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use netvm_attach::AttachError;
use netvm_attach::messages::Request;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde::de::DeserializeOwned;

use crate::engine_thread::EngineGone;

/// Time limit for each message of an NF.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);

/// An NF did not attach.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// A message is overdue.
    #[error("no {what} within {} s: does the program use netlib, and does it start?", MESSAGE_TIMEOUT.as_secs())]
    Silent {
        /// The message.
        what: &'static str,
    },
    /// The connection closed, or the peer violated the protocol.
    #[error("{}", of_the_nf(.0))]
    Attach(#[from] AttachError),
    /// The policy or the engine refused it.
    #[error("refused: {0}")]
    Refused(String),
    /// The engine has ended.
    #[error(transparent)]
    Engine(#[from] EngineGone),
}

/// Attach errors worded for netvmd's log; their own texts are for NFs.
fn of_the_nf(error: &AttachError) -> String {
    match error {
        AttachError::Closed => "it closed its attach socket before it was ready".to_owned(),
        other => other.to_string(),
    }
}

impl From<io::Error> for SessionError {
    fn from(error: io::Error) -> Self {
        Self::Attach(error.into())
    }
}

/// The thread's end of a connection.
pub(super) struct Connection {
    /// Shared with those who send messages, until [`Connection::serve`] returns.
    socket: Arc<OwnedFd>,
    /// Signals POLLHUP when the NF's session no longer needs the connection.
    hold: PipeReader,
}

/// Keeps the connection open; dropping it wakes the thread, which closes the connection.
#[derive(Debug)]
pub(super) struct Hold(#[expect(dead_code, reason = "closed on drop")] PipeWriter);

/// Why the thread woke up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitResult {
    /// The socket is readable or closed.
    Readable,
    /// The [`Hold`] was dropped.
    Released,
    Overdue,
}

impl Connection {
    /// Runs `serve` with the connection on a new thread. The thread drops the connection last, together with
    /// `until_closed`.
    pub(super) fn start<G: Send + 'static>(
        socket: OwnedFd,
        until_closed: G,
        serve: impl FnOnce(&Self) + Send + 'static,
    ) -> io::Result<Hold> {
        let (hold, writer) = io::pipe()?;
        rustix::io::ioctl_fionbio(&socket, false)?;
        set_socket_timeout(&socket, Timeout::Send, Some(MESSAGE_TIMEOUT))?;
        let connection = Self { socket: Arc::new(socket), hold };
        thread::Builder::new().name("netvm-attach".to_owned()).spawn(move || {
            serve(&connection);
            drop(connection);
            drop(until_closed);
        })?;
        Ok(Hold(writer))
    }

    /// The socket.
    pub(super) const fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// The next message.
    pub(super) fn message<M: DeserializeOwned>(&self, what: &'static str) -> Result<M, SessionError> {
        match self.wait(Some(Instant::now() + MESSAGE_TIMEOUT)) {
            WaitResult::Readable => Ok(netvm_attach::receive_bare(&*self.socket)?),
            WaitResult::Released => Err(AttachError::Closed.into()),
            WaitResult::Overdue => Err(SessionError::Silent { what }),
        }
    }

    /// Passes on what the peer sends until it closes its end or violates the protocol, or the [`Hold`] is dropped.
    pub(super) fn serve(&self, mut request: impl FnMut(Request)) {
        while self.wait(None) == WaitResult::Readable {
            match netvm_attach::receive_bare(&*self.socket) {
                Ok(sent) => request(sent),
                Err(_) => return,
            }
        }
    }

    fn wait(&self, until: Option<Instant>) -> WaitResult {
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            let mut fds = [
                PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.hold.as_fd(), PollFlags::IN),
            ];
            match poll(&mut fds, left.as_ref()) {
                Ok(0) => return WaitResult::Overdue,
                Ok(_) if fds[1].revents().is_empty() => return WaitResult::Readable,
                Err(Errno::INTR) => {}
                // Unexpected: gives up the connection.
                Ok(_) | Err(_) => return WaitResult::Released,
            }
        }
    }
}
