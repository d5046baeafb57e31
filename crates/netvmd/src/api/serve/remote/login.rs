// SPDX-License-Identifier: Apache-2.0
//! Logging in and out of the web page by a password, and requests of users who are logged in. In: a cookie, or a name
//! and a password. Out: the user and the role of a request. The cookie is one that scripts cannot read, and that
//! browsers send for pages of this server alone (RFC 6265bis, `__Host-`, `HttpOnly`, `SameSite=Strict`).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::rejection::JsonRejection;
use axum::extract::{Extension, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, SizeHint};
use netvm_api::Role;
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, watch};

use super::super::super::Failure;
use super::super::caller::{Caller, Identity, NamedUser};
use super::super::slots::Peer;
use super::Rates;
use super::sessions::{LIFETIME, Sessions};
use crate::runtime::blocking;

/// The cookie.
const COOKIE: &str = "__Host-netvm";
/// What a browser must keep to.
const ATTRIBUTES: &str = "Path=/; Secure; HttpOnly; SameSite=Strict";

/// What logging in works with.
#[derive(Debug)]
pub(in crate::api) struct Logins {
    pub(super) sessions: Sessions,
    /// One check of a password at a time: it takes a processor, and 19 MiB.
    checks: Semaphore,
    rates: Arc<Rates>,
}

impl Logins {
    pub(super) fn new(rates: Arc<Rates>) -> Self {
        Self { sessions: Sessions::default(), checks: Semaphore::new(1), rates }
    }

    /// Begins a session for a name and a password.
    async fn begin(&self, login: Login, peer: Peer) -> Result<(String, Role), Refusal> {
        let Login { name, password } = login;
        let (role, passwords) = self.sessions.admitted(&name);
        if !self.rates.admit_login(peer, role.is_some().then_some(name.as_str())) {
            return Err(Refusal::TooMany);
        }
        let Ok(_one) = self.checks.acquire().await else { return Err(Refusal::Wrong) };
        let (of_user, known) = (name.clone(), Arc::clone(&passwords));
        let is_right = blocking(move || known.is_right(&of_user, &password)).await;
        let hash = passwords.hash_of(&name).filter(|_| is_right && role.is_some());
        let begun = self.sessions.begin(&name, hash.ok_or(Refusal::Wrong)?);
        begun.map_err(|_| Refusal::NoRandom)?.ok_or(Refusal::Wrong)
    }
}

/// Nobody is logged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    #[error("no user has this name and this password: `netvm passwd` on this machine sets a password")]
    Wrong,
    #[error("too many attempts to log in: wait a minute")]
    TooMany,
    #[error("the kernel gives no random numbers: try again")]
    NoRandom,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = match self {
            Self::Wrong => StatusCode::UNAUTHORIZED,
            Self::TooMany => StatusCode::TOO_MANY_REQUESTS,
            Self::NoRandom => StatusCode::SERVICE_UNAVAILABLE,
        };
        let failure = Failure::new(status, self.to_string());
        if self == Self::TooMany {
            ([(header::RETRY_AFTER, "60")], failure).into_response()
        } else {
            failure.into_response()
        }
    }
}

/// Who wants to log in.
#[derive(Deserialize)]
pub(in crate::api) struct Login {
    name: String,
    password: String,
}

/// Who has logged in.
#[derive(Serialize)]
struct LoggedIn {
    name: String,
    role: Role,
    /// For the audit log.
    message: &'static str,
}

/// `POST /web/login`.
pub(in crate::api) async fn login(
    State(logins): State<Arc<Logins>>,
    Extension(peer): Extension<Peer>,
    body: Result<Json<Login>, JsonRejection>,
) -> Response {
    let login = match body {
        Ok(Json(login)) => login,
        Err(rejection) => return Failure::from(rejection).into_response(),
    };
    // The log has names of users alone: what was typed may be a password.
    let name = logins.sessions.admitted(&login.name).0.map(|_| login.name.clone());
    let begun = logins.begin(login, peer).await;
    let named = NamedUser(name.clone());
    match begun {
        Ok((token, role)) => {
            let cookie = format!("{COOKIE}={token}; {ATTRIBUTES}; Max-Age={}", LIFETIME.as_secs());
            let body = LoggedIn { name: name.unwrap_or_default(), role, message: "logged in" };
            ([(header::SET_COOKIE, cookie)], Extension(named), Json(body)).into_response()
        }
        Err(refusal) => (Extension(named), refusal).into_response(),
    }
}

/// `POST /web/logout`.
pub(in crate::api) async fn logout(State(logins): State<Arc<Logins>>, headers: HeaderMap) -> Response {
    let name = token(&headers).and_then(|token| logins.sessions.end(token));
    let cookie = format!("{COOKIE}=; {ATTRIBUTES}; Max-Age=0");
    let body = Json(netvm_api::Done { message: "logged out".to_owned() });
    ([(header::SET_COOKIE, cookie)], Extension(NamedUser(name)), body).into_response()
}

/// Finds the user of a request without a certificate, by its cookie. A reply ends with the session.
pub(in crate::api) async fn with_session(
    State(logins): State<Arc<Logins>>,
    mut request: Request,
    next: Next,
) -> Response {
    let caller = request.extensions().get::<Arc<Caller>>().cloned();
    let anonymous = caller.filter(|caller| caller.identity == Identity::Anonymous);
    let user = token(request.headers()).and_then(|token| logins.sessions.find(token));
    let (Some(caller), Some(user)) = (anonymous, user) else { return next.run(request).await };
    let caller = Caller { identity: Identity::User { name: user.name }, from: Arc::clone(&caller.from) };
    request.extensions_mut().insert(Arc::new(caller));
    request.extensions_mut().insert(user.role);
    next.run(request).await.map(|body| SessionBody::of(body, user.end))
}

/// The token of a request's cookie.
fn token(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| HeaderValue::to_str(value).ok());
    let pairs = cookies.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.into_iter().find(|(name, _)| *name == COOKIE).map(|(_, token)| token)
}

/// A reply that ends with an error when its session has ended.
struct SessionBody {
    body: Body,
    ended: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl SessionBody {
    fn of(body: Body, mut end: watch::Receiver<()>) -> Body {
        // Nothing is ever sent.
        let ended = Box::pin(async move { while end.changed().await.is_ok() {} });
        Body::new(Self { body, ended })
    }
}

impl hyper::body::Body for SessionBody {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        this.ended.as_mut().poll(context).map(|()| Some(Err("the session has ended".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_found_among_cookies() {
        let of = |cookies: &[&str]| {
            let named = cookies.iter().map(|text| (header::COOKIE, text.parse().unwrap()));
            token(&named.collect()).map(str::to_owned)
        };
        assert_eq!(of(&["__Host-netvm=abc"]).as_deref(), Some("abc"));
        assert_eq!(of(&["a=b; __Host-netvm=abc; c=d"]).as_deref(), Some("abc"));
        assert_eq!(of(&["a=b", "__Host-netvm=abc"]).as_deref(), Some("abc"));
        for none in [&[][..], &["netvm=abc"], &["x__Host-netvm=abc"], &["__Host-netvm"], &["=abc"]] {
            assert_eq!(of(none), None, "{none:?}");
        }
    }

    #[tokio::test]
    async fn a_reply_ends_with_its_session() {
        let (end, receiver) = (watch::Sender::new(()), watch::Receiver::clone);
        let one = || tokio_stream::once(Ok::<_, std::io::Error>(Bytes::from_static(b"x")));
        let whole = SessionBody::of(Body::from_stream(one()), receiver(&end.subscribe()));
        assert_eq!(axum::body::to_bytes(whole, 10).await.unwrap(), "x");
        let lasting = tokio_stream::StreamExt::chain(one(), tokio_stream::pending());
        let lasting = SessionBody::of(Body::from_stream(lasting), end.subscribe());
        let read = tokio::spawn(axum::body::to_bytes(lasting, 10));
        drop(end);
        assert!(read.await.unwrap().is_err());
    }
}
