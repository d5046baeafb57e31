// SPDX-License-Identifier: Apache-2.0
//! Accepts a bounded number of connections. Time limits ensure that none waits for its client forever.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::serve::Listener;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;

use super::super::Failure;
use super::body::{BodyTimeouts, ReplyBody, TimedBody};
use super::caller::{Clients, Session};
use super::slots::{ConnectionSlot, ConnectionSlots, HasPeer, Limits};
use crate::events::LogLimit;

/// Limit for open requests to finish at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit for the head of a request, including the idle time before it.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for a client to receive a reply.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for the reply to a client that netvmd refuses.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Most clients at a time that get this reply; netvmd disconnects others without one.
const REFUSALS: usize = 64;
/// Largest head of a request in bytes.
const HEAD: usize = 32 << 10;

/// Lines about clients beyond the limit, of whom there may be many.
static FULL: LazyLock<LogLimit> = LazyLock::new(LogLimit::default);

/// Time limits for the body of a request, which may be a large configuration over a slow connection.
const BODY_TIMEOUTS: BodyTimeouts =
    BodyTimeouts { next: Duration::from_secs(10), all: Duration::from_secs(120) };

/// The stream under HTTP, for clients that upgrade the connection.
pub(in crate::api) type Io<I> = TokioIo<Pin<Box<TimeoutStream<I>>>>;

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub(crate) struct Server {
    stop: watch::Sender<()>,
    task: JoinHandle<()>,
}

/// What a listener serves, and to whom.
#[derive(Clone, Debug)]
pub(in crate::api) struct Listening<C> {
    pub(in crate::api) clients: C,
    pub(in crate::api) app: Router,
    pub(in crate::api) limits: Limits,
}

impl Server {
    /// Serves the clients of a listener.
    pub(in crate::api) fn start<L, C>(listener: L, what: Listening<C>) -> Self
    where
        L: Listener,
        L::Io: HasPeer,
        C: Clients<L::Io>,
    {
        let (stop, stopped) = watch::channel(());
        Self { stop, task: tokio::spawn(serve(listener, what, stopped)) }
    }

    /// Refuses new requests and waits for open ones.
    pub(crate) async fn stop(self) {
        drop(self.stop);
        let _ = timeout(SHUTDOWN_TIMEOUT, self.task).await;
    }
}

async fn serve<L, C>(mut listener: L, what: Listening<C>, mut stopped: watch::Receiver<()>)
where
    L: Listener,
    L::Io: HasPeer,
    C: Clients<L::Io>,
{
    let Listening { clients, app, limits } = what;
    let slots = ConnectionSlots::new(limits);
    let refusals = Arc::new(Semaphore::new(REFUSALS));
    let refusal = refusal(limits.connections);
    loop {
        let (io, _) = tokio::select! {
            accepted = listener.accept() => accepted,
            // The sender sends nothing; dropping it stops the server.
            _ = stopped.changed() => break,
        };
        if let Some(slot) = slots.take(io.peer()) {
            let (clients, app, stopped) = (clients.clone(), app.clone(), stopped.clone());
            tokio::spawn(async move {
                let identified = tokio::select! {
                    session = clients.identify(io, slot.peer) => session,
                    // Another client needs the slot.
                    () = slot.activity.closed() => None,
                };
                if let Some(session) = identified {
                    connection(session, app, slot, stopped).await;
                }
            });
        } else if clients.read_plain_text()
            && let Ok(permit) = Arc::clone(&refusals).try_acquire_owned()
        {
            let refusal = refusal.clone();
            tokio::spawn(async move {
                let _ = timeout(REFUSAL_TIMEOUT, refuse(io, &refusal)).await;
                drop(permit);
            });
        } else {
            FULL.log(|more| {
                let at = io.address();
                tracing::warn!("the API closes a connection of {at}: all are in use{more}");
            });
        }
    }
    drop(listener);
    slots.until_empty().await;
}

async fn connection<I>(
    session: Session<I>,
    app: Router,
    slot: ConnectionSlot,
    mut stopped: watch::Receiver<()>,
) where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Session { io, caller, role, end } = session;
    let mut io = TimeoutStream::new(io);
    io.set_write_timeout(Some(WRITE_TIMEOUT));
    let (app, activity, peer) = (TowerToHyperService::new(app), Arc::clone(&slot.activity), slot.peer);
    let caller = Arc::new(caller);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        request.extensions_mut().insert(Arc::clone(&caller));
        if let Some(role) = role {
            request.extensions_mut().insert(role);
        }
        let (active, is_late) = (activity.request(), Arc::new(AtomicBool::new(false)));
        let (of_body, late) = (Arc::clone(&activity), Arc::clone(&is_late));
        let timed = |body| Body::new(TimedBody::new(body, BODY_TIMEOUTS, of_body, late));
        let answering = app.call(request.map(timed));
        async move {
            let answer = answering.await?;
            let answer = if is_late.load(Ordering::Relaxed) { too_late() } else { answer };
            Ok::<_, Infallible>(answer.map(|body| ReplyBody::of(body, active)))
        }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD)
        .serve_connection(TokioIo::new(Box::pin(io)), service)
        .with_upgrades();
    let mut serving = pin!(serving);
    tokio::select! {
        // A client that breaks the protocol or goes away ends its connection, and nothing else.
        _ = serving.as_mut() => {}
        // Another client needs the slot.
        () = slot.activity.closed() => {}
        // The client may not use it any more.
        () = end => {}
        _ = stopped.changed() => {
            serving.as_mut().graceful_shutdown();
            let _ = serving.await;
        }
    }
}

/// The reply to a request whose body did not come in time. The rest of it may still come, so the connection ends.
fn too_late() -> Response {
    let seconds = (BODY_TIMEOUTS.next.as_secs(), BODY_TIMEOUTS.all.as_secs());
    let message = format!(
        "the body of the request did not come in time: at most {} s may pass without a part of it, and {} s in all",
        seconds.0, seconds.1
    );
    let close = [(header::CONNECTION, "close")];
    (close, Failure::new(StatusCode::REQUEST_TIMEOUT, message)).into_response()
}

/// The reply to a client beyond the limit.
fn refusal(most: usize) -> Arc<str> {
    let body = format!(
        "{{\"message\":\"{most} clients use this socket, or yours have their share of it, which is its limit: try again later\"}}"
    );
    let head = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 5\r\nconnection: close";
    format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into()
}

async fn refuse<I: AsyncReadExt + AsyncWriteExt + Unpin>(mut io: I, refusal: &str) -> std::io::Result<()> {
    io.write_all(refusal.as_bytes()).await?;
    io.shutdown().await?;
    // Closing a connection with unread bytes would discard the reply before the client reads it.
    let mut rest = [0; 4096];
    while io.read(&mut rest).await? > 0 {}
    Ok(())
}
