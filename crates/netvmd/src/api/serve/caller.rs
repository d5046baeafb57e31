// SPDX-License-Identifier: Apache-2.0
//! Who sends requests, and what they may do: the least role of each operation is in the table of
//! [`netvm_api::openapi`].

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};

use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use netvm_api::Role;
use netvm_model::Fingerprint;
use tokio::io::{AsyncRead, AsyncWrite};

use super::super::Failure;
use super::slots::{HasPeer, Peer};
use crate::audit::{LoggedClient, Refused};

/// Who a client is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// A process of this machine, by the kernel's word.
    Process {
        /// Its user.
        uid: u32,
        /// Its number, if it is in a PID namespace that netvmd sees.
        pid: Option<i32>,
    },
    /// A client from another machine, by its certificate.
    Certificate {
        /// The common name.
        name: String,
        fingerprint: Fingerprint,
    },
    /// A user from another machine, who has logged in with a password.
    User {
        /// The user's name.
        name: String,
    },
    /// A client from another machine without a certificate and without a session.
    Anonymous,
    /// A client of the loopback address: who has the token.
    Token,
    /// The kernel does not know it any more.
    Unknown,
}

/// A client, and where its connection comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) identity: Identity,
    /// The socket's path, or the client's address and port.
    pub(crate) from: Arc<str>,
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.identity {
            Identity::Process { uid, pid: Some(pid) } => write!(f, "process {pid} of user {uid}")?,
            Identity::Process { uid, pid: None } => write!(f, "user {uid}")?,
            Identity::Certificate { name, .. } => write!(f, "`{}`", netvm_text::line(name))?,
            Identity::User { name } => write!(f, "user `{}`", netvm_text::line(name))?,
            Identity::Anonymous => f.write_str("a client without a certificate")?,
            Identity::Token => f.write_str("a client of the web page")?,
            Identity::Unknown => f.write_str("an unknown client")?,
        }
        write!(f, " at {}", self.from)
    }
}

impl Caller {
    /// Among whose refusals this one's are limited.
    pub(super) const fn refused(&self) -> Refused {
        match &self.identity {
            Identity::Process { .. } => Refused::Process,
            Identity::Certificate { .. } | Identity::User { .. } => Refused::Certificate,
            Identity::Anonymous | Identity::Token | Identity::Unknown => Refused::Unknown,
        }
    }

    /// As the audit log names it.
    pub(super) fn logged(&self) -> LoggedClient {
        match &self.identity {
            Identity::Process { uid, pid } => {
                LoggedClient { uid: Some(*uid), pid: *pid, ..LoggedClient::default() }
            }
            Identity::Certificate { name, fingerprint } => LoggedClient {
                certificate: Some(name.clone()),
                fingerprint: Some(fingerprint.to_string()),
                ..LoggedClient::default()
            },
            Identity::User { name } => LoggedClient { user: Some(name.clone()), ..LoggedClient::default() },
            Identity::Anonymous | Identity::Token | Identity::Unknown => LoggedClient::default(),
        }
    }
}

/// Whom a reply to a login or a logout is about, for the audit log; `None`: nobody whom the configuration knows.
#[derive(Clone, Debug)]
pub(super) struct NamedUser(pub(super) Option<String>);

/// A connection whose client is known.
pub(in crate::api) struct Session<I> {
    /// The stream under HTTP.
    pub(super) io: I,
    pub(super) caller: Caller,
    /// What the client may do; `None`: the requests show it, or nothing.
    pub(super) role: Option<Role>,
    /// Ready when the connection must end.
    pub(super) end: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// The clients of a listener.
pub(in crate::api) trait Clients<I>: Clone + Send + Sync + 'static {
    /// The stream under HTTP.
    type Io: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Finds out who a client is; `None` if its connection must end.
    fn identify(&self, io: I, peer: Peer) -> impl Future<Output = Option<Session<Self::Io>>> + Send;

    /// Whether a client that gets no slot can read a reply of HTTP.
    fn read_plain_text(&self) -> bool;
}

/// Clients of this machine, known to its kernel.
#[derive(Clone, Debug)]
pub(in crate::api) struct LocalClients {
    /// What all of them may do; `None`: the requests show it.
    pub(in crate::api) role: Option<Role>,
    /// The socket's path, for those who have no address.
    pub(in crate::api) socket: Arc<str>,
}

impl<I: HasPeer + AsyncRead + AsyncWrite + Unpin + Send + 'static> Clients<I> for LocalClients {
    type Io = I;

    async fn identify(&self, io: I, peer: Peer) -> Option<Session<I>> {
        let (identity, from) = match peer {
            Peer::User(uid) => (Identity::Process { uid, pid: io.process() }, Arc::clone(&self.socket)),
            Peer::Address(_) => (Identity::Token, io.address().into()),
            Peer::Unknown => (Identity::Unknown, Arc::clone(&self.socket)),
        };
        let end = Box::pin(std::future::pending::<()>());
        Some(Session { io, caller: Caller { identity, from }, role: self.role, end })
    }

    fn read_plain_text(&self) -> bool {
        true
    }
}

/// The files of the web page, which have no secrets, and its login.
const PAGE: [&str; 4] = ["/", "/web/{file}", LOGIN, LOGOUT];
/// Where a name and a password begin a session, and where it ends.
pub(in crate::api) const LOGIN: &str = "/web/login";
pub(in crate::api) const LOGOUT: &str = "/web/logout";

/// The least role for each operation.
static ROLES: LazyLock<HashMap<(&str, &str), Role>> = LazyLock::new(|| {
    netvm_api::openapi::roles().into_iter().map(|(method, path, role)| ((method, path), role)).collect()
});

/// The least role for a request; `None` if everybody may send it: it is for the web page or its login, or gets status
/// 404.
pub(crate) fn least_role(request: &Request) -> Option<Role> {
    let path = request.extensions().get::<MatchedPath>()?.as_str();
    if PAGE.contains(&path) {
        return None;
    }
    let method = match *request.method() {
        Method::HEAD => "GET",
        ref method => method.as_str(),
    };
    // What the table does not list is for administrators.
    Some(ROLES.get(&(method, path)).copied().unwrap_or(Role::Admin))
}

/// Largest request of a client that changes nothing in bytes: a packet to trace, a filter.
const MAX_READER_BODY_BYTES: usize = 256 << 10;

/// Admits requests whose client has the role that they need. `most`: the largest body in bytes, of those who may send a
/// configuration.
pub(in crate::api) async fn require_role(
    State(most): State<usize>,
    mut request: Request,
    next: Next,
) -> Response {
    let (needed, has) = (least_role(&request), request.extensions().get::<Role>().copied());
    let may_change = has.is_some_and(|has| has >= Role::Operate);
    let limit = if may_change { most } else { MAX_READER_BODY_BYTES };
    DefaultBodyLimit::max(limit).apply(&mut request);
    let Some(needed) = needed.filter(|needed| has.is_none_or(|has| has < *needed)) else {
        return next.run(request).await;
    };
    let caller = request.extensions().get::<Arc<Caller>>();
    let identity = caller.map(|caller| &caller.identity);
    let remedy = match identity {
        Some(Identity::Anonymous) => "log in at the web page, or use a client certificate",
        Some(Identity::Token) if needed == Role::Capture => {
            "use `netvm capture`, or set `web_capture = true` in [api]"
        }
        Some(Identity::Token) => "the web page changes nothing: use netvm",
        Some(Identity::Certificate { .. }) if has.is_none() => {
            "add a [[api.remote.client]] for its certificate"
        }
        Some(Identity::Certificate { .. } | Identity::User { .. }) => "ask who manages this machine",
        _ => "use netvmd's Unix socket as root, or ask who manages this machine",
    };
    let has = has.map_or_else(|| "no role".to_owned(), |role| format!("`{}`", role.word()));
    let (method, path) = (request.method(), request.uri().path());
    let message =
        format!("`{method} {path}` needs the role `{}`, and this client has {has}: {remedy}", needed.word());
    let is_unknown = identity == Some(&Identity::Anonymous);
    let status = if is_unknown { StatusCode::UNAUTHORIZED } else { StatusCode::FORBIDDEN };
    Failure::new(status, message).into_response()
}
