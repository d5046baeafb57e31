// SPDX-License-Identifier: Apache-2.0
//! A capture as a file that a browser downloads. In: capture points, filter and limits. Out: pcapng, as `netvm capture`
//! writes it.
//!
//! A separate `netvm capture` process does the work, so that libpcap parses the client's filter there and not in
//! netvmd.

use std::process::Stdio;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use netvm_api::{CaptureFile, MAX_FILTER};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::sync::mpsc::{Sender, channel};
use tokio_stream::wrappers::ReceiverStream;

use super::within;
use crate::api::Failure;
use crate::daemon::Daemon;
use crate::events::LogLimit;
use crate::process::program::Program;

/// Lines about captures that failed, as of a client that asks for more than there is.
static FAULTS: LazyLock<LogLimit> = LazyLock::new(LogLimit::default);

/// Most bytes of a chunk of the file.
const CHUNK: usize = 64 << 10;
/// Chunks that are queued for a slow client. When the queue is full, the capture process waits, and its capture loses
/// packets.
const WAITING: usize = 4;
/// Most bytes of an error message that are read.
const MESSAGE: u64 = 4096;
/// Time limit for the first bytes of the file.
const START: Duration = Duration::from_secs(10);

type Chunk = Result<Bytes, std::io::Error>;

pub(in crate::api) async fn start(
    State(daemon): State<Arc<Daemon>>,
    request: Result<Json<CaptureFile>, JsonRejection>,
) -> Result<Response, Failure> {
    let Json(request) = request?;
    check(&request)?;
    let mut child = spawn(&daemon, &request)?;
    let (Some(mut packets), Some(mut errors)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "the capture process has no pipes"));
    };
    let first = tokio::time::timeout(START, next(&mut packets)).await;
    let Ok(Ok(first)) = first else {
        let message = "the capture process wrote nothing: see netvmd's log";
        return Err(Failure::new(StatusCode::INTERNAL_SERVER_ERROR, message));
    };
    if first.is_empty() {
        let said = message(&mut errors).await;
        return Err(Failure::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            said.strip_prefix("netvm: ").unwrap_or(&said),
        ));
    }
    let (sender, chunks) = channel(WAITING);
    tokio::spawn(pass(CaptureProcess { child, packets, errors }, first, sender));
    let head = [
        (header::CONTENT_TYPE, "application/x-pcapng"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"netvm.pcapng\""),
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok((head, Body::from_stream(ReceiverStream::new(chunks))).into_response())
}

fn check(request: &CaptureFile) -> Result<(), Failure> {
    if request.filter.len() > MAX_FILTER {
        let message = format!("`filter` has {} bytes: the limit is {MAX_FILTER}", request.filter.len());
        return Err(Failure::new(StatusCode::UNPROCESSABLE_ENTITY, message));
    }
    within("packets", request.packets, CaptureFile::MAX_PACKETS)?;
    within("seconds", request.seconds, CaptureFile::MAX_SECONDS)
}

/// Starts `netvm capture` with the API's socket. It ends when its handle is dropped.
fn spawn(daemon: &Daemon, request: &CaptureFile) -> Result<Child, Failure> {
    let failed = |error: &dyn std::fmt::Display| {
        Failure::new(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot start `netvm capture`: {error}"))
    };
    let program = Program::find("netvm", None).map_err(|error| failed(&error))?;
    let mut command = Command::new(program.to_execute());
    command.arg("--socket").arg(daemon.configuration().options().api_socket()).args(["capture", "--write=-"]);
    command.arg(format!("--count={}", request.packets)).arg(format!("--seconds={}", request.seconds));
    command.arg(format!("--snaplen={}", request.snaplen));
    command.args(request.at.iter().map(|point| format!("--at={point}")));
    if request.dropped || !request.reasons.is_empty() {
        command.arg("--dropped");
    }
    command.args(request.reasons.iter().map(|reason| format!("--reason={reason}")));
    command.arg("--").arg(&request.filter);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command.spawn().map_err(|error| failed(&error))
}

/// Reads up to a chunk from a pipe; empty at the end.
async fn next(from: &mut (impl AsyncRead + Unpin)) -> Chunk {
    let mut chunk = vec![0; CHUNK];
    let count = from.read(&mut chunk).await?;
    chunk.truncate(count);
    Ok(chunk.into())
}

/// Reads the process's error message.
async fn message(errors: &mut ChildStderr) -> String {
    let mut said = Vec::new();
    // A partial message is better than none.
    let _ = errors.take(MESSAGE).read_to_end(&mut said).await;
    String::from_utf8_lossy(&said).trim().to_owned()
}

/// A capture process, and its pipes.
struct CaptureProcess {
    child: Child,
    packets: ChildStdout,
    /// Open as long as the process, which may write to it.
    errors: ChildStderr,
}

/// Passes the file on until it ends, or the client closes the connection.
async fn pass(process: CaptureProcess, first: Bytes, sender: Sender<Chunk>) {
    let CaptureProcess { mut child, mut packets, mut errors } = process;
    let mut chunk = first;
    while !chunk.is_empty() {
        if sender.send(Ok(chunk)).await.is_err() {
            return;
        }
        let read = tokio::select! {
            read = next(&mut packets) => read,
            () = sender.closed() => return,
        };
        chunk = match read {
            Ok(chunk) => chunk,
            Err(error) => return drop(sender.send(Err(error)).await),
        };
    }
    let said = message(&mut errors).await;
    if !child.wait().await.is_ok_and(|status| status.success()) {
        FAULTS.log(|more| tracing::warn!("a capture for a client failed: {said}{more}"));
        // Aborts the reply, so that the client notices the failure.
        let _ = sender.send(Err(std::io::Error::other("the capture has failed"))).await;
    }
}
