// SPDX-License-Identifier: Apache-2.0
//! The API for other machines: HTTPS, where a certificate says who the client is, and the configuration what it may do.
//! In: `[api.remote]`, and its files, which are read again when they change. Files that cannot be used change nothing.

mod clients;
mod login;
mod rates;
mod sessions;

use std::fs::Metadata;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use netvm_api::EventKind;
use netvm_model::RemoteApi;
use netvm_passwords::Passwords;
use netvm_tls::{Certificate, ServerFiles, ServerSide};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::listen::{Listening, Server};
use super::slots::Limits;
use crate::daemon::Daemon;
use crate::runtime::blocking;
use clients::RemoteClients;
pub(in crate::api) use clients::own_origin;
pub(in crate::api) use login::{Logins, login, logout, with_session};
pub(in crate::api) use rates::{Rates, limit_requests};

/// Clients at a time, and of one address (of one network of 64 bits, for IPv6).
const REMOTE_CLIENTS: Limits = Limits { connections: 256, each: 64, reserve: 0 };
/// The certificate's end is a problem from then on.
const EXPIRY_WARNING: Duration = Duration::from_secs(14 * 86_400);

/// Who may connect, and how.
#[derive(Debug)]
struct Access {
    side: ServerSide,
    remote: RemoteApi,
}

/// What shows that a file has changed.
type Stamp = Option<(u64, i64, i64, u64)>;

/// The server for other machines.
#[derive(Default)]
pub(super) struct RemoteServer(Option<Running>);

struct Running {
    access: watch::Sender<Arc<Access>>,
    /// The files as they were when they were last read.
    stamps: [Stamp; 3],
    /// Why they are not in use.
    refused: Option<String>,
    users: Users,
    server: Server,
}

/// The users who may log in, and the file of their passwords.
struct Users {
    logins: Arc<Logins>,
    passwords: Arc<Passwords>,
    /// The file as it was when it was last read.
    read: Option<(PathBuf, Stamp)>,
    /// Why it is not in use.
    refused: Option<String>,
}

impl RemoteServer {
    /// Serves what the configuration says; whether nothing has to be looked at again.
    pub(super) async fn follow(&mut self, daemon: &Arc<Daemon>, wanted: Option<&RemoteApi>) -> bool {
        let listen = wanted.map(|wanted| wanted.listen);
        let is_other = self.0.as_ref().map(|running| running.access.borrow().remote.listen) != listen;
        if is_other && let Some(running) = self.0.take() {
            running.server.stop().await;
        }
        let Some(wanted) = wanted else {
            daemon.note_remote_problem(None);
            return true;
        };
        let problem = match &mut self.0 {
            Some(running) => running.follow(daemon, wanted).await,
            none => match start(daemon, wanted).await {
                Ok(running) => {
                    tracing::info!("the API is on https://{}/", wanted.listen);
                    none.insert(running).problem()
                }
                Err(error) => Some(error.to_string()),
            },
        };
        daemon.note_remote_problem(problem);
        false
    }
}

/// The API is not served to other machines.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("remote API: {0} (see [api.remote])")]
    Files(#[from] netvm_tls::TlsError),
    #[error("remote API: cannot listen on {listen}: {source} (choose another `listen` in [api.remote])")]
    Listen { listen: SocketAddr, source: io::Error },
}

/// Starts the server.
async fn start(daemon: &Arc<Daemon>, wanted: &RemoteApi) -> Result<Running, StartError> {
    let (stamps, side) = read(wanted).await;
    let (side, listen) = (side?, wanted.listen);
    let bound = TcpListener::bind(listen).await;
    let listener = bound.map_err(|source| StartError::Listen { listen, source })?;
    let (access, follower) = watch::channel(Arc::new(Access { side, remote: wanted.clone() }));
    let rates = Arc::new(Rates::default());
    let logins = Arc::new(Logins::new(Arc::clone(&rates)));
    let app = super::super::remote_router(Arc::clone(daemon), Arc::clone(&rates), &logins);
    let mut users = Users { logins, passwords: Arc::default(), read: None, refused: None };
    users.follow(wanted).await;
    let clients = RemoteClients { access: follower, rates, daemon: Arc::clone(daemon) };
    let server = Server::start(listener, Listening { clients, app, limits: REMOTE_CLIENTS });
    Ok(Running { access, stamps, refused: None, users, server })
}

impl Running {
    /// Follows the configuration and the files; the current problem.
    async fn follow(&mut self, daemon: &Daemon, wanted: &RemoteApi) -> Option<String> {
        let is_new = self.remote() != *wanted;
        let has_new_files = files(&self.remote()) != files(wanted);
        if has_new_files || self.refused.is_some() || stamps(&files(wanted)) != self.stamps {
            let (stamps, side) = read(wanted).await;
            self.stamps = stamps;
            match side {
                Ok(side) => self.take(daemon, side, wanted),
                Err(error) => self.refuse(daemon, format!("{error}; the earlier files stay in use")),
            }
        }
        if is_new {
            // Clients whose role has changed are disconnected.
            let side = self.access.borrow().side.clone();
            self.access.send_replace(Arc::new(Access { side, remote: wanted.clone() }));
        }
        self.users.follow(wanted).await;
        self.problem()
    }

    /// The current problem.
    fn problem(&self) -> Option<String> {
        let refused = self.refused.as_ref().or(self.users.refused.as_ref());
        refused.map(|why| format!("remote API: {why}")).or_else(|| self.expiry())
    }

    fn take(&mut self, daemon: &Daemon, side: ServerSide, wanted: &RemoteApi) {
        let old = Arc::clone(&self.access.borrow());
        let is_same = old.side.certificate == side.certificate && old.side.client_ca == side.client_ca;
        if !is_same || self.refused.is_some() {
            let message = format!(
                "remote API: {} and {} are in use",
                wanted.certificate.display(),
                wanted.client_ca.display()
            );
            daemon.engine().events().push(EventKind::CertificatesLoaded, "", message);
        }
        self.refused = None;
        self.access.send_replace(Arc::new(Access { side, remote: wanted.clone() }));
    }

    fn refuse(&mut self, daemon: &Daemon, why: String) {
        if self.refused.as_ref() != Some(&why) {
            let message = format!("remote API: {why}");
            daemon.engine().events().push(EventKind::CertificatesRefused, "", message);
        }
        self.refused = Some(why);
    }

    fn remote(&self) -> RemoteApi {
        self.access.borrow().remote.clone()
    }

    /// The problem of a certificate that expires soon, or has expired.
    fn expiry(&self) -> Option<String> {
        let access = self.access.borrow();
        let Certificate { name, .. } = &access.side.certificate;
        let file = access.remote.certificate.display();
        match access.side.certificate.left() {
            Some(left) if left > EXPIRY_WARNING => None,
            Some(left) => Some(format!(
                "remote API: the certificate of {name} ({file}) expires in {} days: make a new one",
                left.as_secs() / 86_400
            )),
            None => Some(format!(
                "remote API: the certificate of {name} ({file}) has expired, so that clients refuse it: make a new one"
            )),
        }
    }
}

fn files(remote: &RemoteApi) -> ServerFiles {
    ServerFiles {
        certificate: remote.certificate.clone(),
        key: remote.key.clone(),
        client_ca: remote.client_ca.clone(),
        admits_anonymous: remote.passwords.is_some(),
    }
}

impl Users {
    /// Follows the configuration and the file.
    async fn follow(&mut self, wanted: &RemoteApi) {
        let stamp = wanted.passwords.as_deref().map(stamp);
        let now = wanted.passwords.clone().zip(stamp);
        if self.read != now || self.refused.is_some() {
            self.read = now;
            (self.passwords, self.refused) = match wanted.passwords.clone() {
                None => (Arc::default(), None),
                Some(path) => match blocking(move || Passwords::read(&path)).await {
                    Ok(passwords) => (Arc::new(passwords), None),
                    Err(error) => {
                        let words = format!("{error}; the passwords before stay in use");
                        (Arc::clone(&self.passwords), Some(words))
                    }
                },
            };
        }
        self.logins.sessions.follow(&wanted.users, &self.passwords);
    }
}

fn stamp(path: &Path) -> Stamp {
    let there: Metadata = path.metadata().ok()?;
    Some((there.ino(), there.mtime(), there.mtime_nsec(), there.size()))
}

fn stamps(files: &ServerFiles) -> [Stamp; 3] {
    [&files.certificate, &files.key, &files.client_ca].map(|path| stamp(path))
}

/// The files, with what shows that they change after this.
async fn read(remote: &RemoteApi) -> ([Stamp; 3], Result<ServerSide, netvm_tls::TlsError>) {
    let files = files(remote);
    blocking(move || (stamps(&files), files.load())).await
}
