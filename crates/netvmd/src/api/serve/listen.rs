//! Accepts a bounded number of connections. Time limits ensure that none waits for its client forever.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;

/// Limit for open requests to finish at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit for the head of a request, including the idle time before it.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for a client to receive a reply.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for the reply to a client that netvmd refuses.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Most clients at a time that get this reply; netvmd disconnects others without one.
const REFUSALS: usize = 64;
/// Largest head of a request in bytes.
const HEAD: usize = 32 << 10;

/// Limits of a listener.
#[derive(Clone, Copy, Debug)]
pub(in crate::api) struct Limits {
    /// Connections at a time.
    pub(in crate::api) connections: usize,
}

/// The stream under HTTP, for clients that upgrade the connection.
pub(in crate::api) type Io<I> = TokioIo<Pin<Box<TimeoutStream<I>>>>;

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub(crate) struct Server {
    stop: watch::Sender<()>,
    task: JoinHandle<()>,
}

impl Server {
    /// Serves `app` to the clients of a listener.
    pub(in crate::api) fn start<L>(listener: L, app: Router, limits: Limits) -> Self
    where
        L: Listener,
    {
        let (stop, stopped) = watch::channel(());
        Self { stop, task: tokio::spawn(serve(listener, app, limits, stopped)) }
    }

    /// Refuses new requests and waits for open ones.
    pub(crate) async fn stop(self) {
        drop(self.stop);
        let _ = timeout(SHUTDOWN_TIMEOUT, self.task).await;
    }
}

async fn serve<L: Listener>(mut listener: L, app: Router, limits: Limits, mut stopped: watch::Receiver<()>) {
    let room = Arc::new(Semaphore::new(limits.connections));
    let refusals = Arc::new(Semaphore::new(REFUSALS));
    let refusal = refusal(limits.connections);
    loop {
        let (io, _) = tokio::select! {
            accepted = listener.accept() => accepted,
            // The sender sends nothing; dropping it stops the server.
            _ = stopped.changed() => break,
        };
        if let Ok(permit) = Arc::clone(&room).try_acquire_owned() {
            let serving = connection(io, app.clone(), stopped.clone());
            tokio::spawn(async move {
                serving.await;
                drop(permit);
            });
        } else if let Ok(permit) = Arc::clone(&refusals).try_acquire_owned() {
            let refusal = refusal.clone();
            tokio::spawn(async move {
                let _ = timeout(REFUSAL_TIMEOUT, refuse(io, &refusal)).await;
                drop(permit);
            });
        }
    }
    drop(listener);
    let _ = room.acquire_many(u32::try_from(limits.connections).unwrap_or(u32::MAX)).await;
}

async fn connection<I>(io: I, app: Router, mut stopped: watch::Receiver<()>)
where
    I: AsyncReadExt + AsyncWriteExt + Unpin + Send + 'static,
{
    let mut io = TimeoutStream::new(io);
    io.set_write_timeout(Some(WRITE_TIMEOUT));
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD)
        .serve_connection(TokioIo::new(Box::pin(io)), TowerToHyperService::new(app))
        .with_upgrades();
    let mut serving = pin!(serving);
    tokio::select! {
        // A client that breaks the protocol or goes away ends its connection, and nothing else.
        _ = serving.as_mut() => {}
        _ = stopped.changed() => {
            serving.as_mut().graceful_shutdown();
            let _ = serving.await;
        }
    }
}

/// The reply to a client beyond the limit.
fn refusal(most: usize) -> Arc<str> {
    let body =
        format!("{{\"message\":\"{most} clients use this socket, which is its limit: try again later\"}}");
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
