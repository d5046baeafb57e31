//! What netvmd does when told by a signal.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// To end in order (SIGTERM, SIGINT).
    End,
    /// To apply the configuration file anew (SIGHUP).
    Reload,
}

/// The signals that netvmd listens to.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    /// From now on these signals no longer end the process.
    ///
    /// # Errors
    /// The kernel's.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// The next request.
    pub async fn next(&mut self) -> Request {
        tokio::select! {
            _ = self.terminate.recv() => Request::End,
            _ = self.interrupt.recv() => Request::End,
            _ = self.hang_up.recv() => Request::Reload,
        }
    }
}
