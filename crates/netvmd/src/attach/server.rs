//! The attach socket for external NFs, which netvmd does not start. The kernel provides their user and process.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use netvm_attach::Hello;
use netvm_config::model::{Host, NfStart};
use netvm_engine::{Engine, InstanceId};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{SocketFlags, accept_with};
use rustix::process::{PidfdFlags, pidfd_open};

use super::session::{Policy, Session, SessionError};
use crate::account::Account;
use crate::engine_thread::{EngineGone, EngineHandle, FailedNfs, NfFault};
use crate::runtime::{Watched, watch};

/// Most concurrent handshakes of a user; netvmd closes further connections, so that no user can block others.
const MAX_HANDSHAKES: usize = 16;

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
    /// Handshakes in progress by user.
    handshakes: Mutex<BTreeMap<u32, usize>>,
}

/// The peer of a connection.
#[derive(Clone, Copy, Debug)]
struct Peer {
    uid: u32,
    pid: Option<rustix::process::Pid>,
}

impl AttachServer {
    /// Serves NFs on `path` until the runtime ends. Any user may connect; the peer's uid decides which roles it may
    /// attach as.
    ///
    /// # Errors
    /// [`ListenError`] names the path.
    pub fn start(engine: EngineHandle, path: &Path) -> Result<Arc<Self>, ListenError> {
        let fail = |source| ListenError { path: path.to_owned(), source };
        let listener = netvm_attach::listen(path).map_err(fail)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).map_err(fail)?;
        let listener = watch(listener).map_err(fail)?;
        let server = Arc::new(Self { engine, externals: Mutex::default(), handshakes: Mutex::default() });
        tokio::spawn(Arc::clone(&server).accept_all(listener));
        Ok(server)
    }

    /// The attached external NFs.
    #[must_use]
    pub fn externals(&self) -> Externals {
        self.lock().clone()
    }

    async fn accept_all(self: Arc<Self>, listener: Watched) {
        loop {
            match accept(&listener).await {
                Ok(socket) => self.serve(socket),
                Err(error) => {
                    tracing::warn!("attach socket: {error}");
                    // Such as EMFILE: trying again at once would not help.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn serve(self: &Arc<Self>, socket: OwnedFd) {
        let peer = match socket_peercred(socket.as_fd()) {
            Ok(credentials) => {
                let pid = Some(credentials.pid).filter(|pid| pid.as_raw_nonzero().get() > 0);
                Peer { uid: credentials.uid.as_raw(), pid }
            }
            Err(error) => {
                tracing::warn!("attach socket: cannot read a peer's credentials: {error}");
                return;
            }
        };
        let Some(handshake) = Handshake::begin(Arc::clone(self), peer.uid) else {
            tracing::debug!("attach socket: uid {} has too many unfinished handshakes", peer.uid);
            return;
        };
        let server = Arc::clone(self);
        tokio::spawn(async move {
            let failed = server.engine.failed();
            let session = server.handshake(socket, peer).await;
            drop(handshake);
            if let Some(session) = session {
                server.hold((session, failed), peer).await;
            }
        });
    }

    async fn handshake(&self, socket: OwnedFd, peer: Peer) -> Option<Session> {
        let policy = match self.policy(peer.uid).await {
            Ok(policy) => policy,
            Err(error) => {
                tracing::warn!("an NF of uid {} did not attach: {error}", peer.uid);
                return None;
            }
        };
        match Session::establish(&self.engine, socket, policy).await {
            Ok(session) => Some(session),
            // A probe whether netvmd listens; not worth a log line.
            Err(SessionError::Attach(netvm_attach::AttachError::Closed)) => None,
            Err(error) => {
                let pid = peer.pid.map_or(0, |pid| pid.as_raw_nonzero().get());
                tracing::warn!("an NF of uid {} (process {pid}) did not attach: {error}", peer.uid);
                None
            }
        }
    }

    /// The attach policy for a user. The user database may answer late, so it is asked on a thread of its own.
    async fn policy(&self, uid: u32) -> Result<Policy, EngineGone> {
        let host = self.engine.call(|engine| engine.shared_host()).await?;
        let names = tokio::task::spawn_blocking(move || names_of(uid, &host)).await;
        Ok(policy(uid, names.unwrap_or_default()))
    }

    async fn hold(&self, (session, mut failed): (Session, FailedNfs), peer: Peer) {
        let number = self.register(&session, peer);
        tracing::info!(
            "nf {}/{number}: external NF {} attached as instance {}",
            session.role(),
            session.name(),
            session.id()
        );
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
        self.lock().remove(&session.id());
        tracing::info!("nf {}/{number}: left", session.role());
    }

    fn register(&self, session: &Session, peer: Peer) -> u32 {
        let mut externals = self.lock();
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

    fn lock(&self) -> MutexGuard<'_, Externals> {
        self.externals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A handshake in progress.
struct Handshake {
    server: Arc<AttachServer>,
    uid: u32,
}

impl Handshake {
    /// `None` if the user has too many handshakes.
    fn begin(server: Arc<AttachServer>, uid: u32) -> Option<Self> {
        {
            let mut handshakes = server.handshakes.lock().unwrap_or_else(PoisonError::into_inner);
            let count = handshakes.entry(uid).or_default();
            if *count >= MAX_HANDSHAKES {
                return None;
            }
            *count += 1;
        }
        Some(Self { server, uid })
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        let mut handshakes = self.server.handshakes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut count) = handshakes.entry(self.uid) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
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

/// Waits until the engine evicts the instance. One that hangs may recover.
async fn evicted(id: InstanceId, failed: &mut FailedNfs) {
    while failed.wait_for(id).await != NfFault::Evicted {}
}

/// Waits for the end of the peer's process; for ever if that cannot be observed.
async fn ended(peer: Peer) {
    let pidfd = peer.pid.and_then(|pid| pidfd_open(pid, PidfdFlags::NONBLOCK).ok());
    match pidfd.and_then(|pidfd| watch(pidfd).ok()) {
        Some(pidfd) => {
            let _ = pidfd.readable().await;
        }
        None => std::future::pending().await,
    }
}

/// The names under which the configuration lets a user attach.
fn names_of(uid: u32, host: &Host) -> BTreeSet<String> {
    let users = host.nfs.iter().flat_map(|nf| match &nf.start {
        NfStart::External { users } => users.as_slice(),
        NfStart::Managed { .. } => &[],
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
