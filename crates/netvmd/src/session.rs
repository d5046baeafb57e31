//! One NF that attaches, from its first word to its end.

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
use crate::readiness::{Watched, watch};

/// How long an NF may take for each of its messages.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why an NF did not get in.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// It said nothing.
    #[error("it did not say {what} within {} s: it may not use netlib, or hang at its start", PATIENCE.as_secs())]
    Silent {
        /// What was due.
        what: &'static str,
    },
    /// Its connection ended, or it does not speak the protocol.
    #[error("{}", of_the_nf(.0))]
    Attach(#[from] AttachError),
    /// It may not, or cannot.
    #[error("refused: {0}")]
    Refused(String),
    /// No engine.
    #[error(transparent)]
    Engine(#[from] EngineGone),
}

/// The words of the attach protocol are for NFs; these are for netvmd.
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

/// What is known of an NF before it is let in; says whether it waits as a standby, or why it may not come in. Called on
/// the engine's thread.
pub type Policy = Box<dyn FnOnce(&Engine, &Hello) -> Result<bool, String> + Send>;

/// An NF that has attached. Dropping it takes its place, its buffers and its numbers back: to be done when its process has
/// gone.
#[derive(Debug)]
pub struct Session {
    admitted: Admitted,
    socket: Watched,
    role: String,
    name: String,
    threads: u16,
}

/// An NF's place in the engine.
#[derive(Debug)]
struct Admitted {
    id: InstanceId,
    engine: EngineHandle,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let id = self.id;
        self.engine.tell(move |engine| engine.departed(id));
    }
}

impl Session {
    /// Hears an NF, lets it in if `policy` does, and waits until it is ready.
    ///
    /// # Errors
    /// [`SessionError`]; the NF was told why, where it listens, and nothing of it is left in the engine.
    pub async fn establish(
        engine: &EngineHandle,
        socket: OwnedFd,
        policy: Policy,
    ) -> Result<Self, SessionError> {
        rustix::io::ioctl_fionbio(&socket, true).map_err(io::Error::from)?;
        let socket = watch(socket)?;
        let mut hello: Hello = message(&socket, "Hello").await?;
        // These go to the log.
        (hello.role, hello.name) = (for_people(&hello.role), for_people(&hello.name));
        let (role, name, threads) = (hello.role.clone(), hello.name.clone(), hello.threads);
        let admitted = admit(engine, Arc::clone(socket.get_ref()), hello, policy).await?;
        let _: Ready = message(&socket, "Ready").await?;
        let id = admitted.id;
        engine.call(move |engine| engine.activate(id)).await?;
        Ok(Self { admitted, socket, role, name, threads })
    }

    /// Its number in the engine.
    #[must_use]
    pub const fn id(&self) -> InstanceId {
        self.admitted.id
    }

    /// The role under which it answers.
    #[must_use]
    pub fn role(&self) -> &str {
        &self.role
    }

    /// The program's name for itself.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many threads it has.
    #[must_use]
    pub const fn threads(&self) -> u16 {
        self.threads
    }

    /// Asks it to send on what it has and to end.
    pub fn dismiss(&self) {
        let id = self.id();
        self.admitted.engine.tell(move |engine| engine.dismiss(id));
    }

    /// Returns when the NF has closed its socket, by ending or otherwise. A ready NF has nothing more to say: one that
    /// does is taken for one that has closed.
    pub async fn closed(&self) {
        // An error of readiness is one of the runtime, which is then ending.
        while let Ok(mut ready) = self.socket.readable().await {
            match rustix::net::recv(self.socket.get_ref(), &mut [0; 1], RecvFlags::DONTWAIT) {
                Err(rustix::io::Errno::WOULDBLOCK) => ready.clear_ready(),
                Err(rustix::io::Errno::INTR) => {}
                _ => break,
            }
        }
    }
}

/// A name as it may be shown: of one line, without control characters, not too long.
fn for_people(name: &str) -> String {
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
                // An NF has no descriptors to pass; such are closed here.
                outcome => return Ok::<M, SessionError>(outcome?.0),
            }
        }
    };
    timeout(PATIENCE, receive).await.map_err(|_| SessionError::Silent { what })?
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
    // The NF may have gone; it is refused all the same.
    let _ = netvm_attach::send(socket, &Answer::Refused { reason: reason.clone() }, &[]);
    SessionError::Refused(reason)
}
