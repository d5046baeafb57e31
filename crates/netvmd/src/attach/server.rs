// SPDX-License-Identifier: Apache-2.0
//! The attach socket for external NFs, which netvmd does not start. The kernel tells netvmd their user and process.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use netvm_api::EventKind;
use netvm_attach::Hello;
use netvm_engine::{Engine, InstanceId};
use netvm_model::{Host, NfStart};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{SocketFlags, accept_with};
use rustix::process::{PidfdFlags, pidfd_open};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::connection::{Connection, SessionError};
use super::quotas::{Permit, Quotas};
use super::session::{NfSocket, Policy, Session};
use crate::account::Account;
use crate::engine_thread::{EngineGone, EngineHandle, FailedNfs, NfFault};
use crate::events::{Bucket, LogLimit, Rate, more};
use crate::runtime::{Watched, lock, watch};

/// Most connections that are being closed because there are too many. netvmd accepts further ones when these are
/// closed.
const MAX_CLOSING: usize = 512;

/// Time limit for external NFs to end at shutdown, and how often netvmd looks whether they have.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);
const SHUTDOWN_INTERVAL: Duration = Duration::from_millis(20);

/// Log lines about NFs of one user that did not attach.
const LOG_RATE: Rate = Rate { burst: 5, interval: Duration::from_secs(10) };

/// Most characters of a peer's error in the log.
const LOGGED: usize = 300;

/// The attach socket cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve NFs on {path}: {source} (choose another path with --attach)")]
pub struct ListenError {
    /// The socket.
    pub path: PathBuf,
    /// The kernel's error.
    pub source: io::Error,
}

/// An external NF.
#[derive(Clone, Debug)]
pub struct External {
    /// Its role.
    pub role: String,
    /// Its number within the role, from 0.
    pub number: u32,
    /// Its process, in netvmd's PID namespace.
    pub pid: Option<u32>,
    /// When it attached.
    pub attached_at: Instant,
}

/// The external NFs by instance id.
pub type Externals = BTreeMap<InstanceId, External>;

/// The server of the attach socket.
#[derive(Debug)]
pub struct AttachServer {
    engine: EngineHandle,
    externals: Mutex<Externals>,
    quotas: Arc<Quotas>,
    closing: Arc<Semaphore>,
    /// The task that accepts connections.
    accepting: Mutex<Option<JoinHandle<()>>>,
    /// Refused NFs by user.
    refusals: Mutex<BTreeMap<u32, Bucket>>,
}

/// The peer of a connection.
#[derive(Clone, Copy, Debug)]
struct Peer {
    uid: u32,
    pid: Option<rustix::process::Pid>,
}

impl AttachServer {
    /// Serves NFs on `path` until [`AttachServer::shut_down`]. Any user may connect; the peer's uid decides which roles
    /// it may attach as.
    ///
    /// # Errors
    /// [`ListenError`] names the path.
    pub fn start(engine: EngineHandle, path: &Path) -> Result<Arc<Self>, ListenError> {
        let fail = |source| ListenError { path: path.to_owned(), source };
        let listener = netvm_attach::listen(path).map_err(fail)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).map_err(fail)?;
        let listener = watch(listener).map_err(fail)?;
        let server = Arc::new(Self {
            engine,
            externals: Mutex::default(),
            quotas: Arc::default(),
            closing: Arc::new(Semaphore::new(MAX_CLOSING)),
            accepting: Mutex::default(),
            refusals: Mutex::default(),
        });
        *lock(&server.accepting) = Some(tokio::spawn(Arc::clone(&server).accept_all(listener)));
        Ok(server)
    }

    /// The attached external NFs.
    #[must_use]
    pub fn externals(&self) -> Externals {
        lock(&self.externals).clone()
    }

    /// Closes the socket, tells all external NFs to end, and returns when they have left, or their time is over.
    pub async fn shut_down(&self) {
        let accepting = lock(&self.accepting).take();
        if let Some(accepting) = accepting {
            accepting.abort();
            // Aborted, which has closed the socket.
            let _ = accepting.await;
        }
        let all: Vec<InstanceId> = lock(&self.externals).keys().copied().collect();
        self.engine.send(move |engine| all.into_iter().for_each(|id| engine.dismiss(id)));
        let left = async {
            while !lock(&self.externals).is_empty() {
                sleep(SHUTDOWN_INTERVAL).await;
            }
        };
        if timeout(SHUTDOWN_TIMEOUT, left).await.is_err() {
            tracing::warn!("some external NFs did not end in time; they will notice netvmd's end");
        }
    }

    async fn accept_all(self: Arc<Self>, listener: Watched) {
        let failures = LogLimit::default();
        // The semaphore is never closed.
        while let Ok(closing) = Arc::clone(&self.closing).acquire_owned().await {
            match accept(&listener).await {
                Ok(socket) => self.serve(socket, closing),
                Err(error) => {
                    failures.log(|more| tracing::warn!("attach socket: {error}{more}"));
                    // An error such as EMFILE persists: pause before the next attempt.
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Serves a connection. `closing` is for one that netvmd closes at once.
    fn serve(self: &Arc<Self>, socket: OwnedFd, closing: OwnedSemaphorePermit) {
        let peer = match socket_peercred(socket.as_fd()) {
            Ok(credentials) => {
                let pid = Some(credentials.pid).filter(|pid| pid.as_raw_nonzero().get() > 0);
                Peer { uid: credentials.uid.as_raw(), pid }
            }
            Err(error) => {
                tracing::warn!("attach socket: cannot read a peer's credentials: {error}");
                return close(socket, closing);
            }
        };
        let Some(permit) = self.quotas.begin(peer.uid) else {
            tracing::debug!("attach socket: uid {} has too many unfinished handshakes", peer.uid);
            return close(socket, closing);
        };
        let server = Arc::clone(self);
        tokio::spawn(async move {
            let failed = server.engine.failed();
            if let Some(session) = server.handshake(socket, peer, Arc::new(permit)).await {
                server.hold(session, failed, peer).await;
            }
        });
    }

    async fn handshake(&self, socket: OwnedFd, peer: Peer, permit: Arc<Permit>) -> Option<Session> {
        let names = match self.names(peer.uid).await {
            Ok(names) => names,
            Err(error) => {
                self.log(peer, &error.to_string());
                close(socket, permit);
                return None;
            }
        };
        if !permit.decide(!names.is_empty()) {
            tracing::debug!("attach socket: too many connections of users like uid {}", peer.uid);
            close(socket, permit);
            return None;
        }
        let policy = policy(peer.uid, names);
        let pid = peer.pid.map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
        match Session::establish(&self.engine, NfSocket { socket, pid }, policy, Arc::clone(&permit)).await {
            Ok(session) => {
                permit.attached();
                Some(session)
            }
            // Something checked whether netvmd listens; not worth a log line.
            Err(SessionError::Attach(netvm_attach::AttachError::Closed)) => None,
            Err(error) => {
                self.log(peer, &error.to_string());
                None
            }
        }
    }

    /// Logs why an NF did not attach, unless there are too many lines about its user.
    fn log(&self, peer: Peer, error: &str) {
        let now = Instant::now();
        let mut refusals = lock(&self.refusals);
        refusals.retain(|uid, bucket| *uid == peer.uid || !bucket.is_full(now));
        let bucket = refusals.entry(peer.uid).or_insert_with(|| Bucket::new(LOG_RATE, now));
        let Some(suppressed) = bucket.allows(now) else { return };
        let pid = peer.pid.map_or(0, |pid| pid.as_raw_nonzero().get());
        let error: String = netvm_text::line(error).chars().take(LOGGED).collect();
        let more = more(suppressed);
        tracing::warn!("an NF of uid {} (process {pid}) did not attach: {error}{more}", peer.uid);
    }

    /// The entries of `attach_users` that mean a user. A slow user database must not block the runtime, so the query
    /// runs on a blocking thread.
    async fn names(&self, uid: u32) -> Result<BTreeSet<String>, EngineGone> {
        let host = self.engine.call(|engine| engine.shared_host()).await?;
        let names = tokio::task::spawn_blocking(move || names_of(uid, &host)).await;
        Ok(names.unwrap_or_default())
    }

    async fn hold(&self, session: Session, mut failed: FailedNfs, peer: Peer) {
        let number = self.register(&session, peer);
        let role = session.role();
        let message = format!(
            "nf {role}/{number}: external NF {} attached as instance {}",
            session.name(),
            session.id()
        );
        self.engine.events().push(EventKind::NfUp, role, message);
        tokio::select! {
            () = session.closed() => {}
            // A child process may keep the socket open.
            () = ended(peer) => {}
            () = evicted(session.id(), &mut failed) => {
                tracing::warn!(
                    "nf {}/{number}: evicted: it or another NF of its trust group damaged the group's memory",
                    session.role()
                );
            }
        }
        lock(&self.externals).remove(&session.id());
        self.engine.events().push(EventKind::NfDown, role, format!("nf {role}/{number}: left"));
    }

    fn register(&self, session: &Session, peer: Peer) -> u32 {
        let mut externals = lock(&self.externals);
        let taken = |number: u32| externals.values().any(|e| e.role == session.role() && e.number == number);
        let number = (0..=u32::MAX).find(|number| !taken(*number)).unwrap_or(u32::MAX);
        let external = External {
            role: session.role().to_owned(),
            number,
            pid: peer.pid.and_then(|pid| pid.as_raw_nonzero().get().try_into().ok()),
            attached_at: Instant::now(),
        };
        externals.insert(session.id(), external);
        number
    }
}

/// Closes a connection on its own thread, because a peer can make this take long. `until_closed` is dropped afterwards.
fn close<G: Send + 'static>(socket: OwnedFd, until_closed: G) {
    // If no thread can be created, this drops the descriptors here, which may take long.
    let _ = Connection::start(socket, until_closed, |_| {});
}

async fn accept(listener: &Watched) -> io::Result<OwnedFd> {
    loop {
        let mut ready = listener.readable().await?;
        match accept_with(listener.get_ref(), SocketFlags::CLOEXEC) {
            Ok(socket) => return Ok(socket),
            Err(rustix::io::Errno::WOULDBLOCK) => ready.clear_ready(),
            // The peer has closed, or a signal interrupted the call.
            Err(rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits until the engine evicts the instance. Ignores hangs, from which an instance may recover.
async fn evicted(id: InstanceId, failed: &mut FailedNfs) {
    while failed.wait_for(id).await != NfFault::Evicted {}
}

/// Waits for the end of the peer's process; forever if netvmd cannot observe it.
async fn ended(peer: Peer) {
    let pidfd = peer.pid.and_then(|pid| pidfd_open(pid, PidfdFlags::NONBLOCK).ok());
    match pidfd.and_then(|pidfd| watch(pidfd).ok()) {
        Some(pidfd) => {
            let _ = pidfd.readable().await;
        }
        None => std::future::pending().await,
    }
}

/// The entries of `attach_users` that mean this user.
fn names_of(uid: u32, host: &Host) -> BTreeSet<String> {
    let users = host.nfs.iter().flat_map(|nf| match &nf.start {
        NfStart::External { users } => users.as_slice(),
        NfStart::Managed { .. } | NfStart::Ports(_) => &[],
    });
    let users: BTreeSet<&String> = users.collect();
    let is_this = |user: &&&String| Account::find(user).is_ok_and(|account| account.uid == uid);
    users.iter().filter(is_this).map(|user| (*user).clone()).collect()
}

/// The attach policy for a user with these names. Root may attach as every external role.
fn policy(uid: u32, names: BTreeSet<String>) -> Policy {
    Box::new(move |engine: &Engine, hello: &Hello| {
        // The engine refuses unknown roles.
        let Some(nf) = engine.host().nf_named(&hello.role) else { return Ok(false) };
        if nf.pair().is_some() {
            return Err(format!(
                "the packets of role `{}` pass ports: remove its `attach` from the configuration, or attach as another role",
                nf.role
            ));
        }
        let NfStart::External { users } = &nf.start else {
            return Err(format!(
                "netvmd starts the NFs of role `{}` itself: remove its `command` from the configuration, or attach as another role",
                nf.role
            ));
        };
        if uid == 0 || users.iter().any(|user| names.contains(user)) {
            return Ok(false);
        }
        let who = if users.is_empty() {
            "only root".to_owned()
        } else {
            format!("only root, {}", users.join(", "))
        };
        Err(format!(
            "uid {uid} may not attach as `{}`, {who} may: add the user to its `attach_users`",
            nf.role
        ))
    })
}
