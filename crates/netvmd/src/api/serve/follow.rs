//! Serves the web page where the configuration says, and moves it when that changes.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::sleep;

use super::guard::Token;
use super::listen::{Limits, Server};
use crate::daemon::Daemon;

/// Clients at a time: a browser has up to six connections.
const CLIENTS: usize = 64;
/// Pause before another attempt.
const RETRY: Duration = Duration::from_secs(2);

/// Follows the configuration until the future is dropped, which also ends the server.
pub(crate) async fn follow(daemon: &Arc<Daemon>) {
    let mut running: Option<(SocketAddr, Server)> = None;
    loop {
        let wanted = daemon.running().await.ok().and_then(|host| host.api.web);
        if running.as_ref().map(|(address, _)| *address) != wanted {
            if let Some((_, server)) = running.take() {
                server.stop().await;
            }
            running = match wanted {
                Some(address) => start(daemon, address).await,
                None => {
                    note(daemon, None);
                    None
                }
            };
        }
        let has_failed = wanted.is_some() && running.is_none();
        tokio::select! {
            () = daemon.applied.notified() => {}
            () = sleep(RETRY), if has_failed => {}
        }
    }
}

async fn start(daemon: &Arc<Daemon>, address: SocketAddr) -> Option<(SocketAddr, Server)> {
    let file = daemon.options.run_dir.join("token");
    let listen = async {
        let token = Token::of(&file)?;
        io::Result::Ok((TcpListener::bind(address).await?, token))
    };
    match listen.await {
        Ok((listener, token)) => {
            note(daemon, None);
            tracing::info!("web page and metrics on http://{address}/, token in {}", file.display());
            let app = super::super::web_router(Arc::clone(daemon), token);
            Some((address, Server::start(listener, app, Limits { connections: CLIENTS })))
        }
        Err(error) => {
            let problem =
                format!("the web page is not served on {address}: {error} (another `web` in [api]?)");
            note(daemon, Some(problem));
            None
        }
    }
}

/// Notes why the page is not served.
fn note(daemon: &Daemon, problem: Option<String>) {
    let mut known = daemon.web_problem.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(problem) = problem.as_ref().filter(|_| *known != problem) {
        tracing::warn!("{problem}");
    }
    *known = problem;
}
