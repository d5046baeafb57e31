//! A capture as a file that a browser downloads. In: what to capture, and limits. Out: pcapng, as `netvm capture` writes it.
//!
//! `netvm capture` does it, in a process of its own: libpcap reads what a client wrote there, not in netvmd.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use netvm_api::CaptureFile;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::sync::mpsc::{Sender, channel};
use tokio_stream::wrappers::ReceiverStream;

use crate::api::Failure;
use crate::daemon::Daemon;
use crate::process::program::Program;

/// Bytes that are passed on at once.
const CHUNK: usize = 64 << 10;
/// Chunks that wait for a slow client; then the capture waits, and loses packets of its own.
const WAITING: usize = 4;
/// Most bytes of an error message.
const MESSAGE: u64 = 4096;
/// Limit for the beginning of the file.
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
        return Err(Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "no pipes to the process that captures"));
    };
    let first = tokio::time::timeout(START, next(&mut packets)).await;
    let Ok(Ok(first)) = first else {
        let message = "the process that captures did not begin: see netvmd's log";
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
    tokio::spawn(pass(child, (packets, errors), (first, sender)));
    let head = [
        (header::CONTENT_TYPE, "application/x-pcapng"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"netvm.pcapng\""),
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok((head, Body::from_stream(ReceiverStream::new(chunks))).into_response())
}

fn check(request: &CaptureFile) -> Result<(), Failure> {
    let within = |name: &str, value: u64, most: u64| {
        let message = || format!("`{name}` is {value}: give 1 to {most}");
        let fits = (1..=most).contains(&value);
        fits.then_some(()).ok_or_else(|| Failure::new(StatusCode::UNPROCESSABLE_ENTITY, message()))
    };
    within("packets", request.packets, CaptureFile::MOST_PACKETS)?;
    within("seconds", request.seconds, CaptureFile::MOST_SECONDS)
}

/// Starts `netvm capture` with the API's socket. It ends when its handle is dropped.
fn spawn(daemon: &Daemon, request: &CaptureFile) -> Result<Child, Failure> {
    let failed = |error: &dyn std::fmt::Display| {
        Failure::new(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot start `netvm capture`: {error}"))
    };
    let program = Program::find("netvm", None).map_err(|error| failed(&error))?;
    let mut command = Command::new(program.to_execute());
    command.arg("--socket").arg(daemon.options.api_socket()).args(["capture", "--write=-"]);
    command.arg(format!("--count={}", request.packets)).arg(format!("--seconds={}", request.seconds));
    command.arg(format!("--snaplen={}", request.snaplen));
    command.args(request.at.iter().map(|place| format!("--at={place}")));
    if request.dropped || !request.reasons.is_empty() {
        command.arg("--dropped");
    }
    command.args(request.reasons.iter().map(|reason| format!("--reason={reason}")));
    command.arg("--").arg(&request.filter);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command.spawn().map_err(|error| failed(&error))
}

/// What a pipe has, at most a chunk; nothing at its end.
async fn next(from: &mut (impl AsyncRead + Unpin)) -> Chunk {
    let mut chunk = vec![0; CHUNK];
    let count = from.read(&mut chunk).await?;
    chunk.truncate(count);
    Ok(chunk.into())
}

/// What the process says before it ends.
async fn message(errors: &mut ChildStderr) -> String {
    let mut said = Vec::new();
    // What can be read of it is shown.
    let _ = errors.take(MESSAGE).read_to_end(&mut said).await;
    String::from_utf8_lossy(&said).trim().to_owned()
}

/// Passes the file on until it ends, or the client closes the connection. The process needs its standard error until its
/// end.
async fn pass(
    mut child: Child,
    (mut packets, mut errors): (ChildStdout, ChildStderr),
    (first, sender): (Bytes, Sender<Chunk>),
) {
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
        tracing::warn!("a capture for a client failed: {said}");
        // The answer breaks off, so that the client sees it.
        let _ = sender.send(Err(std::io::Error::other("the capture has failed"))).await;
    }
}
