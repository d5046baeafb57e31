// SPDX-License-Identifier: Apache-2.0
//! The session of an NF: handshake, admission to the engine, and end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use netvm_attach::{Answer, AttachError, Fds, Hello, Ready};
use netvm_engine::{Engine, InstanceId};
use tokio::sync::{oneshot, watch};

use super::connection::{Connection, Hold, SessionError};
use crate::engine_thread::EngineHandle;
use crate::messages::{Address, Member, Transport};

/// Decides on an NF's admission: `Ok(true)` as a standby, `Err` with the reason of a refusal. Runs on the engine's
/// thread.
pub type Policy = Box<dyn FnOnce(&Engine, &Hello) -> Result<bool, String> + Send>;

/// An attached NF. Dropping it reclaims its buffers and ids: drop it after the process has ended.
#[derive(Debug)]
pub struct Session {
    attached: Attached,
    /// The sender is dropped when the NF closes its socket.
    closed: watch::Receiver<()>,
    _hold: Hold,
}

/// An NF that has sent its ready message.
#[derive(Debug)]
struct Attached {
    admitted: Admitted,
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

/// A connection from an NF.
#[derive(Debug)]
pub struct NfSocket {
    /// The socket.
    pub socket: OwnedFd,
    /// The NF's process, if known.
    pub pid: Option<u32>,
}

impl Session {
    /// Performs the handshake with the NF of this process: admits it if `policy` permits, and waits for its ready
    /// message. `until_closed` is dropped when the connection is closed for good, which may be long after the session's
    /// end.
    ///
    /// # Errors
    /// [`SessionError`]. netvmd sends the reason to the NF if the connection is open, and the engine forgets the NF.
    pub async fn establish<G: Send + 'static>(
        engine: &EngineHandle,
        nf: NfSocket,
        policy: Policy,
        until_closed: G,
    ) -> Result<Self, SessionError> {
        let NfSocket { socket, pid } = nf;
        let (report, outcome) = oneshot::channel();
        let (open, closed) = watch::channel(());
        let engine = engine.clone();
        let hold = Connection::start(socket, until_closed, move |connection| {
            let outcome = attach(connection, pid, &engine, policy);
            let id = outcome.as_ref().ok().map(|attached| attached.admitted.id);
            // If sending fails, the receiver is gone: the outcome, and the admitted instance in it, is dropped.
            if report.send(outcome).is_ok()
                && let Some(id) = id
            {
                connection.serve(|request| std::thread::sleep(engine.messages().take(id, request)));
            }
            // Before the connection closes: others have its socket.
            id.into_iter().for_each(|id| engine.messages().leave(id));
            drop(open);
        })?;
        let attached = outcome.await.map_err(|_| AttachError::Closed)??;
        Ok(Self { attached, closed, _hold: hold })
    }

    /// Its instance id in the engine.
    #[must_use]
    pub const fn id(&self) -> InstanceId {
        self.attached.admitted.id
    }

    /// Its role.
    #[must_use]
    pub fn role(&self) -> &str {
        &self.attached.role
    }

    /// The program's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.attached.name
    }

    /// Its number of threads.
    #[must_use]
    pub const fn threads(&self) -> u16 {
        self.attached.threads
    }

    /// Asks the NF to forward the packets that it holds and to end.
    pub fn dismiss(&self) {
        let id = self.id();
        self.attached.admitted.engine.send(move |engine| engine.dismiss(id));
    }

    /// Waits until the NF closes its socket.
    pub async fn closed(&self) {
        // The sender sends nothing; it is dropped when the NF closes.
        while self.closed.clone().changed().await.is_ok() {}
    }
}

/// The handshake, on the connection's thread.
fn attach(
    connection: &Connection,
    pid: Option<u32>,
    engine: &EngineHandle,
    policy: Policy,
) -> Result<Attached, SessionError> {
    let mut hello: Hello = connection.message("Hello")?;
    // Names appear in the log.
    (hello.role, hello.name) = (netvm_attach::printable(&hello.role), netvm_attach::printable(&hello.name));
    let (role, name, threads) = (hello.role.clone(), hello.name.clone(), hello.threads);
    let admitted = match admit(engine, hello, policy)? {
        Ok((admitted, fds)) => {
            netvm_attach::welcome(connection.socket(), &borrowed(&fds))?;
            admitted
        }
        Err(reason) => {
            // The NF may have closed.
            let _ = netvm_attach::send(connection.socket(), &Answer::Refused { reason: reason.clone() }, &[]);
            return Err(SessionError::Refused(reason));
        }
    };
    let _: Ready = connection.message("Ready")?;
    let (id, of) = (admitted.id, role.clone());
    let group = engine.call_blocking(move |engine| {
        if let Some(pid) = pid {
            engine.set_process(id, pid);
        }
        engine.activate(id);
        engine.host().nf_named(&of).map(|nf| (nf.id, nf.group))
    })?;
    if let Some((number, group)) = group {
        let socket = Arc::clone(connection.socket());
        let address = Address { role: role.clone(), number, group };
        engine.messages().join(id, Member::new(address, Transport::Socket(socket)));
    }
    Ok(Attached { admitted, role, name, threads })
}

/// An admitted NF and the descriptors for it, or the reason of a refusal.
type Admission = Result<(Admitted, Fds<OwnedFd>), String>;

fn admit(engine: &EngineHandle, hello: Hello, policy: Policy) -> Result<Admission, SessionError> {
    let handle = engine.clone();
    let outcome = engine.call_blocking(move |engine| {
        let standby = match policy(engine, &hello) {
            Ok(standby) => standby,
            Err(reason) => return Ok(Err(reason)),
        };
        let id = match engine.admit(&hello, standby) {
            Ok(id) => id,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let admitted = Admitted { id, engine: handle };
        let Some(fds) = engine.descriptors(id) else {
            return Ok(Err("its trust group is being removed: attach again later".to_owned()));
        };
        Ok(Ok((admitted, owned(&fds)?)))
    });
    outcome?
}

/// Copies of descriptors, for another thread.
fn owned(fds: &Fds<BorrowedFd<'_>>) -> io::Result<Fds<OwnedFd>> {
    let all =
        |fds: &[BorrowedFd<'_>]| fds.iter().map(BorrowedFd::try_clone_to_owned).collect::<io::Result<_>>();
    Ok(Fds {
        control: fds.control.try_clone_to_owned()?,
        table: fds.table.try_clone_to_owned()?,
        regions: all(&fds.regions)?,
        workers: all(&fds.workers)?,
        nf_threads: all(&fds.nf_threads)?,
    })
}

fn borrowed(fds: &Fds<OwnedFd>) -> Fds<BorrowedFd<'_>> {
    Fds {
        control: fds.control.as_fd(),
        table: fds.table.as_fd(),
        regions: fds.regions.iter().map(AsFd::as_fd).collect(),
        workers: fds.workers.iter().map(AsFd::as_fd).collect(),
        nf_threads: fds.nf_threads.iter().map(AsFd::as_fd).collect(),
    }
}
