// SPDX-License-Identifier: Apache-2.0
//! A trace of packets of traffic. In: a filter, and limits of packets and time. Out: what happened to each packet,
//! one JSON object a line, as they end. The trace ends with the last one, when its time is over, or when the client
//! closes the connection.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, UNIX_EPOCH};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use netvm_api::{LiveTraceRequest, TracedPacket, TracedStep};
use netvm_engine::{Origin, StartTraceError, TimedStep, TraceId, TraceSpec};
use netvm_model::{PortId, RoleId};
use netvm_policy::Names;
use tokio::sync::mpsc::{Sender, channel};
use tokio_stream::wrappers::ReceiverStream;

use super::quota::Share;
use super::{CaptureQuota, Failure, Peer, instructions, within};
use crate::api::policy::port_named;
use crate::api::steps::{described, role_name};
use crate::daemon::Daemon;
use crate::engine_thread::EngineHandle;
use crate::events::LogLimit;
use crate::runtime::blocking;

/// Lines about traces: a client may start as many as it likes.
static STARTS: LazyLock<LogLimit> = LazyLock::new(LogLimit::default);
static ENDS: LazyLock<LogLimit> = LazyLock::new(LogLimit::default);

/// Interval at which the engine is asked for packets that have ended.
const READ_INTERVAL: Duration = Duration::from_millis(20);
/// Packets that are queued for a slow client. When the queue is full, the engine follows no more.
const QUEUED: usize = 4;

pub(in crate::api) async fn start(
    State(daemon): State<Arc<Daemon>>,
    Extension(quota): Extension<Arc<CaptureQuota>>,
    Extension(peer): Extension<Peer>,
    request: Result<Json<LiveTraceRequest>, JsonRejection>,
) -> Result<Response, Failure> {
    let Json(LiveTraceRequest { packets, seconds, from, each_hop, filter }) = request?;
    within("packets", packets, LiveTraceRequest::MAX_PACKETS)?;
    within("seconds", seconds, LiveTraceRequest::MAX_SECONDS)?;
    let from = match from {
        Some(name) => Some(port_named(&*daemon.running().await?, &name)?),
        None => None,
    };
    // Its records take about as much memory as the smallest ring of a capture.
    let share = quota.take(peer, 1, 1)?;
    let spec = TraceSpec { filter: instructions(filter), from, each_hop, packets };
    let workers = daemon.engine().call(|engine| engine.workers().count()).await?;
    // Allocates memory, for which the engine must not wait.
    let prepared = blocking(move || spec.prepare(workers).map(|prepared| (spec, prepared))).await;
    let (spec, prepared) = prepared.map_err(|error| {
        Failure::new(StatusCode::UNPROCESSABLE_ENTITY, format!("the filter is refused: {error}"))
    })?;
    let id = daemon.engine().call(move |engine| engine.start_trace(&spec, prepared)).await??;
    let running = Running { engine: daemon.engine().clone(), id, _share: share };
    STARTS.log(|more| tracing::info!("trace {id} of {packets} packets starts{more}"));
    let (sender, coming) = channel(QUEUED);
    let limit = Duration::from_secs(seconds);
    tokio::spawn(tokio::time::timeout(limit, pass(running, sender)));
    let head = [(header::CONTENT_TYPE, "application/jsonl"), (header::CACHE_CONTROL, "no-store")];
    Ok((head, Body::from_stream(ReceiverStream::new(coming))).into_response())
}

impl From<StartTraceError> for Failure {
    fn from(error: StartTraceError) -> Self {
        let status = match error {
            StartTraceError::TooMany => StatusCode::CONFLICT,
        };
        Self::new(status, error.to_string())
    }
}

/// A trace of the engine; dropping it ends the trace.
struct Running {
    engine: EngineHandle,
    id: TraceId,
    _share: Share,
}

impl Drop for Running {
    fn drop(&mut self) {
        let id = self.id;
        ENDS.log(|more| tracing::info!("trace {id} ends{more}"));
        self.engine.send(move |engine| engine.stop_trace(id));
    }
}

/// Passes packets on until there are enough, or the client closes the connection.
async fn pass(running: Running, sender: Sender<Result<Bytes, serde_json::Error>>) {
    let id = running.id;
    let mut number = 0;
    while let Ok(Some(read)) = running.engine.call(move |engine| engine.read_trace(id)).await {
        for packet in read.packets {
            number += 1;
            if sender.send(line(&info(number, &packet))).await.is_err() {
                return;
            }
        }
        if read.is_over {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(READ_INTERVAL) => {}
            () = sender.closed() => return,
        }
    }
}

fn line(packet: &TracedPacket) -> Result<Bytes, serde_json::Error> {
    let mut line = serde_json::to_vec(packet)?;
    line.push(b'\n');
    Ok(line.into())
}

fn info(number: u64, packet: &netvm_engine::TracedPacket) -> TracedPacket {
    let netvm_engine::TracedPacket { worker, at, from, bytes, steps } = packet;
    let of_step = |timed: &TimedStep| {
        let after_ns = u64::try_from(timed.after.as_nanos()).unwrap_or(u64::MAX);
        let worker = timed.worker.0;
        let steps = described(&timed.host, &timed.step, *bytes as usize).into_iter();
        steps.map(move |step| TracedStep { after_ns, worker, ..step }).collect::<Vec<_>>()
    };
    let host = steps.first().map(|first| &*first.host);
    let port = |id: PortId| host.map_or_else(|| id.to_string(), |host| Names::port(host, id).into_owned());
    let nf = |role: RoleId| host.map_or_else(|| role.to_string(), |host| role_name(host, role));
    let (port, nf) = match *from {
        Origin::Port(id) => (Some(port(id)), None),
        Origin::Nf(role) => (None, Some(nf(role))),
    };
    TracedPacket {
        number,
        time: at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
        worker: worker.0,
        port,
        nf,
        length: *bytes,
        steps: steps.iter().flat_map(of_step).collect(),
    }
}
