// SPDX-License-Identifier: Apache-2.0
//! The HTTP API on Unix sockets and addresses: requests and replies of `netvm-api`, answered from the engine, the
//! supervisor and the VMs.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection, StringRejection};
use axum::http::StatusCode;
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Extension, Json, Router};
use netvm_api::{ApiError, Role, path};
use tokio::net::UnixListener;

use capture::CaptureQuota;
pub(crate) use serve::follow;
use serve::{Limits, Listening, LocalClients, Logins, Rates, Server, WebRights};
pub(crate) use status::unhealthy;

use crate::daemon::RuleError;
use crate::daemon::{ApplyError, Daemon, LivePortError};
use crate::engine_thread::EngineGone;

mod capture;
mod change;
mod nfs;
mod observe;
mod policy;
mod routers;
mod serve;
mod status;
mod steps;
mod traffic;
mod vms;

/// Largest configuration in bytes.
const MAX_BODY_BYTES: usize = 64 << 20;
/// Largest configuration from another machine in bytes.
const MAX_REMOTE_BODY_BYTES: usize = 16 << 20;
/// Clients of the Unix socket at a time.
const CLIENTS: Limits = Limits { connections: 256, each: 96, reserve: 64 };

/// The API cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve the API on {path}: {source} (choose another path with --socket)")]
pub struct ServeError {
    /// The socket.
    pub path: PathBuf,
    /// The kernel's error.
    pub source: io::Error,
}

/// Serves the API on `socket`, accessible to owner and group.
///
/// # Errors
/// [`ServeError`] names the path.
pub fn serve(daemon: Arc<Daemon>, socket: &Path) -> Result<Server, ServeError> {
    let fail = |source| ServeError { path: socket.to_owned(), source };
    let listener = bind(socket, None).map_err(fail)?;
    let app = local_router(daemon, Role::Admin);
    Ok(Server::start(listener, Listening { clients: of_socket(socket, Role::Admin), app, limits: CLIENTS }))
}

/// The clients of a Unix socket.
fn of_socket(socket: &Path, role: Role) -> LocalClients {
    LocalClients { role: Some(role), socket: socket.to_string_lossy().into() }
}

/// Binds a socket for its owner and its group: `group`, or the one of this process.
fn bind(socket: &Path, group: Option<u32>) -> io::Result<UnixListener> {
    // Created for the owner only, then opened for the group, so that others can never connect.
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(socket);
    rustix::process::umask(before);
    let listener = listener?;
    std::os::unix::fs::chown(socket, None, group)?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o660))?;
    Ok(listener)
}

/// The API for a Unix socket.
fn local_router(daemon: Arc<Daemon>, role: Role) -> Router {
    let captures = if role == Role::Admin { capture::LIMITS } else { capture::GROUP_LIMITS };
    router(Arc::clone(&daemon))
        .layer(Extension(CaptureQuota::new(captures)))
        .layer(middleware::from_fn_with_state(MAX_BODY_BYTES, serve::require_role))
        .layer(middleware::from_fn_with_state(daemon, serve::record))
        .layer(middleware::from_fn(serve::local_origins))
}

/// The API for the loopback address.
fn web_router(daemon: Arc<Daemon>, rights: WebRights) -> Router {
    router(Arc::clone(&daemon))
        .layer(Extension(CaptureQuota::new(capture::GROUP_LIMITS)))
        .layer(middleware::from_fn_with_state(MAX_BODY_BYTES, serve::require_role))
        .layer(middleware::from_fn_with_state(rights, serve::with_token))
        .layer(middleware::from_fn_with_state(daemon, serve::record))
        .layer(middleware::from_fn(serve::local_origins))
}

/// The API for other machines.
fn remote_router(daemon: Arc<Daemon>, rates: Arc<Rates>, logins: &Arc<Logins>) -> Router {
    let of_users = Router::new()
        .route(serve::LOGIN, post(serve::login))
        .route(serve::LOGOUT, post(serve::logout))
        .with_state(Arc::clone(logins));
    router(Arc::clone(&daemon))
        .merge(of_users)
        .layer(Extension(CaptureQuota::new(capture::GROUP_LIMITS)))
        .layer(middleware::from_fn_with_state(MAX_REMOTE_BODY_BYTES, serve::require_role))
        .layer(middleware::from_fn(serve::own_origin))
        .layer(middleware::from_fn_with_state(rates, serve::limit_requests))
        .layer(middleware::from_fn_with_state(daemon, serve::record))
        .layer(middleware::from_fn_with_state(Arc::clone(logins), serve::with_session))
}

fn router(daemon: Arc<Daemon>) -> Router {
    Router::new()
        .route(path::STATUS, get(status::status))
        .route(path::PORTS, get(traffic::ports))
        .route(path::LIVE_PORTS, get(change::live::list).post(change::live::add).delete(change::live::remove))
        .route(path::LIVE_PORT_BATCH, post(change::live::add_several))
        .route(path::NFS, get(traffic::nfs))
        .route(path::VMS, get(vms::list))
        .route(path::VM_START, post(vms::start))
        .route(path::VM_STOP, post(vms::stop))
        .route(path::VM_MANUAL_START, get(vms::manual_start))
        .route(path::ROUTERS, get(routers::list))
        .route(path::ROUTES, get(routers::routes).post(routers::add).delete(routers::remove))
        .route(path::NEIGHBOURS, get(routers::neighbours))
        .route(path::CHAINS, get(traffic::chains))
        .route(path::GROUPS, get(traffic::groups))
        .route(path::STATS, get(traffic::stats))
        .route(path::LATENCY, get(observe::latency::latency))
        .route(path::CONFIG, get(change::config))
        .route(path::HISTORY, get(change::history))
        .route(path::REVISION, get(change::revision))
        .route(path::CONFIRM, post(change::confirm))
        .route(path::REVERT, post(change::revert))
        .route(path::PLAN, post(change::plan))
        .route(path::APPLY, post(change::apply))
        .route(path::POLICY, get(policy::policy))
        .route(path::RULES, post(policy::add))
        .route(path::RULE, delete(policy::delete))
        .route(path::TRACE, post(policy::trace))
        .route(path::LIVE_TRACE, post(capture::trace::start))
        .route(path::FLOWS, get(policy::flows))
        .route(path::TOP_TALKERS, get(policy::top))
        .route(path::CONNECTIONS, get(policy::connections::list).delete(policy::connections::flush))
        .route(path::SAVED_CONNECTIONS, get(policy::saved::save).post(policy::saved::load))
        .route(path::CONNECTION_EVENTS, get(policy::connections::events))
        .route(path::ADDRESSES, get(policy::addresses))
        .route(path::MULTICAST, get(policy::multicast::multicast))
        .route(path::CAPTURE, post(capture::start))
        .route(path::CAPTURE_FILE, post(capture::download::start))
        .route(path::RESTART, post(change::restart))
        .route(path::HELD_PACKETS, get(capture::held_packets))
        .route(path::STOP, post(change::stop))
        .route(path::EVENTS, get(observe::events::events))
        .route(path::OPENAPI, get(openapi))
        .route(path::METRICS, get(observe::metrics::metrics))
        .route("/", get(serve::page))
        .route("/web/{file}", get(serve::script))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .with_state(daemon)
}

async fn openapi() -> Json<utoipa::openapi::OpenApi> {
    Json(netvm_api::openapi::openapi())
}

async fn no_such_path() -> Failure {
    Failure::new(StatusCode::NOT_FOUND, "no such path: see the API reference")
}

async fn no_such_method() -> Failure {
    Failure::new(StatusCode::NOT_FOUND, "no such method for this path: see the API reference")
}

/// An error reply.
#[derive(Debug)]
struct Failure {
    status: StatusCode,
    error: ApiError,
}

impl Failure {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, error: ApiError::new(message) }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.status, Json(self.error)).into_response()
    }
}

/// Reads a request whose body may be empty. `example`: a body.
fn optional<T: Default + serde::de::DeserializeOwned>(body: &str, example: &str) -> Result<T, Failure> {
    let parsed = if body.is_empty() { Ok(T::default()) } else { serde_json::from_str(body) };
    parsed.map_err(|error| {
        let message = format!("invalid request, expected {example} or nothing: {error}");
        Failure::new(StatusCode::UNPROCESSABLE_ENTITY, message)
    })
}

impl From<StringRejection> for Failure {
    fn from(rejection: StringRejection) -> Self {
        let text =
            format!("a configuration must be UTF-8 text of at most {MAX_BODY_BYTES} bytes: {rejection}");
        Self::new(rejection.status(), text)
    }
}

impl From<PathRejection> for Failure {
    fn from(rejection: PathRejection) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("invalid name: {rejection}"))
    }
}

impl From<QueryRejection> for Failure {
    fn from(rejection: QueryRejection) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, rejection.to_string())
    }
}

impl From<JsonRejection> for Failure {
    fn from(rejection: JsonRejection) -> Self {
        Self::new(rejection.status(), format!("invalid request: {rejection}"))
    }
}

impl From<RuleError> for Failure {
    fn from(error: RuleError) -> Self {
        let status = match error {
            RuleError::Config(error) => return ApplyError::Config(error).into(),
            RuleError::Apply(error) => return error.into(),
            RuleError::Gone(error) => return error.into(),
            RuleError::NotOne(_) => StatusCode::UNPROCESSABLE_ENTITY,
            RuleError::Unknown(_) => StatusCode::NOT_FOUND,
            RuleError::Taken(_) | RuleError::TooMany => StatusCode::CONFLICT,
        };
        Self::new(status, error.to_string())
    }
}

impl From<LivePortError> for Failure {
    fn from(error: LivePortError) -> Self {
        let status = match error {
            LivePortError::Config(error) => return ApplyError::Config(error).into(),
            LivePortError::Apply(error) => return error.into(),
            LivePortError::Gone(error) => return error.into(),
            LivePortError::Name(_) | LivePortError::Shared { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            LivePortError::Unknown { .. } => StatusCode::NOT_FOUND,
            LivePortError::State(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}

impl From<EngineGone> for Failure {
    fn from(error: EngineGone) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
    }
}

impl From<ApplyError> for Failure {
    fn from(error: ApplyError) -> Self {
        let status = match &error {
            ApplyError::Config(error) => {
                return Self { status: StatusCode::UNPROCESSABLE_ENTITY, error: ApiError::of_config(error) };
            }
            ApplyError::ProcessSpec(_) | ApplyError::Vm(_) => StatusCode::UNPROCESSABLE_ENTITY,
            ApplyError::ConfirmLimit => StatusCode::UNPROCESSABLE_ENTITY,
            ApplyError::NeedsRestart(_)
            | ApplyError::Busy
            | ApplyError::Unconfirmed { .. }
            | ApplyError::Engine(
                netvm_engine::ApplyError::NeedsRestart { .. } | netvm_engine::ApplyError::Cores(_),
            ) => StatusCode::CONFLICT,
            ApplyError::Engine(_)
            | ApplyError::Router(_)
            | ApplyError::Program(_)
            | ApplyError::NfFailed { .. }
            | ApplyError::VmFailed { .. }
            | ApplyError::State(_)
            | ApplyError::Save(_)
            | ApplyError::NotSaved(_)
            | ApplyError::NotUndone { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            ApplyError::Gone(error) => return (*error).into(),
        };
        Self::new(status, error.to_string())
    }
}
