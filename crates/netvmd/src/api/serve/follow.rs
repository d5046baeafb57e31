//! Serves the web page on the configured address, and the socket of the configured `capture_group`; follows changes of
//! the configuration.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::sleep;

use super::guard::{Token, WebRights};
use super::listen::Server;
use super::slots::Limits;
use crate::account;
use crate::daemon::Daemon;
use crate::runtime::blocking;

/// Clients of the loopback address at a time: a browser has up to six connections. Programs of this machine have all
/// addresses of its loopback interface to choose from, so none has a share; a connection that asks for nothing makes
/// room for the next.
const WEB_CLIENTS: Limits = Limits { connections: 512, each: 512, reserve: 0 };
/// Clients of the socket of `capture_group` at a time.
const CAPTURE_CLIENTS: Limits = Limits { connections: 64, each: 16, reserve: 16 };
/// Pause before another attempt.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// The address of the web page, and whether it may capture.
type Web = (SocketAddr, bool);

/// Follows the configuration until the future is dropped, which also ends the server.
pub(crate) async fn follow(daemon: &Arc<Daemon>) {
    let mut running: Option<(Web, Server)> = None;
    let mut captures: Option<(String, Server)> = None;
    loop {
        let api = daemon.running().await.ok().map(|host| host.api.clone()).unwrap_or_default();
        let (wanted, group) = (api.web.map(|address| (address, api.web_capture)), api.capture_group);
        if captures.as_ref().map(|(group, _)| group) != group.as_ref() {
            if let Some((_, server)) = captures.take() {
                server.stop().await;
                let _ = std::fs::remove_file(daemon.configuration().options().capture_socket());
            }
            if let Some(group) = &group {
                captures = serve_captures(daemon, group).await;
            }
        }
        if running.as_ref().map(|(web, _)| *web) != wanted {
            if let Some((_, server)) = running.take() {
                server.stop().await;
            }
            running = match wanted {
                Some(web) => start(daemon, web).await,
                None => {
                    daemon.note_web_problem(None);
                    None
                }
            };
        }
        let has_failed = (wanted.is_some() && running.is_none()) || (group.is_some() && captures.is_none());
        tokio::select! {
            () = daemon.applied() => {}
            () = sleep(RETRY_INTERVAL), if has_failed => {}
        }
    }
}

/// Serves the socket of `capture_group`.
async fn serve_captures(daemon: &Arc<Daemon>, group: &str) -> Option<(String, Server)> {
    let (socket, name) = (daemon.configuration().options().capture_socket(), group.to_owned());
    let gid = blocking(move || account::group(&name)).await;
    let listener = match gid {
        Ok(Some(gid)) => {
            // A netvmd that was killed may have left it.
            let _ = std::fs::remove_file(&socket);
            super::super::bind(&socket, Some(gid)).map_err(|error| error.to_string())
        }
        Ok(None) => Err("there is no such group: create it (groupadd --system)".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    match listener {
        Ok(listener) => {
            tracing::info!("members of group {group} may capture by {}", socket.display());
            let app = super::super::capture_router(Arc::clone(daemon));
            Some((group.to_owned(), Server::start(listener, app, CAPTURE_CLIENTS)))
        }
        Err(error) => {
            tracing::warn!(
                "`capture_group` {group}: members cannot capture by {}: {error}",
                socket.display()
            );
            None
        }
    }
}

async fn start(daemon: &Arc<Daemon>, web: Web) -> Option<(Web, Server)> {
    let (address, may_capture) = web;
    let file = daemon.configuration().options().run_dir.join("token");
    let listen = async {
        let token = Token::of(&file)?;
        io::Result::Ok((TcpListener::bind(address).await?, token))
    };
    match listen.await {
        Ok((listener, token)) => {
            daemon.note_web_problem(None);
            tracing::info!("web page and metrics on http://{address}/, token in {}", file.display());
            let app = super::super::web_router(Arc::clone(daemon), WebRights { token, may_capture });
            Some((web, Server::start(listener, app, WEB_CLIENTS)))
        }
        Err(error) => {
            let problem =
                format!("cannot serve the web page on {address}: {error} (choose another `web` in [api])");
            daemon.note_web_problem(Some(problem));
            None
        }
    }
}
