// SPDX-License-Identifier: Apache-2.0
//! Writes changes, captures and refusals to the audit log. In: a request. Out: its reply, which is read on the way if
//! it says what was done.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::body::Body as _;
use netvm_api::{Plan, Role};
use serde::Deserialize;

use super::super::Failure;
use super::caller::{Caller, NamedUser, least_role};
use crate::audit::{AuditFile, Entry};
use crate::daemon::Daemon;
use crate::events::LogLimit;

/// Largest reply that is read: longer ones do not say what was done, but are data.
const MAX_READ: u64 = 1 << 20;

/// What is known of a request before it is answered.
struct Tried {
    caller: Option<Arc<Caller>>,
    role: Option<Role>,
    method: Method,
    uri: Uri,
    /// The log when it came.
    before: Option<Arc<AuditFile>>,
}

/// Records requests that need more than the role `view`, refusals of any, and who logs in and out.
pub(in crate::api) async fn record(
    State(daemon): State<Arc<Daemon>>,
    request: Request,
    next: Next,
) -> Response {
    let tried = Tried {
        caller: request.extensions().get::<Arc<Caller>>().cloned(),
        role: request.extensions().get::<Role>().copied(),
        method: request.method().clone(),
        uri: request.uri().clone(),
        before: daemon.audit().file(),
    };
    if least_role(&request).is_none_or(|needed| needed == Role::View) {
        let response = next.run(request).await;
        let is_login = response.extensions().get::<NamedUser>().is_some();
        let is_noted = is_login || is_refusal(response.status());
        return if is_noted { note(&daemon, &tried, response).await } else { response };
    }
    // On a task of its own, so that a client that goes away does not keep its request out of the log.
    let work = async move {
        let response = next.run(request).await;
        note(&daemon, &tried, response).await
    };
    let failed = |_| Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "the request failed: see netvmd's log");
    tokio::spawn(work).await.map_err(failed).into_response()
}

const fn is_refusal(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS)
}

/// What a reply says of itself.
#[derive(Default, Deserialize)]
struct Outcome {
    #[serde(default)]
    message: String,
    #[serde(default)]
    plan: Option<Plan>,
}

async fn note(daemon: &Daemon, tried: &Tried, response: Response) -> Response {
    let (response, outcome) = read(response).await;
    let status = response.status();
    let (method, path) = (tried.method.as_str(), tried.uri.path());
    if is_refusal(status) {
        let who = tried.caller.as_ref().map_or_else(String::new, |caller| format!(" of {caller}"));
        refused(|more| tracing::warn!("refused `{method} {path}`{who}: {}{more}", outcome.message));
    }
    let Some(caller) = &tried.caller else { return response };
    let mut client = caller.logged();
    if let Some(NamedUser(name)) = response.extensions().get() {
        client.user.clone_from(name);
    }
    let plan = outcome.plan.map_or_else(String::new, |plan| plan.to_string());
    let mut entry = Entry::of(client, &caller.from).with_plan(&plan);
    entry.role = tried.role.map(Role::word);
    entry.method = Some(method.to_owned());
    entry.path = tried.uri.path_and_query().map(ToString::to_string);
    (entry.status, entry.result) = (Some(status.as_u16()), outcome.message);
    if is_refusal(status) {
        daemon.audit().write_refusal(entry, caller.refused());
    } else {
        daemon.audit().write(&entry, tried.before.as_ref());
    }
    response
}

/// Writes a line about a refusal, unless there are too many.
pub(super) fn refused(write: impl FnOnce(&str)) {
    static REFUSALS: std::sync::LazyLock<LogLimit> = std::sync::LazyLock::new(LogLimit::default);
    REFUSALS.log(write);
}

/// What a short reply in JSON says, and the reply.
async fn read(response: Response) -> (Response, Outcome) {
    let json = HeaderValue::from_static("application/json");
    let is_short = response.body().size_hint().upper().is_some_and(|most| most <= MAX_READ);
    if response.headers().get(header::CONTENT_TYPE) != Some(&json) || !is_short {
        return (response, Outcome::default());
    }
    let (parts, body) = response.into_parts();
    // It is in memory as a whole, so this cannot fail.
    let bytes = to_bytes(body, usize::MAX).await.unwrap_or_default();
    let outcome = serde_json::from_slice(&bytes).unwrap_or_default();
    (Response::from_parts(parts, Body::from(bytes)), outcome)
}
