// SPDX-License-Identifier: Apache-2.0
//! Serves the web page on the configured address, and the sockets of the configured groups and the address for
//! other machines, and writes the configured audit log; follows changes of the configuration.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use netvm_api::Role;
use netvm_model::ApiConfig;
use tokio::net::TcpListener;
use tokio::time::sleep;

use super::caller::LocalClients;
use super::guard::{Token, WebRights};
use super::listen::{Listening, Server};
use super::remote::RemoteServer;
use super::slots::Limits;
use crate::account;
use crate::daemon::Daemon;
use crate::runtime::blocking;

/// Clients of the loopback address at a time: a browser has up to six connections. Programs of this machine have all
/// addresses of its loopback interface to choose from, so none has a share; a connection that asks for nothing makes
/// room for the next.
const WEB_CLIENTS: Limits = Limits { connections: 512, each: 512, reserve: 0 };
/// Clients of the socket of a group at a time.
const GROUP_CLIENTS: Limits = Limits { connections: 64, each: 16, reserve: 16 };
/// Pause before another attempt, and before another look at files.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// The address of the web page, and whether it may capture.
type Web = (SocketAddr, bool);

/// Follows the configuration until the future is dropped, which also ends the servers.
pub(crate) async fn follow(daemon: &Arc<Daemon>) {
    let (mut web, mut groups, mut remote) =
        (WebServer::default(), GroupServers::default(), RemoteServer::default());
    loop {
        let api = daemon.running().await.ok().map(|host| host.api.clone()).unwrap_or_default();
        daemon.audit().write_to(api.audit.as_ref());
        // First those whose connections may have to end.
        let is_served = remote.follow(daemon, api.remote.as_ref()).await
            & groups.follow(daemon, &api).await
            & web.follow(daemon, &api).await;
        tokio::select! {
            () = daemon.applied() => {}
            () = sleep(LOOK_INTERVAL), if !is_served => {}
        }
    }
}

/// The sockets of groups.
#[derive(Default)]
struct GroupServers(BTreeMap<Role, (String, Server)>);

impl GroupServers {
    /// Serves what the configuration says; whether all of it is served.
    async fn follow(&mut self, daemon: &Arc<Daemon>, api: &ApiConfig) -> bool {
        let wanted: BTreeMap<Role, &str> = api.groups().collect();
        for role in [Role::View, Role::Capture, Role::Operate] {
            let group = wanted.get(&role).copied();
            if self.0.get(&role).map(|(group, _)| group.as_str()) == group {
                continue;
            }
            if let Some((_, server)) = self.0.remove(&role) {
                server.stop().await;
                let _ = std::fs::remove_file(daemon.configuration().options().group_socket(role));
            }
            if let Some(group) = group
                && let Some(server) = serve_group(daemon, role, group).await
            {
                self.0.insert(role, (group.to_owned(), server));
            }
        }
        self.0.len() == wanted.len()
    }
}

/// Serves the socket of a group.
async fn serve_group(daemon: &Arc<Daemon>, role: Role, group: &str) -> Option<Server> {
    let (socket, name) = (daemon.configuration().options().group_socket(role), group.to_owned());
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
    let (word, shown) = (role.word(), socket.display());
    match listener {
        Ok(listener) => {
            tracing::info!("members of group {group} may {word} by {shown}");
            let app = super::super::local_router(Arc::clone(daemon), role);
            let clients = super::super::of_socket(&socket, role);
            Some(Server::start(listener, Listening { clients, app, limits: GROUP_CLIENTS }))
        }
        Err(error) => {
            tracing::warn!("`{word}_group` {group}: members cannot {word} by {shown}: {error}");
            None
        }
    }
}

/// The web page.
#[derive(Default)]
struct WebServer(Option<(Web, Server)>);

impl WebServer {
    /// Serves what the configuration says; whether it is served.
    async fn follow(&mut self, daemon: &Arc<Daemon>, api: &ApiConfig) -> bool {
        let wanted = api.web.map(|address| (address, api.web_capture));
        if self.0.as_ref().map(|(web, _)| *web) != wanted {
            if let Some((_, server)) = self.0.take() {
                server.stop().await;
            }
            self.0 = match wanted {
                Some(web) => start(daemon, web).await,
                None => {
                    daemon.note_web_problem(None);
                    None
                }
            };
        }
        self.0.is_some() == wanted.is_some()
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
            let clients = LocalClients { role: None, socket: "".into() };
            Some((web, Server::start(listener, Listening { clients, app, limits: WEB_CLIENTS })))
        }
        Err(error) => {
            let problem =
                format!("cannot serve the web page on {address}: {error} (choose another `web` in [api])");
            daemon.note_web_problem(Some(problem));
            None
        }
    }
}
