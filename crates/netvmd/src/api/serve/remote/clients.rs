// SPDX-License-Identifier: Apache-2.0
//! Clients from other machines: their handshakes, and when their connections end.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use netvm_api::Role;
use netvm_model::Fingerprint;
use netvm_tls::Certificate;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::super::super::Failure;
use super::super::caller::{Caller, Clients, Identity, Session, least_role};
use super::super::record::refused;
use super::super::slots::{HasPeer, Peer};
use super::{Access, Rates};
use crate::audit::{Entry, LoggedClient, Refused};
use crate::daemon::Daemon;

/// Time limit for a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for a client to read why its handshake failed.
const ALERT_TIMEOUT: Duration = Duration::from_secs(1);
/// The clients of the server for other machines.
#[derive(Clone)]
pub(super) struct RemoteClients {
    pub(super) access: watch::Receiver<Arc<Access>>,
    pub(super) rates: Arc<Rates>,
    pub(super) daemon: Arc<Daemon>,
}

impl Clients<TcpStream> for RemoteClients {
    type Io = TlsStream<TcpStream>;

    async fn identify(&self, io: TcpStream, peer: Peer) -> Option<Session<Self::Io>> {
        let from: Arc<str> = io.address().into();
        if let Peer::Address(address) = peer
            && !self.rates.admit_connection(address)
        {
            self.refuse(&from, "too many connections of this address in a short time");
            return None;
        }
        let mut access = self.access.clone();
        let now = Arc::clone(&access.borrow_and_update());
        let shake = TlsAcceptor::from(Arc::clone(&now.side.config)).accept(io).into_fallible();
        let io = match timeout(HANDSHAKE_TIMEOUT, shake).await {
            Ok(Ok(io)) => io,
            Ok(Err((error, io))) => {
                self.refuse(&from, &netvm_tls::explain(&error));
                // Closing a connection with unread bytes would discard the alert before the client reads it.
                let _ = timeout(ALERT_TIMEOUT, discard(io)).await;
                return None;
            }
            Err(_) => {
                self.refuse(&from, &format!("no TLS handshake within {} s", HANDSHAKE_TIMEOUT.as_secs()));
                return None;
            }
        };
        let certificates = io.get_ref().1.peer_certificates();
        if certificates.is_none() {
            let caller = Caller { identity: Identity::Anonymous, from };
            let end = until_nobody_logs_in(access);
            return Some(Session { io, caller, role: None, end: Box::pin(end) });
        }
        let certificate = certificates.and_then(<[_]>::first).and_then(Certificate::of);
        let Some(certificate) = certificate else {
            self.refuse(&from, "its certificate is malformed");
            return None;
        };
        let (name, fingerprint) = (certificate.name.clone(), Fingerprint(certificate.fingerprint));
        let role = now.remote.role_of(&name, fingerprint);
        let caller = Caller { identity: Identity::Certificate { name, fingerprint }, from };
        let end =
            self.clone().until_ended(access, Admitted { now, certificate, role, caller: caller.clone() });
        Some(Session { io, caller, role, end: Box::pin(end) })
    }

    fn read_plain_text(&self) -> bool {
        false
    }
}

/// Reads until the client closes its connection.
async fn discard(mut io: TcpStream) -> io::Result<()> {
    io.shutdown().await?;
    let mut rest = [0; 4096];
    while io.read(&mut rest).await? > 0 {}
    Ok(())
}

/// Waits until clients without a certificate are not admitted any more.
async fn until_nobody_logs_in(mut access: watch::Receiver<Arc<Access>>) {
    while access.borrow_and_update().remote.passwords.is_some() {
        if access.changed().await.is_err() {
            // The server ends, and with it the connection.
            std::future::pending::<()>().await;
        }
    }
}

/// A client as it was admitted.
struct Admitted {
    now: Arc<Access>,
    certificate: Certificate,
    role: Option<Role>,
    caller: Caller,
}

impl RemoteClients {
    /// Records that a client was refused before it sent a request.
    fn refuse(&self, from: &Arc<str>, why: &str) {
        refused(|more| tracing::warn!("refused a client at {from}: {why}{more}"));
        let mut entry = Entry::of(LoggedClient::default(), from);
        entry.result = format!("refused: {why}");
        self.daemon.audit().write_refusal(entry, Refused::Unknown);
    }

    /// Waits until a connection must end: its client's certificate expires, the authorities of clients change, or the
    /// configuration gives the client another role, or none.
    async fn until_ended(self, mut access: watch::Receiver<Arc<Access>>, admitted: Admitted) {
        let Admitted { now: then, certificate, role, caller } = admitted;
        let mut expired = pin!(sleep(certificate.left().unwrap_or_default()));
        let why = loop {
            tokio::select! {
                () = expired.as_mut() => break "its certificate has expired",
                changed = access.changed() => if changed.is_err() {
                    // The server ends, and with it the connection.
                    std::future::pending::<()>().await;
                },
            }
            let now = Arc::clone(&access.borrow_and_update());
            if now.side.client_ca != then.side.client_ca {
                break "the authorities of clients have changed";
            }
            if now.remote.role_of(&certificate.name, Fingerprint(certificate.fingerprint)) != role {
                break "the configuration gives its client another role, or none";
            }
        };
        tracing::info!("closed the connection of {caller}: {why}");
        let mut entry = Entry::of(caller.logged(), &caller.from);
        (entry.role, entry.result) = (role.map(Role::word), format!("connection closed: {why}"));
        self.daemon.audit().write(&entry, None);
    }
}

/// Refuses what a browser sends for the page of another site, to which it adds this client's certificate all the same.
pub(in crate::api) async fn own_origin(request: Request, next: Next) -> Response {
    let is_file = least_role(&request).is_none() && request.method().is_safe();
    if !is_file && is_foreign(request.headers()) {
        let message = "a web page of another site must not use netvmd";
        return Failure::new(StatusCode::FORBIDDEN, message).into_response();
    }
    next.run(request).await
}

fn is_foreign(headers: &HeaderMap) -> bool {
    let text = |name: header::HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let is_same_site = |site: &str| matches!(site, "same-origin" | "none");
    let site = header::HeaderName::from_static("sec-fetch-site");
    let own = text(header::HOST).map(|host| format!("https://{host}"));
    text(header::ORIGIN).is_some_and(|origin| own.as_deref() != Some(origin))
        || text(site).is_some_and(|site| !is_same_site(site))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_other_sites_are_foreign() {
        let of = |pairs: &[(&'static str, &str)]| {
            let named = pairs
                .iter()
                .map(|(name, value)| (header::HeaderName::from_static(name), value.parse().unwrap()));
            is_foreign(&named.collect())
        };
        let host = ("host", "switch.example:9480");
        assert!(!of(&[host]));
        assert!(!of(&[host, ("origin", "https://switch.example:9480"), ("sec-fetch-site", "same-origin")]));
        assert!(!of(&[host, ("sec-fetch-site", "none")]));
        assert!(of(&[host, ("origin", "https://evil.example")]));
        assert!(of(&[host, ("origin", "http://switch.example:9480")]));
        assert!(of(&[host, ("origin", "null")]));
        assert!(of(&[host, ("sec-fetch-site", "cross-site")]));
        assert!(of(&[("origin", "https://switch.example:9480")]));
    }
}
