//! The session of an NF: handshake, admission to the engine, and end.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use netvm_attach::{Answer, AttachError, Hello, Ready};
use netvm_engine::{Engine, InstanceId};
use rustix::net::RecvFlags;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::engine_thread::{EngineGone, EngineHandle};
use crate::runtime::{Watched, watch};

/// Limit for each message of an NF.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);

/// An NF did not attach.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// A message is overdue.
    #[error("no {what} within {} s: it may not use netlib, or hang at its start", MESSAGE_TIMEOUT.as_secs())]
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

/// Decides on an NF's admission: `Ok(true)` as a standby, `Err` with the reason of a refusal. Runs on the engine's
/// thread.
pub type Policy = Box<dyn FnOnce(&Engine, &Hello) -> Result<bool, String> + Send>;

/// An attached NF. Dropping it reclaims its buffers and ids: drop it after the process has ended.
#[derive(Debug)]
pub struct Session {
    admitted: Admitted,
    socket: Watched,
    role: String,
    name: String,
    threads: u16,
}

/// An NF's instance in the engine.
#[derive(Debug)]
struct Admitted {
    id: InstanceId,
    engine: EngineHandle,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let id = self.id;
        self.engine.send(move |engine| engine.departed(id));
    }
}

impl Session {
    /// Performs the handshake: admits the NF if `policy` permits, and waits for its ready message.
    ///
    /// # Errors
    /// [`SessionError`]; the NF gets the reason if it still listens, and the engine keeps nothing of it.
    pub async fn establish(
        engine: &EngineHandle,
        socket: OwnedFd,
        policy: Policy,
    ) -> Result<Self, SessionError> {
        rustix::io::ioctl_fionbio(&socket, true).map_err(io::Error::from)?;
        let socket = watch(socket)?;
        let mut hello: Hello = message(&socket, "Hello").await?;
        // Names go to the log.
        (hello.role, hello.name) = (printable(&hello.role), printable(&hello.name));
        let (role, name, threads) = (hello.role.clone(), hello.name.clone(), hello.threads);
        let admitted = admit(engine, Arc::clone(socket.get_ref()), hello, policy).await?;
        let _: Ready = message(&socket, "Ready").await?;
        let id = admitted.id;
        engine.call(move |engine| engine.activate(id)).await?;
        Ok(Self { admitted, socket, role, name, threads })
    }

    /// Its instance id in the engine.
    #[must_use]
    pub const fn id(&self) -> InstanceId {
        self.admitted.id
    }

    /// Its role.
    #[must_use]
    pub fn role(&self) -> &str {
        &self.role
    }

    /// The program's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number of threads.
    #[must_use]
    pub const fn threads(&self) -> u16 {
        self.threads
    }

    /// Asks it to forward the packets that it holds and to end.
    pub fn dismiss(&self) {
        let id = self.id();
        self.admitted.engine.send(move |engine| engine.dismiss(id));
    }

    /// Waits until the NF closes its socket. A message after the handshake counts as closing.
    pub async fn closed(&self) {
        // An error: the runtime is shutting down.
        while let Ok(mut ready) = self.socket.readable().await {
            match rustix::net::recv(self.socket.get_ref(), &mut [0; 1], RecvFlags::DONTWAIT) {
                Err(rustix::io::Errno::WOULDBLOCK) => ready.clear_ready(),
                Err(rustix::io::Errno::INTR) => {}
                _ => break,
            }
        }
    }
}

/// A name safe for the log: one line, no control characters, not too long.
fn printable(name: &str) -> String {
    name.chars().take(64).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

async fn message<M: DeserializeOwned>(socket: &Watched, what: &'static str) -> Result<M, SessionError> {
    let receive = async {
        loop {
            let mut ready = socket.readable().await?;
            match netvm_attach::receive::<M>(socket.get_ref()) {
                Err(AttachError::Socket(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready.clear_ready();
                }
                // Closes descriptors that the NF passes: it should pass none.
                outcome => return Ok::<M, SessionError>(outcome?.0),
            }
        }
    };
    timeout(MESSAGE_TIMEOUT, receive).await.map_err(|_| SessionError::Silent { what })?
}

async fn admit(
    engine: &EngineHandle,
    socket: Arc<OwnedFd>,
    hello: Hello,
    policy: Policy,
) -> Result<Admitted, SessionError> {
    let handle = engine.clone();
    let outcome = engine.call(move |engine| {
        let standby = match policy(engine, &hello) {
            Ok(standby) => standby,
            Err(reason) => return Err(refuse(&socket, reason)),
        };
        let id = match engine.admit(&hello, standby) {
            Ok(id) => id,
            Err(error) => return Err(refuse(&socket, error.to_string())),
        };
        let admitted = Admitted { id, engine: handle };
        match engine.descriptors(id) {
            Some(fds) => netvm_attach::welcome(&socket, &fds)?,
            None => {
                return Err(refuse(
                    &socket,
                    "its trust group is being removed: attach again later".to_owned(),
                ));
            }
        }
        Ok(admitted)
    });
    outcome.await?
}

fn refuse(socket: &OwnedFd, reason: String) -> SessionError {
    // The NF may have closed.
    let _ = netvm_attach::send(socket, &Answer::Refused { reason: reason.clone() }, &[]);
    SessionError::Refused(reason)
}
