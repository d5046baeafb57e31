// SPDX-License-Identifier: Apache-2.0
//! Packet capture: the request, the rings' memory over the upgraded connection, and the end when the client closes it.

pub(super) mod download;
mod quota;
pub(super) mod trace;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, UNIX_EPOCH};

use axum::body::{Body, to_bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use hyper::upgrade::OnUpgrade;
use netvm_api::{
    CAPTURE_PROTOCOL, CaptureInfo, CaptureInterface, CaptureRequest, FilterProgram, HeldPacket, HeldPackets,
};
use netvm_capture_ring::{Instruction, send_handover};
use netvm_engine::{
    CaptureError, CaptureId, CaptureSpec, CaptureStarted, DropReason, Engine, NamedCapturePoint,
};
use netvm_model::Host;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;

use super::Failure;
use super::serve::{Io, Peer};
use crate::daemon::Daemon;
use crate::engine_thread::EngineHandle;
use crate::events::LogLimit;
use crate::names::labels_of;
use crate::runtime::blocking;
pub(super) use quota::{CaptureLimits, CaptureQuota};
use quota::{QuotaError, Share};

/// Longest request: a filter of 4,096 instructions takes a third.
const MAX_REQUEST: usize = 512 << 10;
/// Time limit for the client to receive the rings.
const HANDOVER: Duration = Duration::from_secs(5);

/// Lines about captures: a client may start as many as it likes.
static STARTS: LazyLock<LogLimit> = LazyLock::new(LogLimit::default);
static ENDS: LazyLock<LogLimit> = LazyLock::new(LogLimit::default);
static FAULTS: LazyLock<LogLimit> = LazyLock::new(LogLimit::default);

/// Limits of the API's socket, whose clients may change everything.
pub(super) const LIMITS: CaptureLimits =
    CaptureLimits { bytes: 4 << 30, bytes_of_each: 4 << 30, captures: 16, captures_of_each: 16 };
/// Limits of the socket of `capture_group`. It leaves captures for others.
pub(super) const GROUP_LIMITS: CaptureLimits =
    CaptureLimits { bytes: 512 << 20, bytes_of_each: 256 << 20, captures: 8, captures_of_each: 4 };

pub(super) async fn start(
    State(daemon): State<Arc<Daemon>>,
    Extension(quota): Extension<Arc<CaptureQuota>>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Result<Response, Failure> {
    let (mut parts, body) = request.into_parts();
    let upgrade = parts.extensions.remove::<OnUpgrade>().filter(|_| {
        let protocol = parts.headers.get(header::UPGRADE);
        protocol.is_some_and(|protocol| protocol.as_bytes() == CAPTURE_PROTOCOL.as_bytes())
    });
    let Some(upgrade) = upgrade else {
        let message =
            format!("a capture needs the header `Upgrade: {CAPTURE_PROTOCOL}`: use `netvm capture`");
        return Err(Failure::new(StatusCode::UPGRADE_REQUIRED, message));
    };
    if !matches!(peer, Peer::User(_)) {
        let message = "a capture by shared memory needs a Unix socket of netvmd: use /v1/capture/file";
        return Err(Failure::new(StatusCode::UNPROCESSABLE_ENTITY, message));
    }
    let body = to_bytes(body, MAX_REQUEST).await;
    let body = body.map_err(|error| invalid(&error))?;
    let request: CaptureRequest = serde_json::from_slice(&body).map_err(|error| invalid(&error))?;
    let counts = |engine: &mut Engine| (engine.workers().count(), engine.room_for_workers());
    let (workers, room) = daemon.engine().call(counts).await?;
    // A worker that is added later takes memory beyond the quota.
    let share = quota.take(peer, request.buffer, workers)?;
    let spec = spec_of(request, share.ring);
    // Allocates memory, for which the engine must not wait.
    let prepared = blocking(move || spec.prepare(workers, room).map(|prepared| (spec, prepared)));
    let (spec, prepared) = prepared.await?;
    let start = move |engine: &mut Engine| (engine.start_capture(&spec, prepared), engine.shared_host());
    let (started, host) = daemon.engine().call(start).await?;
    let started = started?;
    let running = Running { engine: daemon.engine().clone(), id: started.id, _share: share };
    STARTS.log(|more| tracing::info!("capture {} starts at {}{more}", started.id, names(&started)));
    tokio::spawn(async move {
        if let Err(why) = serve(upgrade, started, &host).await {
            FAULTS.log(|more| tracing::warn!("capture {}: {why}{more}", running.id));
        }
        drop(running);
    });
    let switching = (
        StatusCode::SWITCHING_PROTOCOLS,
        [(header::CONNECTION, "upgrade"), (header::UPGRADE, CAPTURE_PROTOCOL)],
        Body::empty(),
    );
    Ok(switching.into_response())
}

/// Checks a number in a request.
fn within(name: &str, value: u64, most: u64) -> Result<(), Failure> {
    let message = || format!("`{name}` is {value}: give 1 to {most}");
    let fits = (1..=most).contains(&value);
    fits.then_some(()).ok_or_else(|| Failure::new(StatusCode::UNPROCESSABLE_ENTITY, message()))
}

fn invalid(error: &dyn std::fmt::Display) -> Failure {
    Failure::new(StatusCode::UNPROCESSABLE_ENTITY, format!("invalid request: {error}"))
}

impl From<QuotaError> for Failure {
    fn from(error: QuotaError) -> Self {
        let status = match error {
            QuotaError::Captures { .. } => StatusCode::CONFLICT,
            QuotaError::Memory { .. } => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Self::new(status, error.to_string())
    }
}

/// The first interfaces of a capture, for the log.
fn names(started: &CaptureStarted) -> String {
    let mut names: Vec<String> =
        started.interfaces.iter().take(4).map(NamedCapturePoint::description).collect();
    if started.interfaces.len() > names.len() {
        names.push(format!("{} more", started.interfaces.len() - names.len()));
    }
    names.join(", ")
}

/// The instructions of a filter, of a capture or a trace.
fn instructions(filter: FilterProgram) -> Vec<Instruction> {
    filter.into_iter().map(|(code, jt, jf, k)| Instruction { code, jt, jf, k }).collect()
}

fn spec_of(request: CaptureRequest, ring_bytes: u64) -> CaptureSpec {
    CaptureSpec {
        at: request.at,
        dropped: (request.dropped || !request.reasons.is_empty()).then_some(request.reasons),
        filter: instructions(request.filter),
        snaplen: request.snaplen,
        ring_bytes,
    }
}

/// The packets that an NF had when it ended.
pub(super) async fn held_packets(
    State(daemon): State<Arc<Daemon>>,
    role: Result<Path<String>, PathRejection>,
) -> Result<Json<HeldPackets>, Failure> {
    let Path(role) = role?;
    let name = role.clone();
    let found = daemon.engine().call(move |engine| {
        let ports = engine.host().ports.iter().map(|port| (port.id, port.name.clone()));
        let ports: BTreeMap<_, _> = ports.collect();
        (engine.held_packets(&name).cloned(), ports)
    });
    let (Some(last), ports) = found.await? else {
        let message = format!("no NF of role `{role}` has ended while it held packets");
        return Err(Failure::new(StatusCode::NOT_FOUND, message));
    };
    let packet = |held: &netvm_engine::HeldPacket| HeldPacket {
        port: ports.get(&held.port).cloned(),
        length: held.length,
        data: held.data.iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    Ok(Json(HeldPackets {
        role,
        instance: last.instance.0,
        time: last.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
        packets: last.packets.iter().map(packet).collect(),
    }))
}

/// A capture of the engine; dropping it ends the capture.
struct Running {
    engine: EngineHandle,
    id: CaptureId,
    _share: Share,
}

impl Drop for Running {
    fn drop(&mut self) {
        let id = self.id;
        ENDS.log(|more| tracing::info!("capture {id} ends{more}"));
        self.engine.send(move |engine| engine.stop_capture(id));
    }
}

/// Hands the rings over, and waits until the client closes the connection.
async fn serve(
    upgrade: OnUpgrade,
    started: CaptureStarted,
    host: &Host,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let upgraded = tokio::time::timeout(HANDOVER, upgrade).await??;
    let parts = upgraded.downcast::<Io<UnixStream>>();
    let parts = parts.map_err(|_| "the API's connection is not a Unix stream")?;
    let stream: &UnixStream = parts.io.inner().get_ref();
    let fd = stream.as_fd().try_clone_to_owned()?;
    // Drops HTTP's wrapper of the stream, which has time limits.
    drop(parts.io);
    let mut stream = UnixStream::from_std(fd.into())?;
    // The descriptors must not arrive with the head of the reply, because the client's HTTP library reads that.
    let mut byte = [0; 1];
    if parts.read_buf.is_empty() {
        tokio::time::timeout(HANDOVER, stream.read_exact(&mut byte)).await??;
    }
    let (info, rings) = info_of(started, host);
    let std = stream.into_std()?;
    let std = blocking(move || -> Result<_, Box<dyn std::error::Error + Send + Sync>> {
        std.set_nonblocking(false)?;
        std.set_write_timeout(Some(HANDOVER))?;
        let fds: Vec<BorrowedFd<'_>> = rings.iter().map(AsFd::as_fd).collect();
        send_handover(&std, &info, &fds)?;
        std.set_nonblocking(true)?;
        Ok(std)
    })
    .await?;
    let mut stream = UnixStream::from_std(std)?;
    // The client sends nothing more. An error also ends the capture.
    while stream.read(&mut byte).await.is_ok_and(|count| count > 0) {}
    Ok(())
}

fn info_of(started: CaptureStarted, host: &Host) -> (CaptureInfo, Vec<OwnedFd>) {
    let interface = |point: &NamedCapturePoint| {
        let port = match point {
            NamedCapturePoint::Port(name) => host.port_named(name),
            _ => None,
        };
        let labels = port.map(labels_of).unwrap_or_default();
        CaptureInterface { name: point.name(), description: point.description(), labels }
    };
    let CaptureStarted { id, rings, interfaces, names } = started;
    let info = CaptureInfo {
        id: id.0,
        interfaces: interfaces.iter().map(interface).collect(),
        chains: names.chains,
        ports: names.ports,
        roles: names.roles,
        reasons: DropReason::ALL.iter().map(|reason| reason.name().to_owned()).collect(),
    };
    (info, rings)
}

impl From<CaptureError> for Failure {
    fn from(error: CaptureError) -> Self {
        let status = match error {
            CaptureError::UnknownPoint { .. }
            | CaptureError::UnknownHop { .. }
            | CaptureError::UnknownReason { .. } => StatusCode::NOT_FOUND,
            CaptureError::Ambiguous { .. }
            | CaptureError::TooManyPoints(_)
            | CaptureError::NoPoint
            | CaptureError::NotCaptured(_)
            | CaptureError::Filter(_) => StatusCode::UNPROCESSABLE_ENTITY,
            CaptureError::TooMany => StatusCode::CONFLICT,
            CaptureError::Ring(_) | CaptureError::Descriptor(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}
